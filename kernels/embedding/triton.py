"""Embedding lookup on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.checks import expect
from kernels.cuda.launch import overlap_options
from kernels.cuda.packed import CudaWeight


@triton.jit
def _rows_kernel(
    ids_ptr, table_ptr, scale_ptr, out_ptr, K, GROUP, all_rows, BLOCK: tl.constexpr,
    SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row of bytes or bf16, times its scales [K / GROUP, all_rows]."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        gdc_wait()
    row = tl.load(ids_ptr + token).to(tl.int64)
    values = tl.load(table_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    if SCALED:
        values *= tl.load(scale_ptr + k // GROUP * all_rows + row, mask=k < K, other=0.0)
    tl.store(out_ptr + token * K + k, values.to(out_ptr.dtype.element_ty), mask=k < K)


@triton.jit
def _int4_rows_kernel(
    ids_ptr, words_ptr, scale_ptr, out_ptr, K, K_TILES, GROUP: tl.constexpr, PLANE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One K tile of an INT4 row; `kernels.cuda.packed` says where its nibbles lie."""
    TILE: tl.constexpr = 4 * PLANE
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    k = tl.arange(0, TILE)
    if PDL:
        gdc_wait()
    row = tl.load(ids_ptr + token).to(tl.int64)
    column = k % PLANE
    half = column // (PLANE // 2)
    step = column % (PLANE // 2) // 8
    quad = column % 8 // 2
    lane = (row % 8) * 4 + quad
    chunk = half * 2 + row % 16 // 8
    place = chunk * (4 * PLANE) + lane * (PLANE // 8) + step * 2 + column % 2
    block = (row // 16) * K_TILES + tile
    words = tl.load(words_ptr + block * (16 * PLANE) + place).to(tl.int32)
    q = ((words >> (k // PLANE * 4)) & 15).to(tl.float32)
    group = k // GROUP
    pairs = tl.load(scale_ptr + (block * (TILE // GROUP) + group) * 16 + row % 16)
    scale = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    minimum = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    values = (q * scale + minimum).to(out_ptr.dtype.element_ty)
    where = tile * TILE + k
    tl.store(out_ptr + token * K + where, values, mask=where < K)


def embedding(ids: torch.Tensor, table: CudaWeight) -> torch.Tensor:
    """See `kernels.embedding`; bf16 [T, K]. Ids must lie in the table."""
    expect("ids", ids, [None], [torch.int32, torch.int64])
    columns = table.columns
    out = torch.empty(len(ids), columns, dtype=torch.bfloat16, device=ids.device)
    if table.kind == "int4":
        assert table.scale is not None
        tiles = table.data.shape[1]
        _int4_rows_kernel[(len(ids), tiles)](
            ids, table.data, table.scale, out, columns, tiles, table.group, table.plane,
            num_warps=2, **overlap_options(),
        )  # fmt: skip
        return out
    block = 1024
    scale = table.scale if table.scale is not None else table.data
    _rows_kernel[(len(ids), triton.cdiv(columns, block))](
        ids, table.data, scale, out, columns, max(1, table.group), table.rows, block,
        table.scale is not None, num_warps=4, **overlap_options(),
    )  # fmt: skip
    return out
