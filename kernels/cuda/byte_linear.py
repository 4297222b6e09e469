"""Which kernel multiplies by INT8 and FP8 weights, by row count and by what x is rounded to."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton

from kernels.cuda.byte_dot import byte_dot_kernel
from kernels.cuda.byte_gemv import byte_gemv_kernel
from kernels.cuda.launch import (
    capability,
    has_overlap,
    num_multiprocessors,
    overlap_options,
    tuned,
)
from kernels.cuda.packed import CudaWeight
from kernels.cuda.quantize_rows import Rounding, quantize_rows
from kernels.cuda.scratch import FLOATS, float_scratch, tickets
from kernels.cuda.swiglu import swiglu
from kernels.rms_norm.triton import rms_norm

# Row counts from which the vendor's FP8 product beats ours.
LIBRARY_ROWS = 256


def byte_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    """See `kernels.cuda.linear.linear`; into `out`, which is the residual where there is one."""
    rows = x.shape[0]
    if rows == 1:
        single = _mma if _fits_mma(weight, gated) else _gemv
        single(x, norm, eps, weight, bias, residual, out, gated)
        return
    rounding = rounding_of(weight)
    if rounding is None:
        x = x if norm is None else rms_norm(x, norm, eps)
        _dot(x, None, weight, bias, residual, out, gated)
    else:
        q, scale = quantize_rows(x, norm, eps, rounding)
        if weight.kind == "fp8" and rows >= library_rows(weight, gated):
            _library(q, scale, weight, bias, residual, out, gated)
        else:
            _dot(q, scale, weight, bias, residual, out, gated)


def rounding_of(weight: CudaWeight) -> Rounding | None:
    """What several rows of x are rounded to; None leaves them as they are.

    16 bits are more than bf16 has for all but the smallest values of a row.
    """
    if weight.kind == "int8":
        return "int8" if weight.rounds_x else "int16"
    return "fp8" if weight.rounds_x and multiplies("fp8") else None


def multiplies(kind: str) -> bool:
    """Whether tensor cores take 8-bit operands of this kind (the interpreter takes all)."""
    return interpreted() or capability() >= ((8, 9) if kind == "fp8" else (8, 0))


def interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _bytes(weight: CudaWeight) -> tuple[torch.Tensor, bool]:
    """The weight's bytes as a kernel takes them, and whether it must decode e4m3 itself."""
    decode = weight.kind == "fp8" and not multiplies("fp8")
    return (weight.data.view(torch.uint8) if decode else weight.data), decode


def _fits_mma(weight: CudaWeight, gated: bool) -> bool:
    """Ampere and later (FP8: Ada), whole segments and row tiles; the interpreter runs no Gluon."""
    tiled = weight.columns % 64 == 0 and weight.rows % (32 if gated else 16) == 0
    return not interpreted() and multiplies(weight.kind) and tiled


