"""One row of x times bf16 rows, with the norm before and SwiGLU or a sum after."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def row_gemv_kernel(
    x_ptr, norm_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr, N, up_rows, eps,
    K: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr, SWIGLU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS outputs a program; every program norms x again, which is cheaper than a launch."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    inside = k < K
    row_ok = n < N
    at = weight_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    ok = row_ok[:, None] & inside[None, :]
    weight = tl.load(at, mask=ok, other=0.0)
    if SWIGLU:
        up_weight = tl.load(at + up_rows.to(tl.int64) * K, mask=ok, other=0.0)
    if HAS_NORM:
        norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        x = x * tl.rsqrt(tl.sum(x * x) / K + eps) * norm
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    out = tl.sum(weight.to(tl.float32) * x[None, :], 1)
    if SWIGLU:
        up = tl.sum(up_weight.to(tl.float32) * x[None, :], 1)
        out = up * out / (1.0 + tl.exp(-out))
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=row_ok, other=0.0).to(tl.float32)
    if ADD:
        out += tl.load(residual_ptr + n, mask=row_ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=row_ok)
