"""Activations rounded to 8 bits with one scale a row, with the norm before them."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.launch import overlap_options

# The largest value of each kind; of FP8 that is e4m3's, which has no infinity.
LIMITS = {"int8": 127.0, "fp8": 448.0}
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@triton.jit
def _quantize_rows_kernel(
    x_ptr, norm_ptr, out_ptr, scale_ptr, x_stride, eps, K: tl.constexpr, BLOCK: tl.constexpr,
    LIMIT: tl.constexpr, FP8: tl.constexpr, HAS_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < K
    if HAS_NORM:
        norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + row * x_stride + k, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        x = x * tl.rsqrt(tl.sum(x * x) / K + eps) * norm
    largest = tl.max(tl.abs(x))
    q = x * (LIMIT / tl.maximum(largest, 1e-30))
    # A rounded reciprocal may carry the largest value a hair past the limit.
    q = tl.minimum(tl.maximum(q, -LIMIT), LIMIT)
    # Adding and taking away 1.5 * 2**23 steps rounds to the nearest step, ties to even: the
    # conversion then has nothing left to round, which the interpreter gets wrong for FP8.
    step = 1.0
    if FP8:
        # Three bits below the leading one; e4m3's smallest exponent is -6.
        power = (q.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        step = tl.maximum(power, 0.015625) * 0.125
    q = (q + 12582912.0 * step) - 12582912.0 * step
    tl.store(out_ptr + row * K + k, q.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, largest / LIMIT)


def quantize_rows(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, kind: Literal["int8", "fp8"]
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm(x) as q * scale, q of 8 bits.

    Args:
        x: [T, K], last axis contiguous; finite.
        norm: [K]; None leaves the norm out.
        eps: Added to the mean of squares.
        kind: int8 (symmetric, -127 to 127) or fp8 (e4m3).

    Returns:
        q [T, K], and float32 scales [T]; a row of zeros has the scale 0.
    """
    rows, columns = x.shape
    q = torch.empty(rows, columns, dtype=DTYPES[kind], device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    _quantize_rows_kernel[(rows,)](
        x, x if norm is None else norm, q, scale, x.stride(0), eps, columns, block, LIMITS[kind],
        kind == "fp8", norm is not None, num_warps=min(16, max(1, block // 1024)),
        **overlap_options(),
    )  # fmt: skip
    return q, scale
