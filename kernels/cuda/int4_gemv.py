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

from kernels.cuda.gluon_names import thread_barrier


@gluon.jit
def brain_values(words, PLANE: gl.constexpr):
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
def half_values(words, PLANE: gl.constexpr):
    """As `brain_values` in float16, whose ten bits need one shift for all four planes.

    1024 + q for planes 0 and 2, 1024 + 16 * q for planes 1 and 3.
    """
    if PLANE == 0:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; lop3.b32 t, $2, 0x000f000f, 0x64006400, 0xEA; mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    elif PLANE == 1:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; lop3.b32 t, $2, 0x00f000f0, 0x64006400, 0xEA; mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    elif PLANE == 2:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; shr.u32 t, $2, 8; lop3.b32 t, t, 0x000f000f, 0x64006400, 0xEA; "
            "mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b32 t; shr.u32 t, $2, 8; lop3.b32 t, t, 0x00f000f0, 0x64006400, 0xEA; "
            "mov.b32 {$0, $1}, t;}",
            "=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    return low, high


@gluon.jit
def power_below(value):
    """2 ** 14 over the power of two at or below a positive float32: exact, and so its inverse."""
    exponent = value.to(gl.int32, bitcast=True) >> 23
    return ((127 + 127 + 14 - exponent) << 23).to(gl.float32, bitcast=True)


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
def _word_pointers(words_ptr, PLANE: gl.constexpr, W: gl.constexpr):
    """Pointers to the int32 words of the first W tiles of a row tile, as lanes hold them.

    Axes: warp, K half, row half, lane, words of a lane.
    """
    V: gl.constexpr = PLANE // 16
    L: gl.constexpr = gl.BlockedLayout(
        [1, 1, 1, 1, V], [1, 1, 1, 32, 1], [W, 1, 1, 1, 1], [4, 3, 2, 1, 0]
    )
    S: gl.constexpr = gl.SliceLayout
    warp = gl.arange(0, W, layout=S(1, S(2, S(3, S(4, L)))))[:, None, None, None, None]
    k_half = gl.arange(0, 2, layout=S(0, S(2, S(3, S(4, L)))))[None, :, None, None, None]
    row_half = gl.arange(0, 2, layout=S(0, S(1, S(3, S(4, L)))))[None, None, :, None, None]
    lane = gl.arange(0, 32, layout=S(0, S(1, S(2, S(4, L)))))[None, None, None, :, None]
    word = gl.arange(0, V, layout=S(0, S(1, S(2, S(3, L)))))[None, None, None, None, :]
    return (
        words_ptr
        + (warp * (8 * PLANE) + k_half * (64 * V) + row_half * (32 * V) + lane * V + word),
        warp,
    )


