"""Which kernel multiplies: one choice for all linear ops, by weight kind and row count."""

from __future__ import annotations

import os

import torch
import triton

from kernels.checks import expect
from kernels.cuda.byte_linear import byte_linear
from kernels.cuda.int4_dot import int4_dot_kernel
from kernels.cuda.launch import (
    capability,
    num_multiprocessors,
    overlap_options,
    tuned,
)
from kernels.cuda.packed import CudaWeight
from kernels.cuda.row_gemv import row_gemv_kernel
from kernels.cuda.scratch import float_scratch, tickets
from kernels.cuda.swiglu import swiglu
from kernels.rms_norm.triton import rms_norm

FLOATS = (torch.bfloat16, torch.float32)
# Row counts from which a library product on bf16 beats reading quantised weights.
DENSE_ROWS = 80
MAX_WGMMA_ROWS = 128


def linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """RMSNorm(x) @ Wᵀ (+ bias), or added to the residual, or through SwiGLU.

    Args:
        x: [T, K], last axis contiguous.
        norm: [K]; None leaves the norm out.
        eps: Added to the mean of squares.
        weight: [N, K]; for `gated` the gate's rows, then the up projection's.
        bias: [N].
        residual: [T, N], added to in place and returned.
        gated: Whether out = silu(g) * u.

    Returns:
        [T, N], or [T, N / 2] where gated; of x's dtype.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    expect("x", x, [None, weight.columns], FLOATS, contiguous=False)
    for name, vector, size in (("norm", norm, weight.columns), ("bias", bias, weight.rows)):
        if vector is not None:
            expect(name, vector, [size], FLOATS)
    rows = x.shape[0]
    outputs = weight.rows // 2 if gated else weight.rows
    out = residual
    if out is None:
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    else:
        expect("residual", out, [rows, outputs], [x.dtype], contiguous=False)
    if rows == 0:
        return out
    if weight.kind in ("int8", "fp8") and (weight.dense is None or rows < DENSE_ROWS):
        byte_linear(x, norm, eps, weight, bias, residual, out, gated)
    elif rows == 1 and weight.kind == "int4" and _has_gluon():
        _int4_gemv(x, norm, eps, weight, bias, residual, out, gated)
    elif rows == 1 and weight.kind == "bf16":
        _row_gemv(x, norm, eps, weight, bias, residual, out, gated)
    else:
        normed = x if norm is None else rms_norm(x, norm, eps)
        _batch(normed, weight, bias, residual, out, gated)
    return out


def _batch(
    x: torch.Tensor,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    rows = x.shape[0]
    matrix = weight.matrix
    dense_rows = tuned("linear", _shape(weight)).get("dense_rows", DENSE_ROWS)
    if matrix is not None and (weight.kind == "bf16" or rows >= dense_rows):
        _library(x, matrix, bias, residual, out, gated)
    elif weight.kind == "int4" and _fits_wgmma(x, weight):
        _int4_wgmma(x, weight, bias, residual, out, gated)
    elif gated:
        both = torch.empty(rows, weight.rows, dtype=x.dtype, device=x.device)
        _int4_dot(x, weight, bias, None, both)
        swiglu(both, out)
    else:
        _int4_dot(x, weight, bias, residual, out)


def _library(
    x: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    matrix = matrix.to(x.dtype)
    if gated:
        both = torch.mm(x, matrix.T)
        swiglu(both if bias is None else both + bias, out)
    elif residual is not None:
        if bias is not None:
            residual += bias
        torch.addmm(residual, x, matrix.T, out=residual)
    elif bias is not None:
        torch.addmm(bias.to(x.dtype), x, matrix.T, out=out)
    else:
        torch.mm(x, matrix.T, out=out)


def _int4_dot(
    x: torch.Tensor,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    assert weight.scale is not None
    rows = x.shape[0]
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    row_tiles, k_tiles, _ = weight.data.shape
    int4_dot_kernel[(row_tiles // 4, triton.cdiv(rows, block_m))](
        x, weight.data, weight.scale, x if bias is None else bias,
        x if residual is None else residual, out, rows, weight.rows, x.stride(0), out.stride(0),
        weight.columns, k_tiles, weight.plane, weight.group, block_m, bias is not None,
        residual is not None, num_warps=4, num_stages=2,
    )  # fmt: skip


def _int4_gemv(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    from kernels.cuda.int4_gemv import int4_gemv_kernel

    assert weight.scale is not None
    row_tiles, k_tiles, _ = weight.data.shape
    limit = row_tiles // 2 if gated else -(-weight.rows // 16)
    if gated and (weight.rows // 2) % 16:
        raise ValueError(f"gate_up: expected a multiple of 32 rows, got {weight.rows}")
    if gated:
        limit = weight.rows // 32
    settings = tuned("int4_gemv", _shape(weight, gated))
    warps = settings.get("warps", 4 if k_tiles <= 32 else 8)
    programs = min(limit, settings.get("programs", 3 * num_multiprocessors()))
    options = overlap_options()
    if "registers" in settings:
        options["maxnreg"] = settings["registers"]
    int4_gemv_kernel[(programs,)](
        x, x if norm is None else norm, weight.data.view(torch.int32), weight.scale,
        x if bias is None else bias, x if residual is None else residual, out, out.shape[1],
        limit, limit, eps, weight.columns, k_tiles, weight.plane,
        4 * weight.plane // weight.group, warps, settings.get("depth", 2), norm is not None,
        bias is not None, residual is not None, gated, settings.get("half", gated),
        settings.get("trigger", 1), num_warps=warps, **options,
    )  # fmt: skip


def _int4_wgmma(
    x: torch.Tensor,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    from kernels.cuda.int4_wgmma import int4_wgmma_kernel

    assert weight.scale is not None
    rows = x.shape[0]
    row_tiles, k_tiles, _ = weight.data.shape
    if gated and (weight.rows // 2) % 64:
        both = torch.empty(rows, weight.rows, dtype=x.dtype, device=x.device)
        _int4_wgmma(x, weight, bias, None, both, gated=False)
        swiglu(both, out)
        return
    tile_m = max(8, triton.next_power_of_2(rows))
    settings = tuned("int4_wgmma", f"{_shape(weight, gated)},{tile_m}")
    groups = 2 if gated else settings.get("groups", 1)
    blocks = weight.rows // 128 if gated else triton.cdiv(row_tiles, 4 * groups)
    depth = settings.get("depth", 2)
    split = settings.get("split") or max(
        1, min(3 * num_multiprocessors() // (blocks * groups), k_tiles // depth)
    )
    # Every share of K holds at least one tile.
    split = triton.cdiv(k_tiles, triton.cdiv(k_tiles, split))
    options = overlap_options()
    if "registers" in settings:
        options["maxnreg"] = settings["registers"]
    parts = float_scratch(x.device, blocks * split * 64 * groups * tile_m if split > 1 else 1)
    int4_wgmma_kernel[(blocks, split)](
        x, weight.data.view(torch.int32), weight.scale, x if bias is None else bias,
        x if residual is None else residual, out, parts, tickets(x.device, blocks), rows,
        out.shape[1], row_tiles, row_tiles // 2 if gated else 0, x.stride(0), out.stride(0),
        weight.columns, k_tiles, weight.plane, 4 * weight.plane // weight.group, tile_m,
        settings.get("stages", 3), split, depth, groups, bias is not None,
        residual is not None, gated, settings.get("trigger", 1), num_warps=4 * groups, **options,
    )  # fmt: skip


def _row_gemv(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    outputs = out.shape[1]
    block = triton.next_power_of_2(weight.columns)
    settings = tuned("row_gemv", f"bf16,{_shape(weight, gated)}")
    per_program = settings.get("rows") or _rows_a_program(block, outputs, gated)
    warps = settings.get("warps", min(8, max(1, block * per_program // 1024)))
    row_gemv_kernel[(triton.cdiv(outputs, per_program),)](
        x, x if norm is None else norm, weight.data, x if bias is None else bias,
        x if residual is None else residual, out, outputs, outputs, eps, weight.columns, block,
        per_program, norm is not None, bias is not None, residual is not None, gated,
        num_warps=warps, **overlap_options(),
    )  # fmt: skip


def _rows_a_program(block: int, outputs: int, gated: bool) -> int:
    """Enough bytes under way in a program to hide its reductions, enough programs for all."""
    if block < 2048:
        return 2048 // block
    return 2 if block <= 8192 and not gated and outputs >= 2048 else 1


def _shape(weight: CudaWeight, gated: bool = False) -> str:
    gate = ",gated" if gated else ""
    group = f",g{weight.group}" if weight.kind == "int4" else ""
    return f"{weight.rows}x{weight.columns}{group}{gate}"


def _has_gluon() -> bool:
    """Ampere and later; the interpreter runs no Gluon."""
    return capability() >= (8, 0) and os.environ.get("TRITON_INTERPRET") != "1"


def _fits_wgmma(x: torch.Tensor, weight: CudaWeight) -> bool:
    """Hopper, not too many rows, and rows that copy in vectors of 16 bytes."""
    return (
        capability()[0] == 9
        and os.environ.get("TRITON_INTERPRET") != "1"
        and x.shape[0] <= MAX_WGMMA_ROWS
        and x.dtype == torch.bfloat16
        and weight.columns % 16 == 0
        and x.stride(0) % 16 == 0
        and x.data_ptr() % 16 == 0
    )
