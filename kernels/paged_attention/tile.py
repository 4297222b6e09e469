"""What the attention kernels have in common: a tile of paged KV into a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl

# Four bytes to four bf16, exactly. Left to itself, the compiler moves bytes to the layout of
# the product first, one by one, and converts them there, while bf16 values move in whole
# matrices: so these instructions are said to have effects, and stay where they are.
#
# A byte's low 7 bits under the exponent of 128 are 128 + low; 128 is taken off again, or 256
# where the sign bit, which is worth -128, is set.
_FROM_INT8 = tl.constexpr("""
{
    .reg .b32 pair, value, less, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 pair, $2, 0, 0x4140;
    lop3.b32 value, pair, 0x007f007f, 0x43004300, 0xEA;
    lop3.b32 less, pair, 0x00800080, 0xC300C300, 0xEA;
    fma.rn.bf16x2 $0, value, one, less;
    prmt.b32 pair, $2, 0, 0x4342;
    lop3.b32 value, pair, 0x007f007f, 0x43004300, 0xEA;
    lop3.b32 less, pair, 0x00800080, 0xC300C300, 0xEA;
    fma.rn.bf16x2 $1, value, one, less;
}
""")
# E4M3 has four exponent bits with a bias of 7, bf16 eight with 127: the bits in their place
# are a number 2^120 too small, subnormal ones too.
_FROM_FP8 = tl.constexpr("""
{
    .reg .b32 pair, value, factor, nothing;
    mov.b32 factor, 0x7b807b80;
    mov.b32 nothing, 0x80008000;
    prmt.b32 pair, $2, 0, 0x1404;
    shr.b32 value, pair, 4;
    and.b32 value, value, 0x07f007f0;
    lop3.b32 value, pair, 0x80008000, value, 0xEA;
    fma.rn.bf16x2 $0, value, factor, nothing;
    prmt.b32 pair, $2, 0, 0x3424;
    shr.b32 value, pair, 4;
    and.b32 value, value, 0x07f007f0;
    lop3.b32 value, pair, 0x80008000, value, 0xEA;
    fma.rn.bf16x2 $1, value, factor, nothing;
}
""")


@triton.jit
def widen(values, dtype: tl.constexpr):
    """Values of the cache in the dtype of the products; 8-bit ones without their scale."""
    if dtype == tl.bfloat16 and values.dtype == tl.int8:
        wide = tl.inline_asm_elementwise(
            _FROM_INT8, "=r,=r,r", [values], dtype=tl.bfloat16, is_pure=False, pack=4
        )
    elif dtype == tl.bfloat16 and values.dtype == tl.float8e4nv:
        wide = tl.inline_asm_elementwise(
            _FROM_FP8, "=r,=r,r", [values.to(tl.int8, bitcast=True)], dtype=tl.bfloat16,
            is_pure=False, pack=4,
        )  # fmt: skip
    else:
        wide = values.to(dtype)
    return wide


@triton.jit
def attend_tile(
    q, acc, top, total, token, ok, visible, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table, kv_head,
    d, in_d, scale, NUM_KV: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
    MASKED: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """One tile of KV tokens into the softmax state (acc, top, total) of q's rows.

    Tokens that aren't `ok` are not read. `visible` (used if MASKED) says which scores
    count. 8-bit values enter the products as they are; the scale of a token's K goes onto
    its scores, that of its V onto its weight.
    """
    block = tl.load(table + token // BLOCK_SIZE, mask=ok, other=0).to(tl.int64)
    row = (block * NUM_KV + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
    at = row[:, None] * D + d[None, :]
    tile_ok = ok[:, None] & in_d[None, :]
    k = tl.load(k_ptr + at, mask=tile_ok, other=0.0)
    v = tl.load(v_ptr + at, mask=tile_ok, other=0.0)
    scores = tl.dot(q, tl.trans(widen(k, q.dtype)), input_precision="ieee") * scale
    if QUANTIZED:
        scores *= tl.load(k_scale_ptr + row, mask=ok, other=0.0)[None, :]
    if MASKED:
        scores = tl.where(visible, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet: both are -inf, and 0 serves as well.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    shrink = tl.exp2(top - base)
    p = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(p, 1)
    if QUANTIZED:
        p *= tl.load(v_scale_ptr + row, mask=ok, other=0.0)[None, :]
    acc = tl.dot(p.to(q.dtype), widen(v, q.dtype), acc * shrink[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def fold_parts(
    acc, top, total, parts, stats, rows, d, rows_ok, in_d, GROUP: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Fold the states that SPLITS programs left in `parts` and `stats`, in order.

    parts: float32 [SPLITS, GROUP, D]; stats: float32 [SPLITS, GROUP, 2], largest score
    and sum. Rows that aren't `rows_ok` are not read and stay as they are.
    """
    for split in tl.static_range(SPLITS):
        row = split * GROUP + rows
        stat = stats + row * 2
        part_top = tl.load(stat, mask=rows_ok, other=-float("inf"), cache_modifier=".cg")
        part_total = tl.load(stat + 1, mask=rows_ok, other=0.0, cache_modifier=".cg")
        at = parts + row[:, None] * D + d[None, :]
        part_ok = rows_ok[:, None] & in_d[None, :]
        part = tl.load(at, mask=part_ok, other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, part_top)
        # Before the first part that isn't empty both are -inf, and 0 serves as well.
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        old_weight = tl.exp2(top - base)
        weight = tl.exp2(part_top - base)
        total = total * old_weight + part_total * weight
        acc = acc * old_weight[:, None] + part * weight[:, None]
        top = new_top
    return acc, top, total
