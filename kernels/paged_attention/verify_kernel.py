"""Attention of a few queries a sequence, drafts to be checked, with the KV shared out."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.paged_attention.tile import attend_tile, fold_parts


# The stride changes with the longest table of a plan: no reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def verify_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, starts_ptr, lens_ptr, parts_ptr,
    stats_ptr, tickets_ptr, out_ptr, table_stride, scale, NUM_KV: tl.constexpr,
    GROUP: tl.constexpr, GROUP_P: tl.constexpr, QUERIES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    QUANTIZED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Up to QUERIES tokens of one sequence by GROUP heads of one KV head, over one split.

    Rows of the matrix are query * GROUP_P + head. `scale` includes log2(e). As in
    `decode_kernel`, the last program of a (sequence, KV head) to finish merges the splits.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if PDL:
        gdc_wait()
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if num_queries > 0:
        context = tl.load(lens_ptr + sequence)
        rows = tl.arange(0, QUERIES * GROUP_P)
        query = rows // GROUP_P
        head = rows % GROUP_P
        rows_ok = (query < num_queries) & (head < GROUP)
        position = context - num_queries + query
        d = tl.arange(0, DP)
        in_d = d < D
        row_ok = rows_ok[:, None] & in_d[None, :]
        q_row = ((first_row + query).to(tl.int64) * NUM_KV + kv_head) * GROUP + head
        at = q_row[:, None] * D + d[None, :]
        q = tl.load(q_ptr + at, mask=row_ok, other=0.0)
        table = tables_ptr + sequence.to(tl.int64) * table_stride
        # Whole groups of 16 tokens, so that no split starts inside a small block.
        share = tl.cdiv(tl.cdiv(context, 16), SPLITS) * 16
        begin = split * share
        end = tl.minimum(begin + share, context)
        n = tl.arange(0, TILE)
        top = tl.full([QUERIES * GROUP_P], -float("inf"), tl.float32)
        total = tl.zeros([QUERIES * GROUP_P], tl.float32)
        acc = tl.zeros([QUERIES * GROUP_P, DP], tl.float32)
        for start in range(begin, end, TILE):
            token = start + n
            ok = token < end
            visible = ok[None, :] & (token[None, :] <= position[:, None])
            acc, top, total = attend_tile(
                q, acc, top, total, token, ok, visible, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
                table, kv_head, d, in_d, scale, NUM_KV, BLOCK_SIZE, D, True, QUANTIZED,
            )  # fmt: skip
        pair = (sequence * NUM_KV + kv_head).to(tl.int64)
        # States lie by query and head, without the padding of GROUP_P.
        state = query * GROUP + head
        parts = parts_ptr + pair * (SPLITS * QUERIES * GROUP * D)
        stats = stats_ptr + pair * (SPLITS * QUERIES * GROUP * 2)
        mine = split * (QUERIES * GROUP) + state
        tl.store(stats + mine * 2, top, mask=rows_ok)
        tl.store(stats + mine * 2 + 1, total, mask=rows_ok)
        tl.store(parts + mine[:, None] * D + d[None, :], acc, mask=row_ok)
        tl.debug_barrier()
        if tl.atomic_add(tickets_ptr + pair, 1, sem="acq_rel") == SPLITS - 1:
            top = tl.full([QUERIES * GROUP_P], -float("inf"), tl.float32)
            total = tl.zeros([QUERIES * GROUP_P], tl.float32)
            acc = tl.zeros([QUERIES * GROUP_P, DP], tl.float32)
            acc, top, total = fold_parts(
                acc, top, total, parts, stats, state, d, rows_ok, in_d, QUERIES * GROUP, D, SPLITS
            )
            out = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
            tl.store(tickets_ptr + pair, 0)
