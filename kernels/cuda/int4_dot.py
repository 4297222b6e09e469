"""W4A16 in plain Triton: any row count, any GPU, and the interpreter."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M"])
def int4_dot_kernel(
    x_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, M, N, x_stride, out_stride, K,
    K_TILES, PLANE: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out[m, n] = x[m] . w[n] (+ bias) (+ residual) for 64 rows n and BLOCK_M rows m."""
    TILE: tl.constexpr = 4 * PLANE
    GROUPS: tl.constexpr = TILE // GROUP
    PER: tl.constexpr = 4 // GROUPS
    block = tl.program_id(0)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    sub = tl.arange(0, 4)
    place = tl.arange(0, 16 * PLANE)
    k = tl.arange(0, PLANE)
    row = tl.arange(0, 64)
    x_at = x_ptr + m.to(tl.int64)[:, None] * x_stride
    row_tile = (block * 4 + sub).to(tl.int64)
    word_at = words_ptr + (row_tile * K_TILES * (16 * PLANE))[:, None] + place[None, :]
    scale_tile = (block * 4 + row // 16).to(tl.int64)
    scale_at = scale_ptr + scale_tile * K_TILES * (GROUPS * 16) + row % 16
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    for tile in range(K_TILES):
        words = tl.load(word_at + tile * (16 * PLANE)).to(tl.int32)
        words = tl.reshape(words, [4, 2, 2, 8, 4, PLANE // 16, 2])
        words = tl.reshape(tl.permute(words, (0, 2, 3, 1, 5, 4, 6)), [64, PLANE])
        for group in tl.static_range(GROUPS):
            part = tl.zeros([BLOCK_M, 64], tl.float32)
            sums = tl.zeros([BLOCK_M], tl.float32)
            for j in tl.static_range(PER):
                column = tile * TILE + (group * PER + j) * PLANE + k
                inside = (m < M)[:, None] & (column < K)[None, :]
                x = tl.load(x_at + column[None, :], mask=inside, other=0.0)
                q = ((words >> (4 * (group * PER + j))) & 15).to(x.dtype)
                part = tl.dot(x, tl.trans(q), part, input_precision="ieee")
                sums += tl.sum(x.to(tl.float32), 1)
            pairs = tl.load(scale_at + (tile * GROUPS + group) * 16)
            scale = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            minimum = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            acc += part * scale[None, :] + sums[:, None] * minimum[None, :]
    n = block * 64 + row
    keep = (m < M)[:, None] & (n < N)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    where = m.to(tl.int64)[:, None] * out_stride + n[None, :]
    if ADD:
        acc += tl.load(residual_ptr + where, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + where, acc.to(out_ptr.dtype.element_ty), mask=keep)
