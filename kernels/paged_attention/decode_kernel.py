"""Decode attention: the KV of one sequence and KV head, shared out to several programs."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.paged_attention.tile import attend_tile, fold_parts


# The stride changes with the longest table of a plan: no reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, lens_ptr, prefix_lens_ptr,
    prefix_parts_ptr, prefix_stats_ptr, parts_ptr, stats_ptr, tickets_ptr, out_ptr, table_stride,
    scale, NUM_KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, PREFIX_SPLITS: tl.constexpr, QUANTIZED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """All query heads of one KV head (rows, padded to ROWS) over one split of the KV.

    `scale` includes log2(e). The last program of a (sequence, KV head) to finish merges
    the splits in order, after the PREFIX_SPLITS states of `prefix_kernel` if the sequence
    has a shared prefix; its own KV begins behind that. Tickets are 0 on entry and on exit.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    rows = tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    in_d = d < D
    row_ok = (rows < GROUP)[:, None] & in_d[None, :]
    if PDL:
        gdc_wait()
    context = tl.load(lens_ptr + sequence)
    first = 0
    if PREFIX_SPLITS:
        first = tl.load(prefix_lens_ptr + sequence)
    # Whole groups of 16 tokens, so that no split starts inside a small block.
    share = tl.cdiv(tl.cdiv(context - first, 16), SPLITS) * 16
    begin = first + split * share
    end = tl.minimum(begin + share, context)
    head = sequence.to(tl.int64) * (NUM_KV * GROUP) + kv_head * GROUP
    q = tl.load(q_ptr + (head + rows)[:, None] * D + d[None, :], mask=row_ok, other=0.0)
    table = tables_ptr + sequence.to(tl.int64) * table_stride
    n = tl.arange(0, TILE)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    for start in range(begin, end, TILE):
        token = start + n
        ok = token < end
        acc, top, total = attend_tile(
            q, acc, top, total, token, ok, ok[None, :], k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
            table, kv_head, d, in_d, scale, NUM_KV, BLOCK_SIZE, D, True, QUANTIZED,
        )  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    pair = (sequence * NUM_KV + kv_head).to(tl.int64)
    out_at = out_ptr + (head + rows)[:, None] * D + d[None, :]
    prefix_parts = prefix_parts_ptr
    prefix_stats = prefix_stats_ptr
    prefix_ok = (rows < GROUP) & (first > 0)
    if PREFIX_SPLITS:
        prefix_parts += pair * (PREFIX_SPLITS * GROUP * D)
        prefix_stats += pair * (PREFIX_SPLITS * GROUP * 2)
    if SPLITS == 1:
        if PREFIX_SPLITS:
            acc, top, total = fold_parts(
                acc, top, total, prefix_parts, prefix_stats, rows, d, prefix_ok, in_d, GROUP, D,
                PREFIX_SPLITS,
            )  # fmt: skip
        # A sequence without context is padding of the batch; its rows are zero.
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
    else:
        parts = parts_ptr + pair * (SPLITS * GROUP * D)
        stats = stats_ptr + pair * (SPLITS * GROUP * 2)
        mine = split * GROUP + rows
        tl.store(stats + mine * 2, top, mask=rows < GROUP)
        tl.store(stats + mine * 2 + 1, total, mask=rows < GROUP)
        tl.store(parts + mine[:, None] * D + d[None, :], acc, mask=row_ok)
        tl.debug_barrier()
        if tl.atomic_add(tickets_ptr + pair, 1, sem="acq_rel") == SPLITS - 1:
            top = tl.full([ROWS], -float("inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            acc = tl.zeros([ROWS, DP], tl.float32)
            if PREFIX_SPLITS:
                acc, top, total = fold_parts(
                    acc, top, total, prefix_parts, prefix_stats, rows, d, prefix_ok, in_d, GROUP,
                    D, PREFIX_SPLITS,
                )  # fmt: skip
            acc, top, total = fold_parts(
                acc, top, total, parts, stats, rows, d, rows < GROUP, in_d, GROUP, D, SPLITS
            )
            out = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
            tl.store(tickets_ptr + pair, 0)
