"""Activations rounded to 8 or 16 bits with one scale a row, with the norm before them."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.launch import has_overlap, overlap_options

Rounding = Literal["int8", "int16", "fp8"]
# The largest value of each kind: of FP8 e4m3's, which has no infinity; of INT16 that of which
# both bytes are at most 127.
LIMITS = {"int8": 127.0, "int16": 127.0 * 257, "fp8": 448.0}


@triton.jit
def _rounded(x, LIMIT: tl.constexpr, FP8: tl.constexpr):
    """A row as numbers of the kind with the largest value LIMIT, and its scale."""
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
    return q, largest / LIMIT


@triton.jit
def _swiglu_rows_kernel(
    gate_up_ptr, out_ptr, scale_ptr, F: tl.constexpr, BLOCK: tl.constexpr, LIMIT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < F
    gate = tl.load(gate_up_ptr + row * 2 * F + k, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * F + F + k, mask=inside, other=0.0).to(tl.float32)
    q, scale = _rounded(up * gate / (1.0 + tl.exp(-gate)), LIMIT, True)
    tl.store(out_ptr + row * F + k, q.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _quantize_rows_kernel(
    x_ptr, norm_ptr, out_ptr, scale_ptr, x_stride, eps, K: tl.constexpr, BLOCK: tl.constexpr,
    LIMIT: tl.constexpr, FP8: tl.constexpr, PAIR: tl.constexpr, HAS_NORM: tl.constexpr,
    TRIGGER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row a program; with TRIGGER the product that follows may start at once."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < K
    if HAS_NORM:
        norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if TRIGGER:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + k, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        x = x * tl.rsqrt(tl.sum(x * x) / K + eps) * norm
    q, scale = _rounded(x, LIMIT, FP8)
    out_at = out_ptr + row * K + k
    if PAIR:
        # q = 256 * high + low, both from -128 to 127.
        high = (q.to(tl.int32) + 128) >> 8
        low = q.to(tl.int32) - (high << 8)
        tl.store(out_at, high.to(tl.int8), mask=inside)
        tl.store(out_at + tl.num_programs(0).to(tl.int64) * K, low.to(tl.int8), mask=inside)
    else:
        tl.store(out_at, q.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)


def quantize_rows(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, kind: Rounding
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm(x) as q * scale.

    Args:
        x: [T, K], last axis contiguous; finite.
        norm: [K]; None leaves the norm out.
        eps: Added to the mean of squares.
        kind: int8 (symmetric, -127 to 127), fp8 (e4m3) or int16 (-32639 to 32639).

    Returns:
        q [T, K], of int16 as int8 [2 T, K]: the T rows' high bytes, then their low bytes
        (q = 256 * high + low); and float32 scales [T]. Zeros have the scale 0.
    """
    rows, columns = x.shape
    pair = kind == "int16"
    dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
    q = torch.empty(rows * (2 if pair else 1), columns, dtype=dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    _quantize_rows_kernel[(rows,)](
        x, x if norm is None else norm, q, scale, x.stride(0), eps, columns, block, LIMITS[kind],
        kind == "fp8", pair, norm is not None, has_overlap(),
        num_warps=min(16, max(1, block // 1024)), **overlap_options(),
    )  # fmt: skip
    return q, scale


def swiglu_rows(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(g) * u of [g, u] = gate_up [T, 2 F], contiguous, as FP8: q [T, F] and scales [T]."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    q = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=gate_up.device)
    scale = torch.empty(rows, dtype=torch.float32, device=gate_up.device)
    block = triton.next_power_of_2(columns)
    _swiglu_rows_kernel[(rows,)](
        gate_up, q, scale, columns, block, LIMITS["fp8"], num_warps=min(16, max(1, block // 512))
    )
    return q, scale
