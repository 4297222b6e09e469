"""Many rows of x times INT8 or FP8 rows on tensor cores, all fusions in the epilogue.

x comes rounded: to 8 bits, or for INT8 weights to 16, as two bytes that meet the weights one
after the other (256 * high + low), so that both are whole numbers and the sums exact. Or it
comes as it is, and FP8 weights are converted. The weights are the left operand, so that a
small batch is the product's narrow side. K may be split over programs; the last one of a
tile to finish adds the parts in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.byte_gemv import byte_values, load_columns


@triton.jit
def _dot(acc, weight, x, ROUNDED: tl.constexpr, DECODE: tl.constexpr, EXACT: tl.constexpr):
    """acc [BLOCK_N, BLOCK_M] += weight [BLOCK_N, BLOCK_K] times x [BLOCK_M, BLOCK_K], transposed.

    Hopper's FP8 products keep 14 bits of a sum. With EXACT each tile's goes to a float32 of its
    own, which takes twice the registers.
    """
    x = tl.trans(x)
    if not ROUNDED:
        weight = byte_values(weight, DECODE).to(x.dtype)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    elif x.dtype == tl.int8:
        acc = tl.dot(weight, x, acc, out_dtype=tl.int32)
    elif EXACT:
        acc = tl.dot(weight, x, acc, max_num_imprecise_acc=weight.shape[1])
    else:
        acc = tl.dot(weight, x, acc)
    return acc


@triton.jit
def _add_tile(
    acc, low, weight, x, x_low, scale_at, ROUNDED: tl.constexpr, PAIR: tl.constexpr,
    DECODE: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of K onto the sums; with scales by group of columns, onto the scaled sums."""
    if GROUPED:
        zeros = tl.zeros_like(low)
        part = _dot(zeros, weight, x, ROUNDED, DECODE, EXACT).to(tl.float32)
        if PAIR:
            part = 256.0 * part
            part += _dot(zeros, weight, x_low, ROUNDED, DECODE, EXACT).to(tl.float32)
        acc += part * tl.load(scale_at)[:, None]
    else:
        acc = _dot(acc, weight, x, ROUNDED, DECODE, EXACT)
        if PAIR:
            low = _dot(low, weight, x_low, ROUNDED, DECODE, EXACT)
    return acc, low


@triton.jit
def _scaled(
    acc, low, scale_at, x_scale, ROUNDED: tl.constexpr, PAIR: tl.constexpr, DECODE: tl.constexpr,
    GROUPED: tl.constexpr,
):  # fmt: skip
    """The sums of whole numbers as what they stand for, float32."""
    acc = acc.to(tl.float32)
    if not GROUPED:
        if PAIR:
            acc = 256.0 * acc + low.to(tl.float32)
        acc *= tl.load(scale_at)[:, None]
    if DECODE:
        acc *= 256.0
    if ROUNDED:
        acc *= x_scale[None, :]
    return acc


