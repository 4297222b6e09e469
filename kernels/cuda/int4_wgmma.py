# Gluon has tuples but no unpacking in displays.
# ruff: noqa: RUF005
"""W4A16 for a batch of rows, in Gluon for Hopper: dequantised weights are wgmma's A registers.

64 weight rows are the M side of a warpgroup's product and the batch is its N side, so a
batch of 8 to 128 wastes nothing, x is read from shared memory once a warpgroup, and the
words go from memory into the operand registers without passing through shared memory.
K is split over programs; the last program of a row block to finish adds up the parts in
a fixed order, so there is no second launch and no order that depends on timing.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.int4_gemv import plane_values, scale_halves


@gluon.jit
def _plane_operand(
    words, P: gl.constexpr, PLANE: gl.constexpr, GROUPS: gl.constexpr, A: gl.constexpr
):
    """Plane P of words [4 * GROUPS, 16 * PLANE] as [64 * GROUPS, PLANE], in registers only."""
    values = plane_values(words, P)
    values = gl.reshape(values, [4 * GROUPS, 2, 2, 8, 4, PLANE // 16, 2])
    values = gl.permute(values, [0, 2, 3, 1, 5, 4, 6])
    return gl.convert_layout(gl.reshape(values, [64 * GROUPS, PLANE]), A)


@gluon.jit
def _stage_x(
    x_ptr, x_smem, tile, end, m_rows, x_stride, K: gl.constexpr, CHUNK: gl.constexpr,
    PLANE: gl.constexpr, MT: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Put x of CHUNK K tiles into shared memory, a row per (plane, m)."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PLANE, PLANE // 8], [4 * GROUPS, 1], [1, 0])
    row = gl.arange(0, 4 * MT, layout=gl.SliceLayout(1, L))
    k = gl.arange(0, PLANE, layout=gl.SliceLayout(0, L))
    m = gl.expand_dims(row % MT, 1)
    columns = gl.expand_dims((row // MT) * PLANE, 1) + gl.expand_dims(k, 0)
    for c in gl.static_range(CHUNK):
        col = columns + (tile + c) * (4 * PLANE)
        inside = (col < K) & (m < m_rows) & (tile + c < end)
        x = gl.load(x_ptr + m.to(gl.int64) * x_stride + col, mask=inside, other=0.0)
        x_smem.index(c).store(x)


@gluon.jit
def _sum_x(
    x_smem, sums_smem, CHUNK: gl.constexpr, PLANE: gl.constexpr, MT: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """The sum of every staged row, as a product with ones: cheaper than adding up lanes."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4 * GROUPS, 1], [16, 8])
    ones = gl.full([PLANE, 8], 1.0, gl.bfloat16, layout=gl.DotOperandLayout(1, MMA, 2))
    for c in gl.static_range(CHUNK):
        rows = x_smem.index(c).load(gl.DotOperandLayout(0, MMA, 2))
        total = mma_v2(rows, ones, gl.zeros([4 * MT, 8], gl.float32, layout=MMA))
        sums_smem.index(c).store(gl.sum(total, 1) * 0.125)


