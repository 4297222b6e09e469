"""Decode attention: the KV of one sequence and KV head, shared out to several programs."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


# The stride changes with the longest table of a plan: no reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, parts_ptr, stats_ptr, tickets_ptr, out_ptr,
    table_stride, scale, NUM_KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All query heads of one KV head (rows, padded to ROWS) over one split of the KV.

    `scale` includes log2(e). The last program of a (sequence, KV head) to finish merges
    the splits in order. Tickets are 0 on entry and on exit.
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
    # Whole groups of 16 tokens, so that no split starts inside a small block.
    share = tl.cdiv(tl.cdiv(context, 16), SPLITS) * 16
    begin = split * share
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
        block = tl.load(table + token // BLOCK_SIZE, mask=ok, other=0).to(tl.int64)
        row = (block * NUM_KV + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
        at = row[:, None] * D + d[None, :]
        tile_ok = ok[:, None] & in_d[None, :]
        k = tl.load(k_ptr + at, mask=tile_ok, other=0.0)
        v = tl.load(v_ptr + at, mask=tile_ok, other=0.0)
        scores = tl.dot(q, tl.trans(k).to(q.dtype), input_precision="ieee") * scale
        scores = tl.where(ok[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(top - new_top)
        p = tl.exp2(scores - new_top[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision="ieee")
        top = new_top
    if PDL:
        gdc_launch_dependents()
    if SPLITS == 1:
        # A sequence without context is padding of the batch; its rows are zero.
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        at = out_ptr + (head + rows)[:, None] * D + d[None, :]
        tl.store(at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
    else:
        pair = sequence * NUM_KV + kv_head
        parts = parts_ptr + pair.to(tl.int64) * (SPLITS * GROUP * D)
        stats = stats_ptr + pair.to(tl.int64) * (SPLITS * GROUP * 2)
        mine = split * GROUP + rows
        tl.store(stats + mine * 2, top, mask=rows < GROUP)
        tl.store(stats + mine * 2 + 1, total, mask=rows < GROUP)
        tl.store(parts + mine[:, None] * D + d[None, :], acc, mask=row_ok)
        tl.debug_barrier()
        if tl.atomic_add(tickets_ptr + pair, 1, sem="acq_rel") == SPLITS - 1:
            _merge(
                parts, stats, out_ptr + (head + rows)[:, None] * D + d[None, :], rows, d, row_ok,
                GROUP, ROWS, D, DP, SPLITS,
            )  # fmt: skip
            tl.store(tickets_ptr + pair, 0)


@triton.jit
def _merge(
    parts, stats, out_at, rows, d, row_ok, GROUP: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    for split in tl.static_range(SPLITS):
        row = split * GROUP + rows
        stat = stats + row * 2
        part_top = tl.load(stat, mask=rows < GROUP, other=-float("inf"), cache_modifier=".cg")
        part_total = tl.load(stat + 1, mask=rows < GROUP, other=0.0, cache_modifier=".cg")
        at = parts + row[:, None] * D + d[None, :]
        part = tl.load(at, mask=row_ok, other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, part_top)
        # Before the first split that isn't empty both are -inf, and 0 serves as well.
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        old_weight = tl.exp2(top - base)
        weight = tl.exp2(part_top - base)
        total = total * old_weight + part_total * weight
        acc = acc * old_weight[:, None] + part * weight[:, None]
        top = new_top
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_at, out.to(out_at.dtype.element_ty), mask=row_ok)