def _mma(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    from kernels.cuda.byte_mma import byte_mma_kernel

    limit = out.shape[1] // 16
    settings = tuned("byte_mma", weight_key(weight, gated))
    warps = settings.get("warps", 4)
    # What waits in registers: scales by group take their share.
    widest = 2 if gated and weight.group < weight.columns else 4
    segments = settings.get("segments") or (widest if weight.columns >= 1024 else 1)
    programs = min(limit, settings.get("programs", 2 * num_multiprocessors()))
    options = overlap_options()
    if "registers" in settings:
        options["maxnreg"] = settings["registers"]
    byte_mma_kernel[(programs,)](
        x, x if norm is None else norm, weight.data.view(torch.int32), weight.scale,
        x if bias is None else bias, x if residual is None else residual, out, limit, limit,
        weight.rows, eps, weight.columns, weight.group, segments, warps,
        settings.get("depth", 1 if gated else 2), weight.kind == "fp8", norm is not None,
        bias is not None, residual is not None, gated, settings.get("trigger", 1),
        num_warps=warps, **options,
    )  # fmt: skip


def _gemv(
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
    settings = tuned("byte_gemv", weight_key(weight, gated))
    block = settings.get("block") or gemv_block(weight.columns)
    per_program = settings.get("rows") or (2 if gated else 4 if outputs >= 2048 else 1)
    warps = settings.get("warps", 8 if weight.columns > 8192 else min(4, max(1, block // 512)))
    data, decode = _bytes(weight)
    byte_gemv_kernel[(triton.cdiv(outputs, per_program),)](
        x, x if norm is None else norm, data, weight.scale, x if bias is None else bias,
        x if residual is None else residual, out, outputs, outputs, weight.rows, eps,
        weight.columns, weight.group, block, per_program, decode, norm is not None,
        bias is not None, residual is not None, gated,
        num_warps=warps, **overlap_options(),
    )  # fmt: skip


def gemv_block(columns: int) -> int:
    """The largest power of two that divides the columns, if it keeps a warp's lanes busy."""
    power = columns & -columns
    return min(power, 4096) if power >= 512 else min(1024, triton.next_power_of_2(columns))


def _dot(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    rows, outputs = out.shape
    tile = dot_tile(weight, rows, gated)
    tiles = (triton.cdiv(rows, tile.block_m), triton.cdiv(outputs, tile.block_n))
    split = tile.split
    parts = tiles[0] * tiles[1] * split * tile.block_m * tile.block_n * (2 if gated else 1)
    if split == 1 or parts > FLOATS:
        split, parts = 1, 1
    data, decode = _bytes(weight)
    options = overlap_options()
    if x_scale is not None and has_overlap():
        # Rounding x leaves most of the card idle: the product's start goes beside it always.
        options = {"PDL": True, "launch_pdl": True}
    byte_dot_kernel[(*tiles, split)](
        x, x if x_scale is None else x_scale, data, weight.scale, x if bias is None else bias,
        x if residual is None else residual, out, float_scratch(x.device, parts),
        tickets(x.device, tiles[0] * tiles[1] if split > 1 else 1), rows, outputs, outputs,
        weight.rows, x.stride(0), out.stride(0), weight.columns, weight.group,
        tile.block_m, tile.block_n, tile.block_k, split, x_scale is not None,
        x.shape[0] > rows, decode, tile.exact, bias is not None, residual is not None, gated,
        num_warps=tile.warps, num_stages=tile.stages, **options,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch settings of `byte_dot_kernel`; `split` is the shares of K."""

    block_m: int
    block_n: int
    block_k: int
    split: int
    warps: int
    stages: int
    exact: bool = True


def dot_tile(weight: CudaWeight, rows: int, gated: bool) -> Tile:
    """Measured settings for `rows` rows of x, or a guess."""
    class_m = min(512, max(16, triton.next_power_of_2(rows)))
    settings = tuned("byte_dot", dot_key(weight, class_m, gated))
    if settings:
        return Tile(**settings)
    block_m = min(128, class_m)
    block_n = 128 if rows > 128 and not gated else 64
    # A copy of 16 bytes a lane wants wide tiles; x of 16 bits takes twice the room.
    block_k = 256 if block_m <= 32 else 128
    if rounding_of(weight) is None:
        block_k = 64
    if weight.group < weight.columns:
        # A tile has one scale a row.
        block_k = min(128, weight.group & -weight.group)
    outputs = weight.rows // 2 if gated else weight.rows
    tiles = triton.cdiv(rows, block_m) * triton.cdiv(outputs, block_n)
    k_tiles = triton.cdiv(weight.columns, block_k)
    # More than one program a multiprocessor, each with enough of K to fill its pipeline.
    split = max(1, min(3 * num_multiprocessors() // (2 * tiles), k_tiles // 4, 8))
    # Every share of K holds at least one tile.
    split = triton.cdiv(k_tiles, triton.cdiv(k_tiles, split))
    warps = 8 if block_m * block_n >= 128 * 128 else 4
    # The sums of the large tiles that many rows want would not find room twice.
    return Tile(block_m, block_n, block_k, split, warps, 3, rows < LIBRARY_ROWS)


def weight_key(weight: CudaWeight, gated: bool) -> str:
    """The weight's entry in the table of settings."""
    rounding = "x8" if weight.rounds_x else "x16"
    group = "" if weight.group == weight.columns else f",g{weight.group}"
    gate = ",gated" if gated else ""
    return f"{weight.kind},{rounding},{weight.rows}x{weight.columns}{group}{gate}"


def dot_key(weight: CudaWeight, class_m: int, gated: bool) -> str:
    return f"{weight_key(weight, gated)},{class_m}"


def library_rows(weight: CudaWeight, gated: bool) -> int:
    """Rows from which `library_product` is taken; more than ever come where it can't be."""
    if interpreted() or capability()[0] != 9 or weight.rows % 16 or weight.columns % 16:
        return 1 << 30
    if weight.group < weight.columns:
        return 1 << 30
    return tuned("byte_linear", weight_key(weight, gated)).get("library_rows", LIBRARY_ROWS)


def _library(
    q: torch.Tensor,
    scale: torch.Tensor,
    weight: CudaWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    product = library_product(q, scale, weight)
    if bias is not None:
        product += bias
    if gated:
        swiglu(product, out)
    elif residual is not None:
        residual += product
    else:
        out.copy_(product)


def library_product(q: torch.Tensor, scale: torch.Tensor, weight: CudaWeight) -> torch.Tensor:
    """cuBLAS's FP8 product with a scale a row on both sides: bf16 [T, N]."""
    assert weight.scale is not None
    return torch._scaled_mm(
        q, weight.data.T, scale.unsqueeze(1), weight.scale, out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip
