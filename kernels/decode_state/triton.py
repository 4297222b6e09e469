"""From a step's sampled tokens to the next step's inputs, on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.cuda.launch import overlap_options


@triton.jit
def _advance_kernel(
    sampled_ptr, ids_ptr, positions_ptr, sample_positions_ptr, slots_ptr, lens_ptr, limits_ptr,
    tables_ptr, out_ptr, step_ptr, table_stride, out_stride, BLOCK_SIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0)
    if PDL:
        gdc_wait()
    step = tl.load(step_ptr + row)
    token = tl.load(sampled_ptr + row)
    tl.store(out_ptr + step * out_stride + row, token)
    tl.store(step_ptr + row, step + 1)
    position = tl.load(positions_ptr + row) + 1
    # A row that has made its tokens stays where it is and writes no KV any more.
    going = position < tl.load(limits_ptr + row)
    if going:
        tl.store(ids_ptr + row, tl.maximum(token, 0))
        tl.store(positions_ptr + row, position)
        tl.store(sample_positions_ptr + row, position + 1)
        tl.store(lens_ptr + row, (position + 1).to(tl.int32))
        block = tl.load(tables_ptr + row.to(tl.int64) * table_stride + position // BLOCK_SIZE)
        tl.store(slots_ptr + row, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE)
    else:
        tl.store(slots_ptr + row, tl.full((), -1, tl.int64))


def advance(
    sampled: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    sample_positions: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    limits: torch.Tensor,
    tables: torch.Tensor,
    out: torch.Tensor,
    step: torch.Tensor,
    block_size: int,
) -> None:
    """Record `sampled` [R] in row `step` of `out` and move every row on by one token.

    Args:
        sampled: int64 [R].
        ids: int64 [R], set to `sampled`.
        positions: int64 [R], of the tokens just computed; moved on where below `limits`.
        sample_positions: int64 [R], of the tokens to be sampled next.
        slots: int64 [R], where the next tokens' KV goes; -1 for rows that are done.
        context_lens: int32 [R].
        limits: int64 [R]; a row computes no position from here on.
        tables: int32 [R, blocks].
        out: int64 [steps, R].
        step: int64 [R]; each row counts for itself.
        block_size: Tokens a block holds.
    """
    _advance_kernel[(len(sampled),)](
        sampled, ids, positions, sample_positions, slots, context_lens, limits, tables, out, step,
        tables.stride(0), out.stride(0), block_size, num_warps=1, **overlap_options(),
    )  # fmt: skip
