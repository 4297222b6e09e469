# Kernels have tuples but no unpacking in displays.
# ruff: noqa: RUF005
"""One row of x times INT8 or FP8 rows, with the norm before and SwiGLU or a sum after.

x keeps its precision: at one row the time is that of reading the weights, so rounding x
would save nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def byte_values(q, DECODE: tl.constexpr):
    """The bytes as numbers; with DECODE those of e4m3 bytes, divided by 256.

    For GPUs without FP8: e4m3's fields, moved to where float16 has its own, are the same
    number but for the exponents' bias (7 against 15).
    """
    if DECODE:
        bits = q.to(tl.uint16)
        bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        q = bits.to(tl.float16, bitcast=True)
    return q


@triton.jit
def load_columns(base, k, K: tl.constexpr, WHOLE: tl.constexpr):
    """Columns k of the rows that start at `base` [rows, 1]; 0 past K unless all are WHOLE."""
    if WHOLE:
        return tl.load(base + k[None, :])
    return tl.load(base + k[None, :], mask=(k < K)[None, :], other=0.0)


@triton.jit
def byte_gemv_kernel(
    x_ptr, norm_ptr, weight_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, N, up_rows,
    all_rows, eps, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    DECODE: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, ADD: tl.constexpr,
    SWIGLU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS outputs a program, all of their weights on the way before x is waited for.

    scale is [K / GROUP, all_rows].
    """
    CHUNKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = K % BLOCK == 0
    GROUPED: tl.constexpr = GROUP < K
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Rows past the last are read again instead of masked, which keeps loads whole.
    row = tl.minimum(n, N - 1)
    base = weight_ptr + row.to(tl.int64)[:, None] * K
    up_base = weight_ptr + (row + up_rows).to(tl.int64)[:, None] * K
    weights = ()
    ups = ()
    for c in tl.static_range(CHUNKS):
        k = c * BLOCK + tl.arange(0, BLOCK)
        weights = weights + (load_columns(base, k, K, WHOLE),)
        if SWIGLU:
            ups = ups + (load_columns(up_base, k, K, WHOLE),)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for c in tl.static_range(CHUNKS):
        k = c * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        if HAS_NORM:
            if c == 0:
                squares = x * x
            else:
                squares += x * x
            x *= tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        part = byte_values(weights[c], DECODE).to(tl.float32) * x[None, :]
        if GROUPED:
            group = tl.minimum(k // GROUP, K // GROUP - 1) * all_rows
            scale_at = scale_ptr + group[None, :] + row[:, None]
            part *= tl.load(scale_at)
        # Not added to zeros first, so that the sum over columns takes one operation each.
        if c == 0:
            acc = part
        else:
            acc += part
        if SWIGLU:
            part = byte_values(ups[c], DECODE).to(tl.float32) * x[None, :]
            if GROUPED:
                part *= tl.load(scale_at + up_rows)
            if c == 0:
                up_acc = part
            else:
                up_acc += part
    # The root mean square divides the result, so that the products need not wait for it.
    inverse = 1.0
    if DECODE:
        inverse = 256.0
    if HAS_NORM:
        inverse *= tl.rsqrt(tl.sum(squares) / K + eps)
    out = tl.sum(acc, 1) * inverse
    if not GROUPED:
        out *= tl.load(scale_ptr + row)
    if SWIGLU:
        up = tl.sum(up_acc, 1) * inverse
        if not GROUPED:
            up *= tl.load(scale_ptr + up_rows + row)
        out = up * out / (1.0 + tl.exp(-out))
    keep = n < N
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        out += tl.load(residual_ptr + n, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=keep)
