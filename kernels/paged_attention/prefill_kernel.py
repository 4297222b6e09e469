"""Attention of prefill pieces: a tile of one sequence's queries over its paged KV."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.paged_attention.tile import attend_tile


# The stride changes with the longest table of a plan: no reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, starts_ptr, lens_ptr, out_ptr,
    table_stride, scale, NUM_KV: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    TILE: tl.constexpr, QUANTIZED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """TOKENS queries by GROUP heads of one KV head; rows are token * GROUP_P + head.

    `scale` includes log2(e).
    """
    sequence = tl.program_id(2)
    kv_head = tl.program_id(1)
    # The longest tiles, at the end of the piece, start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if PDL:
        gdc_wait()
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if tile * TOKENS < num_queries:
        context = tl.load(lens_ptr + sequence)
        r = tl.arange(0, TOKENS * GROUP_P)
        local = tile * TOKENS + r // GROUP_P
        head = r % GROUP_P
        # Rows past the piece repeat its last token: no row is without a visible key.
        position = context - num_queries + tl.minimum(local, num_queries - 1)
        d = tl.arange(0, DP)
        in_d = d < D
        row_ok = ((local < num_queries) & (head < GROUP))[:, None] & in_d[None, :]
        q_row = (first_row + local).to(tl.int64) * (NUM_KV * GROUP) + kv_head * GROUP + head
        at = q_row[:, None] * D + d[None, :]
        q = tl.load(q_ptr + at, mask=row_ok, other=0.0)
        table = tables_ptr + sequence.to(tl.int64) * table_stride
        top = tl.full([TOKENS * GROUP_P], -float("inf"), tl.float32)
        total = tl.zeros([TOKENS * GROUP_P], tl.float32)
        acc = tl.zeros([TOKENS * GROUP_P, DP], tl.float32)
        n = tl.arange(0, TILE)
        first_position = context - num_queries + tile * TOKENS
        n_end = tl.minimum(first_position + TOKENS, context)
        # Tiles that every row sees whole need no mask.
        whole = (first_position + 1) // TILE * TILE
        for start in range(0, whole, TILE):
            token = start + n
            acc, top, total = attend_tile(
                q, acc, top, total, token, token < n_end, True, k_ptr, v_ptr, k_scale_ptr,
                v_scale_ptr, table, kv_head, d, in_d, scale, NUM_KV, BLOCK_SIZE, D, False,
                QUANTIZED,
            )  # fmt: skip
        for start in range(whole, n_end, TILE):
            token = start + n
            visible = token[None, :] <= position[:, None]
            acc, top, total = attend_tile(
                q, acc, top, total, token, token < n_end, visible, k_ptr, v_ptr, k_scale_ptr,
                v_scale_ptr, table, kv_head, d, in_d, scale, NUM_KV, BLOCK_SIZE, D, True,
                QUANTIZED,
            )  # fmt: skip
        out = acc / total[:, None]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=row_ok)