@gluon.jit
def _load_words(
    pointers, warp, row_tile, STEP: gl.constexpr, limit, K_TILES: gl.constexpr,
    PLANE: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Words of K tiles STEP * W .. + W of one row tile.

    Past the end they are arbitrary: any word is a finite value, and x is 0 there.
    """
    at = pointers + row_tile.to(gl.int64) * (K_TILES * 8 * PLANE) + STEP * (W * 8 * PLANE)
    inside = row_tile < limit
    if (STEP + 1) * W > K_TILES:
        words = gl.load(at, mask=(STEP * W + warp < K_TILES) & inside)
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
def _columns(STEP: gl.constexpr, PLANE: gl.constexpr, W: gl.constexpr, L: gl.constexpr):
    """Which column of x each place [4 * W, PLANE] of shared memory holds in one step.

    Rows are plane * W + warp. Along a row, the 4 lanes of a quad lie one after the other,
    each with what it needs for all of the plane's products.
    """
    Q: gl.constexpr = PLANE // 4
    row = gl.arange(0, 4 * W, layout=gl.SliceLayout(1, L))
    at = gl.arange(0, PLANE, layout=gl.SliceLayout(0, L))
    k = at % Q // 4 * 16 + at // 2 % 2 * 8 + at // Q * 2 + at % 2
    tile = STEP * W + row % W
    columns = gl.expand_dims((tile * 4 + row // W) * PLANE, 1) + gl.expand_dims(k, 0)
    return gl.max_contiguous(gl.multiple_of(columns, [1, 2]), [1, 2])


@gluon.jit
def _quad_operand(x_row, PLANE: gl.constexpr, W: gl.constexpr, B: gl.constexpr, X: gl.constexpr):
    """x of one plane, [W, PLANE] in shared memory, as the operand [W, PLANE, 8]."""
    L: gl.constexpr = gl.BlockedLayout([1, PLANE // 4], [1, 32], [W, 1], [1, 0])
    x = gl.reshape(x_row.load(L), [W, 4, PLANE // 16, 2, 2])
    x = gl.reshape(gl.permute(x, [0, 2, 3, 1, 4]), [W, PLANE, 1])
    x, _ = gl.broadcast(gl.convert_layout(x, B), gl.zeros([W, PLANE, 8], X, layout=B))
    return x


@gluon.jit
def _weight_operand(
    words, P: gl.constexpr, PLANE: gl.constexpr, W: gl.constexpr, A: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """Plane P of the words as the operand [W, 16, PLANE], without leaving the registers."""
    if HALF:
        low, high = half_values(words, P)
    else:
        low, high = brain_values(words, P)
    values = gl.reshape(gl.join(low, high), [W, 2, 2, 8, 4, PLANE // 16, 2])
    values = gl.permute(values, [0, 2, 3, 1, 5, 4, 6])
    return gl.convert_layout(gl.reshape(values, [W, 16, PLANE]), A)


@gluon.jit
def _plane_product(
    words, b, part, P: gl.constexpr, PLANE: gl.constexpr, W: gl.constexpr, HALF: gl.constexpr
):
    A: gl.constexpr = gl.DotOperandLayout(0, part.type.layout, 2)
    return gl.nvidia.ampere.mma_v2(_weight_operand(words, P, PLANE, W, A, HALF), b, part)


@gluon.jit
def _add_group(acc, part, pairs, sums, offsets):
    """acc += scale * part + minimum * sums - scale * offsets."""
    scale, minimum = scale_halves(pairs)
    acc += gl.expand_dims(scale, 2) * part
    acc += gl.expand_dims(minimum * sums - scale * offsets, 2)
    return acc


@gluon.jit
def _dot_step(
    acc, up, entry, x_smem, sums_smem, PLANE: gl.constexpr, GT: gl.constexpr, W: gl.constexpr,
    SWIGLU: gl.constexpr, HALF: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """acc (and up) [W, 16, 8] += one step's tiles."""
    PER: gl.constexpr = 4 // GT
    X: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    WARPS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, MMA))
    for g in gl.static_range(GT):
        part = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        up_part = part
        # Of x as it is, and of what the operands' offset adds up to.
        sums = gl.zeros([W], gl.float32, layout=WARPS)
        offsets = sums
        for j in gl.static_range(PER):
            b = _quad_operand(x_smem.slice((g * PER + j) * W, W, dim=0), PLANE, W, B, X)
            part = _plane_product(entry[0], b, part, g * PER + j, PLANE, W, HALF)
            if SWIGLU:
                up_part = _plane_product(entry[2], b, up_part, g * PER + j, PLANE, W, HALF)
            plane_sums = sums_smem.slice((g * PER + j) * W, W, dim=0).load(WARPS)
            if HALF:
                offsets += plane_sums * 1024.0
                if (g * PER + j) % 2 == 1:
                    plane_sums *= 16.0
            sums += plane_sums
        if not HALF:
            offsets = sums * 128.0
        sums = gl.expand_dims(sums, 1)
        offsets = gl.expand_dims(offsets, 1)
        acc = _add_group(acc, part, entry[1][g], sums, offsets)
        if SWIGLU:
            up = _add_group(up, up_part, entry[3][g], sums, offsets)
    return acc, up


