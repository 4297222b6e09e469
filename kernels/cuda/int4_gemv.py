# Gluon has tuples but no unpacking in displays.
# ruff: noqa: RUF005
"""W4A16 for few rows, in Gluon: weights stream from memory straight into tensor-core operands.

The weights are the A operand, so a product of M = 1 wastes tensor-core columns and
nothing else. The warps of a program split K: the batch axis of a rank-3 product is
the warp, and a program owns 16 whole output rows, without atomics or a second stage.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def plane_values(words, PLANE: gl.constexpr):
    """Nibble PLANE of int16 words, two to an int32, as bf16 values 128 + q.

    Two tensors of the shape of `words`: of the low word of each pair and of the high
    one. Words stay int32 as long as they wait: as int16 each would take a register.
    """
    if PLANE == 0:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; lop3.b32 t, $2, 0x000f000f, 0x43004300, 0xEA; mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.bfloat16, gl.bfloat16),
            is_pure=True,
            pack=1,
        )
    elif PLANE == 1:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; shr.u32 t, $2, 4; lop3.b32 t, t, 0x000f000f, 0x43004300, 0xEA; "
            "mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.bfloat16, gl.bfloat16),
            is_pure=True,
            pack=1,
        )
    elif PLANE == 2:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; shr.u32 t, $2, 8; lop3.b32 t, t, 0x000f000f, 0x43004300, 0xEA; "
            "mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.bfloat16, gl.bfloat16),
            is_pure=True,
            pack=1,
        )
    else:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; shr.u32 t, $2, 12; lop3.b32 t, t, 0x000f000f, 0x43004300, 0xEA; "
            "mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.bfloat16, gl.bfloat16),
            is_pure=True,
            pack=1,
        )
    return low, high


@gluon.jit
def keep_order():
    """Keep the loads before this point ahead of the arithmetic after it.

    Without it the assembler moves loads down to their use, and nothing is prefetched.
    """
    gl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def scale_halves(pairs):
    """The scale and the minimum of packed int32 pairs, float32."""
    scale = (pairs & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    minimum = (pairs >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return scale, minimum


@gluon.jit
def _word_pointers(words_ptr, PLANE: gl.constexpr, W: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers [W, 16, PLANE / 2] to the int32 words of the first W tiles, in storage order."""
    V: gl.constexpr = PLANE // 16
    tile = gl.arange(0, W, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    row = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    col = gl.arange(0, PLANE // 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    row_offset = (row // 8) * (32 * V) + (row % 8) * (4 * V)
    col_offset = (col // (4 * V)) * (64 * V) + col % (4 * V)
    offsets = (
        gl.expand_dims(gl.expand_dims(tile * (8 * PLANE), 1), 2)
        + gl.expand_dims(gl.expand_dims(row_offset, 0), 2)
        + gl.expand_dims(gl.expand_dims(col_offset, 0), 1)
    )
    return words_ptr + gl.max_contiguous(gl.multiple_of(offsets, [1, 1, V]), [1, 1, V])


@gluon.jit
def _load_words(
    pointers, row_tile, STEP: gl.constexpr, limit, K_TILES: gl.constexpr, PLANE: gl.constexpr,
    W: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Words [W, 16, PLANE / 2] of K tiles STEP * W .. + W of one row tile.

    Past the end they are arbitrary: any word is a finite value, and x is 0 there.
    """
    at = pointers + row_tile.to(gl.int64) * (K_TILES * 8 * PLANE) + STEP * (W * 8 * PLANE)
    inside = row_tile < limit
    if (STEP + 1) * W > K_TILES:
        warp = gl.arange(0, W, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
        tail = gl.expand_dims(gl.expand_dims(STEP * W + warp < K_TILES, 1), 2)
        words = gl.load(at, mask=tail & inside)
    else:
        words = gl.load(at, mask=inside)
    return words


@gluon.jit
def _load_scales(
    pointers, row_tile, STEP: gl.constexpr, limit, K_TILES: gl.constexpr, GT: gl.constexpr,
    W: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Pairs [W, 16] of the same tiles, one tensor a group."""
    at = pointers + row_tile.to(gl.int64) * (K_TILES * GT * 16) + STEP * (W * GT * 16)
    warp = gl.arange(0, W, layout=gl.SliceLayout(1, LAYOUT))
    inside = gl.expand_dims(STEP * W + warp < K_TILES, 1) & (row_tile < limit)
    pairs = ()
    for g in gl.static_range(GT):
        pairs = pairs + (gl.load(at + g * 16, mask=inside, other=0),)
    return pairs


@gluon.jit
def _stage_x(
    x_ptr, norm_ptr, x_smem, sums_smem, M, x_stride, eps, K: gl.constexpr, STEPS: gl.constexpr,
    PLANE: gl.constexpr, W: gl.constexpr, MP: gl.constexpr, HAS_NORM: gl.constexpr,
):  # fmt: skip
    """Put (normed) x into shared memory by plane, and its sum over every group."""
    V: gl.constexpr = PLANE // 8
    L: gl.constexpr = gl.BlockedLayout([1, MP, V], [4, 1, 8], [W, 1, 1], [2, 1, 0])
    # Rows of shared memory are plane * W + warp.
    j = gl.arange(0, 4 * W, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))
    m = gl.arange(0, MP, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    k = gl.arange(0, PLANE, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))
    # From (half, quad, step, pair) to (half, step, quad, pair): the order of the words.
    k = (k // (4 * V)) * (4 * V) + (k % V) // 2 * 8 + (k % (4 * V)) // V * 2 + k % 2
    m3 = gl.expand_dims(gl.expand_dims(m, 0), 2)
    columns = gl.expand_dims(gl.expand_dims(((j % W) * 4 + j // W) * PLANE, 1), 2)
    columns = columns + gl.expand_dims(gl.expand_dims(k, 0), 1)
    columns = gl.max_contiguous(gl.multiple_of(columns, [1, 1, 2]), [1, 1, 2])
    raw = ()
    for step in gl.static_range(STEPS):
        col = columns + step * (W * 4 * PLANE)
        raw = raw + (gl.load(x_ptr + m3 * x_stride + col, mask=(col < K) & (m3 < M), other=0.0),)
    if HAS_NORM:
        squares = gl.zeros([4 * W, MP, PLANE], gl.float32, layout=L)
        for step in gl.static_range(STEPS):
            x = raw[step].to(gl.float32)
            squares += x * x
        inverse = gl.rsqrt(gl.sum(gl.sum(squares, 2), 0) / K + eps)
        inverse3 = gl.expand_dims(gl.expand_dims(inverse, 0), 2)
    for step in gl.static_range(STEPS):
        x = raw[step]
        if HAS_NORM:
            col = columns + step * (W * 4 * PLANE)
            norm = gl.load(norm_ptr + col, mask=col < K, other=0.0).to(gl.float32)
            x = (x.to(gl.float32) * inverse3 * norm).to(gl.bfloat16)
        x_smem.index(step).store(x)
        sums_smem.index(step).store(gl.sum(x.to(gl.float32), 2))


@gluon.jit
def _dot_tile(
    acc, words, pairs, x_smem, sums_smem, PLANE: gl.constexpr, GT: gl.constexpr,
    W: gl.constexpr, MP: gl.constexpr, MMA: gl.constexpr, B: gl.constexpr,
):  # fmt: skip
    """acc [W, 16, 8] += one step's tiles."""
    PER: gl.constexpr = 4 // GT
    for g in gl.static_range(GT):
        part = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        for j in gl.static_range(PER):
            low, high = plane_values(words, g * PER + j)
            a = gl.reshape(gl.join(low, high), [W, 16, PLANE])
            a = gl.convert_layout(a, gl.DotOperandLayout(0, MMA, PLANE // 8))
            rows = x_smem.slice((g * PER + j) * W, W, dim=0)
            b = rows.permute((0, 2, 1)).load(B)
            if MP == 1:
                b, _ = gl.broadcast(b, gl.zeros([W, PLANE, 8], gl.bfloat16, layout=B))
            part = gl.nvidia.ampere.mma_v2(a, b, part)
        scale, minimum = scale_halves(pairs[g])
        sums = gl.zeros([W, MP], gl.float32, layout=gl.SliceLayout(1, MMA))
        for j in gl.static_range(PER):
            rows = sums_smem.slice((g * PER + j) * W, W, dim=0)
            sums += rows.load(gl.SliceLayout(1, MMA))
        offset = minimum - 128.0 * scale
        acc += gl.expand_dims(scale, 2) * part
        acc += gl.expand_dims(offset, 2) * gl.expand_dims(sums, 1)
    return acc


@gluon.jit
def int4_gemv_kernel(
    x_ptr, norm_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, M, N, limit, up_tiles,
    x_stride, out_stride, eps, K: gl.constexpr, K_TILES: gl.constexpr, PLANE: gl.constexpr,
    GT: gl.constexpr, W: gl.constexpr, DEPTH: gl.constexpr, MP: gl.constexpr,
    HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADD: gl.constexpr, SWIGLU: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """out[m, n] = norm(x)[m] . w[n] (+ bias) (+ residual), or SwiGLU of two row tiles.

    A program walks row tiles program_id, + num_programs, ...; DEPTH steps of words are
    in registers ahead of use.
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [W, 1, 1], [1, 16, 8])
    # Of int32 words; its lanes hold what the bf16 operand's lanes hold.
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, PLANE // 16)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, PLANE // 8)
    ROWS: gl.constexpr = gl.SliceLayout(2, MMA)
    STEPS: gl.constexpr = (K_TILES + W - 1) // W
    XS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    SS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    HALVES: gl.constexpr = 2 if SWIGLU else 1
    TOTAL: gl.constexpr = STEPS * HALVES

    first = gl.program_id(0)
    stride = gl.num_programs(0)
    word_at = _word_pointers(words_ptr, PLANE, W, A)
    warp = gl.arange(0, W, layout=gl.SliceLayout(1, ROWS))
    row = gl.arange(0, 16, layout=gl.SliceLayout(0, ROWS))
    scale_at = scale_ptr + gl.expand_dims(warp * (GT * 16), 1) + gl.expand_dims(row, 0)
    ring = ()
    scales = ()
    for i in gl.static_range(DEPTH):
        half = ((i % TOTAL) // STEPS) * up_tiles
        tile = first + (i // TOTAL) * stride + half
        end = limit + half
        ring = ring + (_load_words(word_at, tile, i % STEPS, end, K_TILES, PLANE, W, A),)
        scales = scales + (_load_scales(scale_at, tile, i % STEPS, end, K_TILES, GT, W, ROWS),)
    if PDL:
        gdc_wait()
    x_smem = gl.allocate_shared_memory(gl.bfloat16, [STEPS, 4 * W, MP, PLANE], XS)
    sums_smem = gl.allocate_shared_memory(gl.float32, [STEPS, 4 * W, MP], SS)
    _stage_x(x_ptr, norm_ptr, x_smem, sums_smem, M, x_stride, eps, K, STEPS, PLANE, W, MP, HAS_NORM)
    gl.thread_barrier()
    if PDL:
        gdc_launch_dependents()

    OUT: gl.constexpr = gl.SliceLayout(0, MMA)
    n_local = gl.arange(0, 16, layout=gl.SliceLayout(1, OUT))
    m = gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, OUT)), 0)
    for tile in range(first, limit, stride):
        acc = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        gate = acc
        for i in gl.static_range(TOTAL):
            half = (((i + DEPTH) % TOTAL) // STEPS) * up_tiles
            ahead = tile + ((i + DEPTH) // TOTAL) * stride + half
            end = limit + half
            words = ring[0]
            pairs = scales[0]
            ring = ring[1:] + (
                _load_words(word_at, ahead, (i + DEPTH) % STEPS, end, K_TILES, PLANE, W, A),
            )
            scales = scales[1:] + (
                _load_scales(scale_at, ahead, (i + DEPTH) % STEPS, end, K_TILES, GT, W, ROWS),
            )
            keep_order()
            acc = _dot_tile(
                acc, words, pairs, x_smem.index(i % STEPS), sums_smem.index(i % STEPS), PLANE, GT,
                W, MP, MMA, B,
            )  # fmt: skip
            if SWIGLU and i == STEPS - 1:
                gate = acc
                acc = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        total = gl.sum(acc, 0)
        n = tile * 16 + n_local
        keep = gl.expand_dims(n < N, 1) & (m < M)
        if HAS_BIAS:
            bias = gl.load(bias_ptr + n, mask=n < N, other=0.0).to(gl.float32)
            total += gl.expand_dims(bias, 1)
        if SWIGLU:
            gate_total = gl.sum(gate, 0)
            total = total * gate_total / (1.0 + gl.exp(-gate_total))
        where = m * out_stride + gl.expand_dims(n, 1)
        if ADD:
            total += gl.load(residual_ptr + where, mask=keep, other=0.0).to(gl.float32)
        gl.store(out_ptr + where, total.to(out_ptr.dtype.element_ty), mask=keep)