@gluon.jit
def _tile_product(
    acc, words, scale_at, tile, x_smem, sums_smem, PLANE: gl.constexpr, GT: gl.constexpr,
    MT: gl.constexpr, GROUPS: gl.constexpr, ACC: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """acc [64 * GROUPS, MT] += the dequantised tile times x."""
    PER: gl.constexpr = 4 // GT
    for g in gl.static_range(GT):
        pairs = gl.load(scale_at + tile * (GT * 16) + g * 16)
        part = gl.zeros([64 * GROUPS, MT], gl.float32, layout=ACC)
        sums = gl.zeros([MT], gl.float32, layout=gl.SliceLayout(0, ACC))
        for j in gl.static_range(PER):
            a = _plane_operand(words, g * PER + j, PLANE, GROUPS, A)
            b = x_smem.slice((g * PER + j) * MT, MT, dim=0).permute((1, 0))
            part = warpgroup_mma(a, b, part, use_acc=j > 0, is_async=True)
            sums += sums_smem.slice((g * PER + j) * MT, MT, dim=0).load(gl.SliceLayout(0, ACC))
        part = warpgroup_mma_wait(0, deps=[part])
        scale, minimum = scale_halves(pairs)
        acc += gl.expand_dims(scale, 1) * part
        acc += gl.expand_dims(minimum - 128.0 * scale, 1) * gl.expand_dims(sums, 0)
    return acc


@gluon.jit
def int4_wgmma_kernel(
    x_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, parts_ptr, tickets_ptr, M, N,
    row_tiles, up_tiles, x_stride, out_stride, K: gl.constexpr, K_TILES: gl.constexpr,
    PLANE: gl.constexpr, GT: gl.constexpr, MT: gl.constexpr, CHUNK: gl.constexpr,
    SPLIT: gl.constexpr, DEPTH: gl.constexpr, GROUPS: gl.constexpr, HAS_BIAS: gl.constexpr,
    ADD: gl.constexpr, SWIGLU: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """out[m, n] = x[m] . w[n] (+ bias) (+ residual), or SwiGLU of two row blocks.

    program_id(0) is the block of 64 rows a warpgroup, program_id(1) the share of K. With
    SWIGLU there are two warpgroups: gate rows, and the up rows `up_tiles` row tiles later.
    Tickets, one int32 a row block, are 0 on entry and on exit.
    """
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4 * GROUPS, 1], [16, MT, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    WORDS: gl.constexpr = gl.BlockedLayout([1, PLANE // 8], [1, 32], [4 * GROUPS, 1], [1, 0])
    XS: gl.constexpr = gl.NVMMASharedLayout(PLANE * 2, 16, 2)
    SS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PER: gl.constexpr = (K_TILES + SPLIT - 1) // SPLIT
    ROWS: gl.constexpr = 64 * GROUPS

    block = gl.program_id(0)
    split = gl.program_id(1)
    begin = split * PER
    end = gl.minimum(begin + PER, K_TILES)
    sub = gl.arange(0, 4 * GROUPS, layout=gl.SliceLayout(1, WORDS))
    place = gl.arange(0, 16 * PLANE, layout=gl.SliceLayout(0, WORDS))
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ACC))
    if SWIGLU:
        row_tile = block * 4 + sub % 4 + sub // 4 * up_tiles
        scale_tile = block * 4 + row // 16 % 4 + row // 64 * up_tiles
    else:
        row_tile = block * (4 * GROUPS) + sub
        scale_tile = block * (4 * GROUPS) + row // 16
    # A block past the last row tile reads that tile again and stores nothing.
    row_tile = gl.minimum(row_tile, row_tiles - 1).to(gl.int64)
    scale_tile = gl.minimum(scale_tile, row_tiles - 1).to(gl.int64)
    word_at = words_ptr + gl.expand_dims(row_tile * (K_TILES * 16 * PLANE), 1)
    word_at = word_at + gl.expand_dims(place, 0)
    scale_at = scale_ptr + scale_tile * (K_TILES * GT * 16) + row % 16

    ring = ()
    for d in gl.static_range(DEPTH):
        at = word_at + (begin + d) * (16 * PLANE)
        ring = ring + (gl.load(at, mask=begin + d < end),)
    if PDL:
        gdc_wait()
    x_smem = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, 4 * MT, PLANE], XS)
    sums_smem = gl.allocate_shared_memory(gl.float32, [CHUNK, 4 * MT], SS)
    acc = gl.zeros([ROWS, MT], gl.float32, layout=ACC)
    for tile in range(begin, end, CHUNK):
        gl.thread_barrier()
        _stage_x(x_ptr, x_smem, tile, end, M, x_stride, K, CHUNK, PLANE, MT, GROUPS)
        fence_async_shared()
        gl.thread_barrier()
        _sum_x(x_smem, sums_smem, CHUNK, PLANE, MT, GROUPS)
        gl.thread_barrier()
        for c in gl.static_range(CHUNK):
            words = ring[0]
            at = word_at + (tile + c + DEPTH) * (16 * PLANE)
            ring = ring[1:] + (gl.load(at, mask=tile + c + DEPTH < end),)
            # Tiles past the end are staged as zeros, so any scale will do for them.
            acc = _tile_product(
                acc, words, scale_at, gl.minimum(tile + c, end - 1), x_smem.index(c),
                sums_smem.index(c), PLANE, GT, MT, GROUPS, ACC, A,
            )  # fmt: skip
    if PDL:
        gdc_launch_dependents()

    last = block >= 0
    if SPLIT > 1:
        m_acc = gl.arange(0, MT, layout=gl.SliceLayout(0, ACC))
        part_at = parts_ptr + (block * SPLIT).to(gl.int64) * (ROWS * MT)
        part_at = part_at + gl.expand_dims(row * MT, 1) + gl.expand_dims(m_acc, 0)
        gl.store(part_at + split * (ROWS * MT), acc)
        gl.thread_barrier()
        last = gl.atomic_add(tickets_ptr + block, 1, sem="acq_rel") == SPLIT - 1
        if last:
            acc = gl.zeros([ROWS, MT], gl.float32, layout=ACC)
            for s in range(SPLIT):
                acc += gl.load(part_at + s * (ROWS * MT), cache_modifier=".cg")
            gl.store(tickets_ptr + block, 0)
    if last:
        if SWIGLU:
            P: gl.constexpr = gl.BlockedLayout([2, 1, 2], [32, 1, 1], [1, 8, 1], [2, 0, 1])
            both = gl.permute(gl.reshape(acc, [2, 64, MT]), [1, 2, 0])
            gate, up = gl.split(gl.convert_layout(both, P))
            total = up * gate / (1.0 + gl.exp(-gate))
            OUT: gl.constexpr = gl.SliceLayout(2, P)
            first = block * 64
            N_LOCAL: gl.constexpr = 64
        else:
            OUT: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4 * GROUPS], [0, 1])
            total = gl.convert_layout(acc, OUT)
            first = block * ROWS
            N_LOCAL: gl.constexpr = ROWS
        n = first + gl.arange(0, N_LOCAL, layout=gl.SliceLayout(1, OUT))
        m = gl.expand_dims(gl.arange(0, MT, layout=gl.SliceLayout(0, OUT)), 0)
        keep = gl.expand_dims(n < N, 1) & (m < M)
        if HAS_BIAS:
            bias = gl.load(bias_ptr + n, mask=n < N, other=0.0).to(gl.float32)
            total += gl.expand_dims(bias, 1)
        where = m.to(gl.int64) * out_stride + gl.expand_dims(n, 1)
        if ADD:
            total += gl.load(residual_ptr + where, mask=keep, other=0.0).to(gl.float32)
        gl.store(out_ptr + where, total.to(out_ptr.dtype.element_ty), mask=keep)
