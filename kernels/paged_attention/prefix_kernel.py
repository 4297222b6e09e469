"""Decode attention over a prefix that several sequences share: its KV is read once a tile.

A tile's queries, of some sequences and all query heads of one KV head, make one matrix.
What comes out are softmax states, which `decode_kernel` merges with those of each
sequence's own KV, by their largest scores and sums.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.paged_attention.tile import attend_tile


@triton.jit(do_not_specialize=["table_stride"])
def prefix_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, tile_rows_ptr, tile_lens_ptr,
    parts_ptr, stats_ptr, table_stride, scale, NUM_KV: tl.constexpr, GROUP: tl.constexpr,
    GROUP_P: tl.constexpr, SEQUENCES: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, QUANTIZED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """SEQUENCES rows of the batch by GROUP heads over one split of their shared prefix.

    Rows of the matrix are sequence * GROUP_P + head. `scale` includes log2(e). States go
    to parts [B, NUM_KV, SPLITS, GROUP, D] and stats [B, NUM_KV, SPLITS, GROUP, 2].
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if PDL:
        gdc_wait()
    length = tl.load(tile_lens_ptr + tile)
    # Tiles that aren't used are as many as their number is fixed.
    if length > 0:
        r = tl.arange(0, SEQUENCES * GROUP_P)
        head = r % GROUP_P
        sequence = tl.load(tile_rows_ptr + tile * SEQUENCES + r // GROUP_P)
        rows_ok = (sequence >= 0) & (head < GROUP)
        d = tl.arange(0, DP)
        in_d = d < D
        row_ok = rows_ok[:, None] & in_d[None, :]
        pair = sequence.to(tl.int64) * NUM_KV + kv_head
        q_row = pair * GROUP + head
        q = tl.load(q_ptr + q_row[:, None] * D + d[None, :], mask=row_ok, other=0.0)
        table = tables_ptr + tl.load(tile_rows_ptr + tile * SEQUENCES).to(tl.int64) * table_stride
        share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
        begin = split * share
        end = tl.minimum(begin + share, length)
        n = tl.arange(0, TILE)
        top = tl.full([SEQUENCES * GROUP_P], -float("inf"), tl.float32)
        total = tl.zeros([SEQUENCES * GROUP_P], tl.float32)
        acc = tl.zeros([SEQUENCES * GROUP_P, DP], tl.float32)
        for start in range(begin, end, TILE):
            token = start + n
            ok = token < end
            acc, top, total = attend_tile(
                q, acc, top, total, token, ok, ok[None, :], k_ptr, v_ptr, k_scale_ptr,
                v_scale_ptr, table, kv_head, d, in_d, scale, NUM_KV, BLOCK_SIZE, D, True,
                QUANTIZED,
            )  # fmt: skip
        part = (pair * SPLITS + split) * GROUP + head
        tl.store(stats_ptr + part * 2, top, mask=rows_ok)
        tl.store(stats_ptr + part * 2 + 1, total, mask=rows_ok)
        tl.store(parts_ptr + part[:, None] * D + d[None, :], acc, mask=row_ok)