@triton.jit
def _prefetch(base, begin, K: tl.constexpr):
    """Ask the L2 for 4 lines of 128 bytes of the rows at `base` [rows, 1], from column `begin`."""
    k = tl.minimum(begin + tl.arange(0, 4) * 128, K - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(base + k[None, :]).to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def byte_dot_kernel(
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, parts_ptr,
    tickets_ptr, M, N, up_rows, all_rows, x_stride, out_stride, K: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, ROUNDED: tl.constexpr,
    PAIR: tl.constexpr, DECODE: tl.constexpr, EXACT: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADD: tl.constexpr, SWIGLU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[m, n] = x[m] . w[n] (+ bias) (+ residual), or SwiGLU of rows n and n + up_rows.

    program_id is (block of m, block of n, share of K): the blocks of m that read the same
    weights run together. scale is [K / GROUP, all_rows], and BLOCK_K divides GROUP unless it is
    K. Tickets, one int32 a tile, are 0 on entry and on exit.
    """
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    PER: tl.constexpr = (K_TILES + SPLIT - 1) // SPLIT
    WHOLE: tl.constexpr = K % BLOCK_K == 0
    GROUPED: tl.constexpr = GROUP < K
    SUM: tl.constexpr = tl.int32 if ROUNDED and x_ptr.dtype.element_ty == tl.int8 else tl.float32
    m_local = tl.arange(0, BLOCK_M)
    n_local = tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + m_local
    n = tl.program_id(1) * BLOCK_N + n_local
    # Rows past the last are read again instead of masked, and not stored.
    m_read = tl.minimum(m, M - 1)
    row = tl.minimum(n, N - 1)
    k = tl.arange(0, BLOCK_K)
    x_at = x_ptr + m_read.to(tl.int64)[:, None] * x_stride
    weight_at = weight_ptr + row.to(tl.int64)[:, None] * K
    up_at = weight_ptr + (row + up_rows).to(tl.int64)[:, None] * K
    low_at = x_at + M.to(tl.int64) * x_stride
    low = tl.zeros([BLOCK_N, BLOCK_M], SUM)
    acc = low
    if GROUPED:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up, up_low = acc, low
    begin = tl.program_id(2) * PER
    if PDL:
        # The weights do not depend on what the kernel before is doing.
        _prefetch(weight_at, begin * BLOCK_K, K)
        if SWIGLU:
            _prefetch(up_at, begin * BLOCK_K, K)
        gdc_wait()
    for tile in range(begin, tl.minimum(begin + PER, K_TILES)):
        at = tile * BLOCK_K + k
        x = load_columns(x_at, at, K, WHOLE)
        x_low = x
        if PAIR:
            x_low = load_columns(low_at, at, K, WHOLE)
        scale_at = scale_ptr + (tile * BLOCK_K // GROUP) * all_rows + row
        weight = load_columns(weight_at, at, K, WHOLE)
        acc, low = _add_tile(
            acc, low, weight, x, x_low, scale_at, ROUNDED, PAIR, DECODE, GROUPED, EXACT
        )
        if SWIGLU:
            weight = load_columns(up_at, at, K, WHOLE)
            up, up_low = _add_tile(
                up, up_low, weight, x, x_low, scale_at + up_rows, ROUNDED, PAIR, DECODE, GROUPED,
                EXACT,
            )  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    x_scale = 1.0
    if ROUNDED:
        x_scale = tl.load(x_scale_ptr + m_read)
    acc = _scaled(acc, low, scale_ptr + row, x_scale, ROUNDED, PAIR, DECODE, GROUPED)
    if SWIGLU:
        up_scale_at = scale_ptr + up_rows + row
        up = _scaled(up, up_low, up_scale_at, x_scale, ROUNDED, PAIR, DECODE, GROUPED)
    last = tl.program_id(2) >= 0
    if SPLIT > 1:
        SIZE: tl.constexpr = BLOCK_N * BLOCK_M
        COUNT: tl.constexpr = 2 if SWIGLU else 1
        tile_id = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        place = n_local[:, None] * BLOCK_M + m_local[None, :]
        part_at = parts_ptr + tile_id.to(tl.int64) * (SPLIT * COUNT * SIZE) + place
        mine = part_at + tl.program_id(2) * (COUNT * SIZE)
        tl.store(mine, acc)
        if SWIGLU:
            tl.store(mine + SIZE, up)
        tl.debug_barrier()
        last = tl.atomic_add(tickets_ptr + tile_id, 1, sem="acq_rel") == SPLIT - 1
        if last:
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            if SWIGLU:
                up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for part in range(SPLIT):
                acc += tl.load(part_at + part * (COUNT * SIZE), cache_modifier=".cg")
                if SWIGLU:
                    up += tl.load(part_at + part * (COUNT * SIZE) + SIZE, cache_modifier=".cg")
            tl.store(tickets_ptr + tile_id, 0)
    if last:
        keep = (n < N)[:, None] & (m < M)[None, :]
        if SWIGLU:
            acc = up * acc / (1.0 + tl.exp(-acc))
        if HAS_BIAS:
            acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        where = m.to(tl.int64)[None, :] * out_stride + n[:, None]
        if ADD:
            acc += tl.load(residual_ptr + where, mask=keep, other=0.0).to(tl.float32)
        tl.store(out_ptr + where, acc.to(out_ptr.dtype.element_ty), mask=keep)