@gluon.jit
def _load_step(
    word_at, warp, scale_at, tile, STEP: gl.constexpr, limit, up_tiles, K_TILES: gl.constexpr,
    PLANE: gl.constexpr, GT: gl.constexpr, W: gl.constexpr, SWIGLU: gl.constexpr,
    ROWS: gl.constexpr,
):  # fmt: skip
    """(words, pairs) of one step, and with SWIGLU those of the up projection's rows."""
    entry = (
        _load_words(word_at, warp, tile, STEP, limit, K_TILES, PLANE, W),
        _load_scales(scale_at, tile, STEP, limit, K_TILES, GT, W, ROWS),
    )
    if SWIGLU:
        end = limit + up_tiles
        entry = entry + (
            _load_words(word_at, warp, tile + up_tiles, STEP, end, K_TILES, PLANE, W),
            _load_scales(scale_at, tile + up_tiles, STEP, end, K_TILES, GT, W, ROWS),
        )
    return entry


@gluon.jit
def _residual(residual_ptr, tile, N, n_local, m):
    """The residual [16, 8] of a row tile; column 0 counts."""
    at = tile * 16 + n_local + m * 0
    return gl.load(residual_ptr + at, mask=(at < N) & (m == 0), other=0.0).to(gl.float32)


@gluon.jit
def int4_gemv_kernel(
    x_ptr, norm_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, N, limit,
    up_tiles, eps, K: gl.constexpr, K_TILES: gl.constexpr, PLANE: gl.constexpr,
    GT: gl.constexpr, W: gl.constexpr, DEPTH: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_BIAS: gl.constexpr, ADD: gl.constexpr, SWIGLU: gl.constexpr, HALF: gl.constexpr,
    TRIGGER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """out[n] = norm(x) . w[n] (+ bias) (+ residual), or SwiGLU of two row tiles.

    A program walks row tiles program_id, + num_programs, ...; DEPTH steps of words are
    in registers ahead of use. x is staged times the norm's weights; its root mean square
    divides the result, so that the products need not wait for it. With HALF products are of
    float16 instead of bf16: x times a power of two that makes its largest value at most
    2 ** 15, and a sixteenth of that for planes 1 and 3. The next launch may start at once
    (TRIGGER 0), once x is staged (1) or after the first row tile (2).
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [W, 1, 1], [1, 16, 8])
    ROWS: gl.constexpr = gl.SliceLayout(2, MMA)
    X: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    STEPS: gl.constexpr = (K_TILES + W - 1) // W
    XL: gl.constexpr = gl.BlockedLayout([1, PLANE // 8], [4, 8], [W, 1], [1, 0])
    XS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    SS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    OUT: gl.constexpr = gl.SliceLayout(0, MMA)

    first = gl.program_id(0)
    stride = gl.num_programs(0)
    word_at, warp = _word_pointers(words_ptr, PLANE, W)
    warp_2 = gl.arange(0, W, layout=gl.SliceLayout(1, ROWS))
    row_2 = gl.arange(0, 16, layout=gl.SliceLayout(0, ROWS))
    scale_at = scale_ptr + gl.expand_dims(warp_2 * (GT * 16), 1) + gl.expand_dims(row_2, 0)
    ring = ()
    for i in gl.static_range(DEPTH):
        ring = ring + (
            _load_step(
                word_at, warp, scale_at, first + (i // STEPS) * stride, i % STEPS, limit,
                up_tiles, K_TILES, PLANE, GT, W, SWIGLU, ROWS,
            ),
        )  # fmt: skip
    norms = ()
    if HAS_NORM:
        for i in gl.static_range(STEPS):
            col = _columns(i, PLANE, W, XL)
            norms = norms + (gl.load(norm_ptr + col, mask=col < K, other=0.0),)
    # One buffer a step: stores to buffers of their own need no barrier between them.
    x_smem = ()
    sums_smem = ()
    for _ in gl.static_range(STEPS):
        x_smem = x_smem + (gl.allocate_shared_memory(X, [4 * W, PLANE], XS),)
        sums_smem = sums_smem + (gl.allocate_shared_memory(gl.float32, [4 * W], SS),)
    n_local = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(1, OUT)), 1)
    m = gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, OUT)), 0)
    residual = gl.zeros([16, 8], gl.float32, layout=OUT)
    if PDL:
        if TRIGGER == 0:
            gdc_launch_dependents()
        gdc_wait()
    # All that comes from memory now is asked for before any of it is waited for.
    raw = ()
    for i in gl.static_range(STEPS):
        col = _columns(i, PLANE, W, XL)
        raw = raw + (gl.load(x_ptr + col, mask=col < K, other=0.0),)
    if ADD:
        residual = _residual(residual_ptr, first, N, n_local, m)
    squares = gl.zeros([4 * W, PLANE], gl.float32, layout=XL)
    divisor = 1.0
    plane_factor = gl.full([4 * W, 1], 1.0, gl.float32, layout=XL)
    if HALF:
        largest = gl.full([4 * W, PLANE], 1e-18, gl.float32, layout=XL)
        for i in gl.static_range(STEPS):
            x = raw[i].to(gl.float32)
            if HAS_NORM:
                x *= norms[i].to(gl.float32)
            largest = gl.maximum(largest, gl.abs(x))
        factor = power_below(gl.max(gl.max(largest, 1), 0))
        plane = gl.arange(0, 4 * W, layout=gl.SliceLayout(1, XL)) // W
        plane_factor = gl.expand_dims(gl.where(plane % 2 == 1, factor / 16, factor), 1)
        divisor = 1.0 / factor
    for i in gl.static_range(STEPS):
        x = raw[i]
        if HAS_NORM or HALF:
            wide = x.to(gl.float32)
            if HAS_NORM:
                squares += wide * wide
                wide *= norms[i].to(gl.float32)
            if HALF:
                wide *= plane_factor
            x = wide.to(X)
        x_smem[i].store(x)
        sums_smem[i].store(gl.sum(x.to(gl.float32), 1))
    row_squares = gl.sum(squares, 1)
    thread_barrier()
    if PDL and TRIGGER == 1:
        gdc_launch_dependents()

    for tile in range(first, limit, stride):
        at = tile * 16 + n_local + m * 0
        keep = (at < N) & (m == 0)
        acc = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        up = acc
        for i in gl.static_range(STEPS):
            entry = ring[0]
            ring = ring[1:] + (
                _load_step(
                    word_at, warp, scale_at, tile + ((i + DEPTH) // STEPS) * stride,
                    (i + DEPTH) % STEPS, limit, up_tiles, K_TILES, PLANE, GT, W, SWIGLU, ROWS,
                ),
            )  # fmt: skip
            keep_order()
            acc, up = _dot_step(
                acc, up, entry, x_smem[i], sums_smem[i], PLANE, GT, W, SWIGLU, HALF, MMA
            )
        if PDL and TRIGGER == 2:
            gdc_launch_dependents()
        inverse = divisor
        if HAS_NORM:
            inverse *= gl.rsqrt(gl.sum(row_squares, 0) / K + eps)
        total = gl.sum(acc, 0)
        if HAS_NORM or HALF:
            total *= inverse
        if HAS_BIAS:
            total += gl.load(bias_ptr + at, mask=keep, other=0.0).to(gl.float32)
        if SWIGLU:
            up_total = gl.sum(up, 0)
            if HAS_NORM or HALF:
                up_total *= inverse
            total = up_total * total / (1.0 + gl.exp(-total))
        if ADD:
            total += residual
            residual = _residual(residual_ptr, tile + stride, N, n_local, m)
        gl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=keep)
