# Gluon has tuples but no unpacking in displays.
# ruff: noqa: RUF005
"""W4A16 for a batch of rows, in Gluon for Hopper: dequantised weights are wgmma's A registers.

64 weight rows are the M side of a warpgroup's product and the batch is its N side, so a
batch of 8 to 128 wastes nothing, x is read from shared memory once a warpgroup, and the
words go from memory into the operand registers without passing through shared memory.
They are rounded to bf16, as in the dense copy that larger batches multiply with.
K is split over programs; the last program of a row block to finish adds up the parts in
a fixed order, so there is no second launch and no order that depends on timing.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.gluon_names import thread_barrier
from kernels.cuda.int4_gemv import keep_order


@gluon.jit
def _bf16_pairs(pairs):
    """Scale and minimum of packed pairs, each rounded to bf16 and doubled in an int32."""
    return gl.inline_asm_elementwise(
        "{.reg .b16 s, m; .reg .f32 fs, fm; mov.b32 {s, m}, $2; cvt.f32.f16 fs, s; "
        "cvt.f32.f16 fm, m; cvt.rn.bf16x2.f32 $0, fs, fs; cvt.rn.bf16x2.f32 $1, fm, fm;}",
        "=r,=r,r",
        [pairs],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def _plane_operand(
    words, scale, minimum, P: gl.constexpr, PLANE: gl.constexpr, GROUPS: gl.constexpr,
    A: gl.constexpr,
):  # fmt: skip
    """Plane P as bf16 weights [64 * GROUPS, PLANE], without leaving the lane's registers.

    128 + q - 128 is exact, and the product and sum round once.
    """
    shifted = words >> (4 * P)
    low, high = gl.inline_asm_elementwise(
        "{.reg .b32 t, one, low; mov.b32 one, 0x3f803f80; mov.b32 low, 0xc300c300; "
        "lop3.b32 t, $2, 0x000f000f, 0x43004300, 0xEA; fma.rn.bf16x2 t, t, one, low; "
        "fma.rn.bf16x2 t, t, $3, $4; mov.b32 {$0, $1}, t;}",
        "=h,=h,r,r,r",
        [shifted, scale, minimum],
        dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=1,
    )
    values = gl.reshape(gl.join(low, high), [4 * GROUPS, 2, 2, 8, 4, PLANE // 16, 2])
    values = gl.permute(values, [0, 2, 3, 1, 5, 4, 6])
    return gl.convert_layout(gl.reshape(values, [64 * GROUPS, PLANE]), A)


@gluon.jit
def _copy_x(
    x_ptr, buffer, tile, end, num_tokens, x_stride, K: gl.constexpr, PLANE: gl.constexpr,
    MT: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Start copying x of one K tile to shared memory, a row per (plane, m); zeros outside."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PLANE, PLANE // 8], [4 * GROUPS, 1], [1, 0])
    row = gl.arange(0, 4 * MT, layout=gl.SliceLayout(1, L))
    k = gl.arange(0, PLANE, layout=gl.SliceLayout(0, L))
    m = gl.expand_dims(row % MT, 1)
    col = gl.expand_dims((row // MT) * PLANE, 1) + gl.expand_dims(k, 0) + tile * (4 * PLANE)
    inside = (col < K) & (m < num_tokens) & (tile < end)
    # Rows past the last are clamped, so that no address leaves the tensor.
    at = x_ptr + gl.minimum(m, num_tokens - 1).to(gl.int64) * x_stride + col
    async_copy.async_copy_global_to_shared(buffer, at, mask=inside)
    async_copy.commit_group()


@gluon.jit
def _load_tile(word_at, scale_at, tile, end, PLANE: gl.constexpr, GT: gl.constexpr):
    """Words and packed scale pairs of one K tile.

    Past the end they are those of the last tile: x is 0 there, and 0 times a finite
    weight is 0.
    """
    tile = gl.minimum(tile, end - 1)
    words = gl.load(word_at + tile * (8 * PLANE))
    pairs = ()
    for g in gl.static_range(GT):
        pairs = pairs + (gl.load(scale_at + (tile * GT + g) * 16),)
    return words, pairs


@gluon.jit
def _tile_product(
    acc, words, pairs, x_smem, PLANE: gl.constexpr, GT: gl.constexpr, MT: gl.constexpr,
    GROUPS: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """acc [64 * GROUPS, MT] += the dequantised tile times x."""
    PER: gl.constexpr = 4 // GT
    for g in gl.static_range(GT):
        scale, minimum = _bf16_pairs(pairs[g])
        scale, _ = gl.broadcast(scale, words)
        minimum, _ = gl.broadcast(minimum, words)
        for j in gl.static_range(PER):
            a = _plane_operand(words, scale, minimum, g * PER + j, PLANE, GROUPS, A)
            b = x_smem.slice((g * PER + j) * MT, MT, dim=0).permute((1, 0))
            acc = warpgroup_mma(a, b, acc, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit(do_not_specialize=["M"])
def int4_wgmma_kernel(
    x_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, parts_ptr, tickets_ptr, M, N,
    row_tiles, up_tiles, x_stride, out_stride, K: gl.constexpr, K_TILES: gl.constexpr,
    PLANE: gl.constexpr, GT: gl.constexpr, MT: gl.constexpr, STAGES: gl.constexpr,
    SPLIT: gl.constexpr, DEPTH: gl.constexpr, GROUPS: gl.constexpr, HAS_BIAS: gl.constexpr,
    ADD: gl.constexpr, SWIGLU: gl.constexpr, TRIGGER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """out[m, n] = x[m] . w[n] (+ bias) (+ residual), or SwiGLU of two row blocks.

    program_id(0) is the block of 64 rows a warpgroup, program_id(1) the share of K. With
    SWIGLU there are two warpgroups: gate rows, and the up rows `up_tiles` row tiles later.
    Tickets, one int32 a row block, are 0 on entry and on exit. The next launch may start
    once x is under way (TRIGGER 0) or after the products (1).
    """
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4 * GROUPS, 1], [16, MT, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    # [row tile, K half, row half, lane, words of a lane]
    V: gl.constexpr = PLANE // 16
    WORDS: gl.constexpr = gl.BlockedLayout(
        [1, 1, 1, 1, V], [1, 1, 1, 32, 1], [4 * GROUPS, 1, 1, 1, 1], [4, 3, 2, 1, 0]
    )
    XS: gl.constexpr = gl.NVMMASharedLayout(PLANE * 2, 16, 2)
    PER: gl.constexpr = (K_TILES + SPLIT - 1) // SPLIT
    ROWS: gl.constexpr = 64 * GROUPS

    block = gl.program_id(0)
    split = gl.program_id(1)
    begin = split * PER
    end = gl.minimum(begin + PER, K_TILES)
    S: gl.constexpr = gl.SliceLayout
    sub = gl.arange(0, 4 * GROUPS, layout=S(1, S(2, S(3, S(4, WORDS)))))
    sub = sub[:, None, None, None, None]
    k_half = gl.arange(0, 2, layout=S(0, S(2, S(3, S(4, WORDS)))))[None, :, None, None, None]
    row_half = gl.arange(0, 2, layout=S(0, S(1, S(3, S(4, WORDS)))))[None, None, :, None, None]
    lane = gl.arange(0, 32, layout=S(0, S(1, S(2, S(4, WORDS)))))[None, None, None, :, None]
    word = gl.arange(0, V, layout=S(0, S(1, S(2, S(3, WORDS)))))[None, None, None, None, :]
    row_tile = block * (4 * GROUPS) + sub
    if SWIGLU:
        row_tile = block * 4 + sub % 4 + sub // 4 * up_tiles
    # A block past the last row tile reads that tile again and stores nothing.
    row_tile = gl.minimum(row_tile, row_tiles - 1).to(gl.int64)
    place = k_half * (64 * V) + row_half * (32 * V) + lane * V + word
    word_at = words_ptr + row_tile * (K_TILES * 8 * PLANE) + place
    scale_at = scale_ptr + row_tile * (K_TILES * GT * 16) + row_half * 8 + lane // 4

    ring = ()
    for d in gl.static_range(DEPTH):
        ring = ring + (_load_tile(word_at, scale_at, begin + d, end, PLANE, GT),)
    if PDL:
        gdc_wait()
    x_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 4 * MT, PLANE], XS)
    for stage in gl.static_range(STAGES - 1):
        _copy_x(x_ptr, x_smem.index(stage), begin + stage, end, M, x_stride, K, PLANE, MT, GROUPS)
    if PDL and TRIGGER == 0:
        gdc_launch_dependents()
    acc = gl.zeros([ROWS, MT], gl.float32, layout=ACC)
    for tile in range(begin, end, DEPTH):
        # Unrolled by DEPTH, so that no word on its way to a register is moved.
        for c in gl.static_range(DEPTH):
            here = tile + c
            async_copy.wait_group(STAGES - 2)
            fence_async_shared()
            # Everybody's copy has landed, and everybody is done with the oldest buffer.
            thread_barrier()
            ahead = here + STAGES - 1
            buffer = x_smem.index((ahead - begin) % STAGES)
            _copy_x(x_ptr, buffer, ahead, end, M, x_stride, K, PLANE, MT, GROUPS)
            words, pairs = ring[0]
            ring = ring[1:] + (_load_tile(word_at, scale_at, here + DEPTH, end, PLANE, GT),)
            keep_order()
            buffer = x_smem.index((here - begin) % STAGES)
            acc = _tile_product(acc, words, pairs, buffer, PLANE, GT, MT, GROUPS, A)
    async_copy.wait_group(0)
    if PDL and TRIGGER == 1:
        gdc_launch_dependents()

    last = block >= 0
    if SPLIT > 1:
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ACC))
        m_acc = gl.arange(0, MT, layout=gl.SliceLayout(0, ACC))
        part_at = parts_ptr + (block * SPLIT).to(gl.int64) * (ROWS * MT)
        part_at = part_at + gl.expand_dims(row * MT, 1) + gl.expand_dims(m_acc, 0)
        gl.store(part_at + split * (ROWS * MT), acc)
        thread_barrier()
        last = gl.atomic_add(tickets_ptr + block, 1, sem="acq_rel") == SPLIT - 1
        if last:
            acc = gl.zeros([ROWS, MT], gl.float32, layout=ACC)
            for part in range(SPLIT):
                acc += gl.load(part_at + part * (ROWS * MT), cache_modifier=".cg")
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
