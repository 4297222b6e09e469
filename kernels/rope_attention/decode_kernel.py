"""One decode step's rotation, KV write and attention in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.paged_attention.tile import fold_parts


@triton.jit
def _rotated(at, row_ok, d, cos, sin, D: tl.constexpr):
    """Heads [rows, DP] at pointers `at` to their first element, rotated, float32."""
    partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
    sign = tl.where(d < D // 2, -1.0, 1.0)
    own = tl.load(at + d[None, :], mask=row_ok, other=0.0).to(tl.float32)
    other = tl.load(at + partner[None, :], mask=row_ok, other=0.0).to(tl.float32)
    return own * cos[None, :] + sign[None, :] * other * sin[None, :]


@triton.jit
def _load_tile(
    k_ptr, v_ptr, table, token, ok, kv_head, d, in_d, NUM_KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """K and V [TILE, DP] of tokens of one sequence."""
    block = tl.load(table + token // BLOCK_SIZE, mask=ok, other=0).to(tl.int64)
    row = (block * NUM_KV + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
    at = row[:, None] * D + d[None, :]
    tile_ok = ok[:, None] & in_d[None, :]
    k = tl.load(k_ptr + at, mask=tile_ok, other=0.0)
    v = tl.load(v_ptr + at, mask=tile_ok, other=0.0)
    return k, v


@triton.jit
def _add_tile(q, k, v, ok, acc, top, total, scale):
    """A tile into the running softmax; one without a visible token changes nothing."""
    scores = tl.dot(q, tl.trans(k).to(q.dtype), input_precision="ieee") * scale
    scores = tl.where(ok[None, :], scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # Before the first visible token both are -inf, and 0 serves as well.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    shrink = tl.exp2(top - base)
    p = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision="ieee")
    return acc, new_top, total


# The strides change with the longest table of a plan: no reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def rope_decode_kernel(
    qkv_ptr, rope_ptr, positions_ptr, k_ptr, v_ptr, slots_ptr, tables_ptr, lens_ptr, parts_ptr,
    stats_ptr, tickets_ptr, out_ptr, qkv_stride, table_stride, scale, NUM_KV: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """All query heads of one KV head (rows, padded to ROWS) over one split of the KV.

    As `kernels.paged_attention.decode_kernel`, but that the step's own token comes from
    qkv: the program whose split it ends rotates its k, writes it with v to the cache and
    adds it to the softmax. With EARLY the first tile of what earlier steps wrote is loaded
    before the wait for qkv, at the cost of the pipeline over tiles.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    rows = tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    in_d = d < D
    row_ok = (rows < GROUP)[:, None] & in_d[None, :]
    context = tl.load(lens_ptr + sequence)
    position = tl.load(positions_ptr + sequence).to(tl.int64)
    # Whole groups of 16 tokens, so that no split starts inside a small block.
    share = tl.cdiv(tl.cdiv(context, 16), SPLITS) * 16
    begin = split * share
    end = tl.minimum(begin + share, context)
    # Tokens of earlier steps; the last one of all is this step's.
    known = tl.minimum(end, context - 1)
    angle = rope_ptr + position * D + d % (D // 2)
    cos = tl.load(angle, mask=in_d, other=0.0)
    sin = tl.load(angle + D // 2, mask=in_d, other=0.0)
    table = tables_ptr + sequence.to(tl.int64) * table_stride
    n = tl.arange(0, TILE)
    ok = begin + n < known
    if EARLY:
        k, v = _load_tile(
            k_ptr, v_ptr, table, begin + n, ok, kv_head, d, in_d, NUM_KV, BLOCK_SIZE, D
        )
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token_at = qkv_ptr + sequence.to(tl.int64) * qkv_stride
    q_at = token_at + (kv_head * GROUP + rows)[:, None] * D
    q = _rotated(q_at, row_ok, d, cos, sin, D).to(qkv_ptr.dtype.element_ty)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    first = begin
    if EARLY:
        acc, top, total = _add_tile(q, k, v, ok, acc, top, total, scale)
        first += TILE
    for start in range(first, known, TILE):
        ok = start + n < known
        k, v = _load_tile(
            k_ptr, v_ptr, table, start + n, ok, kv_head, d, in_d, NUM_KV, BLOCK_SIZE, D
        )
        acc, top, total = _add_tile(q, k, v, ok, acc, top, total, scale)
    if (begin < context) & (end == context):
        one = tl.arange(0, 1)
        k_at = token_at + (NUM_KV * GROUP + kv_head + one)[:, None] * D
        new_k = _rotated(k_at, in_d[None, :], d, cos, sin, D).to(k_ptr.dtype.element_ty)
        v_at = k_at + NUM_KV * D + d[None, :]
        new_v = tl.load(v_at, mask=in_d[None, :], other=0.0).to(v_ptr.dtype.element_ty)
        slot = tl.load(slots_ptr + sequence).to(tl.int64)
        row = (slot // BLOCK_SIZE * NUM_KV + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        kept = (slot >= 0) & in_d[None, :]
        tl.store(k_ptr + row * D + d[None, :], new_k, mask=kept)
        tl.store(v_ptr + row * D + d[None, :], new_v, mask=kept)
        score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        new_top = tl.maximum(top, score)
        shrink = tl.exp2(top - new_top)
        p = tl.exp2(score - new_top)
        total = total * shrink + p
        acc = acc * shrink[:, None] + p[:, None] * new_v.to(tl.float32)
        top = new_top
    head = sequence.to(tl.int64) * (NUM_KV * GROUP) + kv_head * GROUP
    out_at = out_ptr + (head + rows)[:, None] * D + d[None, :]
    if SPLITS == 1:
        # A sequence without context is padding of the batch; its rows are zero.
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
    else:
        pair = (sequence * NUM_KV + kv_head).to(tl.int64)
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
            acc, top, total = fold_parts(
                acc, top, total, parts, stats, rows, d, rows < GROUP, in_d, GROUP, D, SPLITS
            )
            out = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
            tl.store(tickets_ptr + pair, 0)
