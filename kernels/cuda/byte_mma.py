# Gluon has tuples but no unpacking in displays.
# ruff: noqa: RUF005
"""One row of x times INT8 or FP8 rows, in Gluon: bytes stream from memory into tensor cores.

The tensor cores take what a plain kernel spends most of its instructions on; a byte costs one
to convert and no more. The weights are the A operand and lie as they are, [rows, columns]:
which column a lane holds in which place of a product is free as long as x agrees, so each
lane reads 16 bytes of a row at once. The warps of a program split K, the warp being the batch
axis of a rank-3 product; a program owns 16 whole rows, without atomics or a second stage.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.gluon_names import thread_barrier
from kernels.cuda.int4_gemv import keep_order, power_below

# Columns that the 4 lanes of a row read in one load each.
SEGMENT = gl.constexpr(64)


@gluon.jit
def _values(words, FP8: gl.constexpr):
    """The 4 bytes of each int32 as exact float16 numbers, a tensor each."""
    if FP8:
        parts = gl.inline_asm_elementwise(
            "{.reg .b16 a, b; .reg .b32 t, u; mov.b32 {a, b}, $4; cvt.rn.f16x2.e4m3x2 t, a; "
            "cvt.rn.f16x2.e4m3x2 u, b; mov.b32 {$0, $1}, t; mov.b32 {$2, $3}, u;}",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16, gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        # 1024 + (q + 128), of which 1152 is taken away.
        parts = gl.inline_asm_elementwise(
            "{.reg .b32 s, t, u, m; mov.b32 m, 0xe480e480; xor.b32 s, $4, 0x80808080; "
            "prmt.b32 t, s, 0x64646464, 0x4140; prmt.b32 u, s, 0x64646464, 0x4342; "
            "add.rn.f16x2 t, t, m; add.rn.f16x2 u, u, m; "
            "mov.b32 {$0, $1}, t; mov.b32 {$2, $3}, u;}",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(gl.float16, gl.float16, gl.float16, gl.float16),
            is_pure=True,
            pack=1,
        )
    return parts


@gluon.jit
def _weight_operand(words, FP8: gl.constexpr, W: gl.constexpr, A: gl.constexpr):
    """Words [W, row half, lane, 4] as the operand [W, 16, 64], without leaving the registers."""
    v0, v1, v2, v3 = _values(words, FP8)
    # [warp, row half, row, quad, word, pair, half]
    values = gl.join(gl.join(v0, v1), gl.join(v2, v3))
    values = gl.reshape(values, [W, 2, 8, 4, 4, 2, 2])
    values = gl.permute(values, [0, 1, 2, 4, 6, 3, 5])
    return gl.convert_layout(gl.reshape(values, [W, 16, SEGMENT]), A)


@gluon.jit
def _x_operand(x_row, W: gl.constexpr, B: gl.constexpr):
    """x of one segment a warp, [W, 64] in shared memory, as the operand [W, 64, 8]."""
    L: gl.constexpr = gl.BlockedLayout([1, SEGMENT // 4], [1, 32], [W, 1], [1, 0])
    x = gl.reshape(x_row.load(L), [W, 4, 4, 2, 2])
    x = gl.reshape(gl.permute(x, [0, 2, 3, 1, 4]), [W, SEGMENT, 1])
    x, _ = gl.broadcast(gl.convert_layout(x, B), gl.zeros([W, SEGMENT, 8], gl.float16, layout=B))
    return x


@gluon.jit
def _load_step(
    at, warp, tile, STEP: gl.constexpr, limit, K: gl.constexpr, SEGS: gl.constexpr,
    W: gl.constexpr,
):  # fmt: skip
    """Words of SEGS segments a warp of one row tile: zeros past K, arbitrary past the limit."""
    base = at + tile.to(gl.int64) * (4 * K) + STEP * (W * SEGS * 16)
    words = ()
    for s in gl.static_range(SEGS):
        if (STEP + 1) * W * SEGS * SEGMENT > K:
            inside = ((STEP * W + warp) * SEGS + s < K // SEGMENT) & (tile < limit)
            words = words + (gl.load(base + s * 16, mask=inside, other=0),)
        else:
            words = words + (gl.load(base + s * 16, mask=tile < limit),)
    return words


@gluon.jit
def _load_scales(
    scale_ptr, tile, STEP: gl.constexpr, limit, all_rows, K: gl.constexpr, GROUP: gl.constexpr,
    SEGS: gl.constexpr, W: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Scales [W, 16] of one step's segments, where columns have them by group."""
    warp = gl.expand_dims(gl.arange(0, W, layout=gl.SliceLayout(1, ROWS)), 1)
    row = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(0, ROWS)), 0)
    scales = ()
    for s in gl.static_range(SEGS):
        segment = (STEP * W + warp) * SEGS + s
        at = scale_ptr + segment * SEGMENT // GROUP * all_rows + tile * 16 + row
        inside = (segment < K // SEGMENT) & (tile < limit)
        scales = scales + (gl.load(at, mask=inside, other=0.0),)
    return scales


@gluon.jit
def _add_segment(
    acc, words, b, scales, s: gl.constexpr, FP8: gl.constexpr, GROUPED: gl.constexpr,
    W: gl.constexpr, A: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """acc [W, 16, 8] += one segment's product, times its scales where there are several."""
    a = _weight_operand(words[s], FP8, W, A)
    if GROUPED:
        part = gl.nvidia.ampere.mma_v2(a, b, gl.zeros([W, 16, 8], gl.float32, layout=MMA))
        acc += gl.expand_dims(scales[s], 2) * part
    else:
        acc = gl.nvidia.ampere.mma_v2(a, b, acc)
    return acc


@gluon.jit
def _columns(STEP: gl.constexpr, SEGS: gl.constexpr, W: gl.constexpr, L: gl.constexpr):
    """Which column of x each place [SEGS * W, 64] of shared memory holds in one step.

    Rows are segment * W + warp.
    """
    row = gl.expand_dims(gl.arange(0, SEGS * W, layout=gl.SliceLayout(1, L)), 1)
    at = gl.expand_dims(gl.arange(0, SEGMENT, layout=gl.SliceLayout(0, L)), 0)
    return ((STEP * W + row % W) * SEGS + row // W) * SEGMENT + at


@gluon.jit
def _load_entry(
    at, up_at, scale_ptr, warp, tile, STEP: gl.constexpr, limit, up_tiles, all_rows,
    K: gl.constexpr, GROUP: gl.constexpr, SEGS: gl.constexpr, W: gl.constexpr,
    SWIGLU: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """One step: words, the up projection's words, and both scales if they go by group."""
    words = _load_step(at, warp, tile, STEP, limit, K, SEGS, W)
    up_words = words
    if SWIGLU:
        up_words = _load_step(up_at, warp, tile, STEP, limit, K, SEGS, W)
    scales = words
    up_scales = words
    if GROUP < K:
        scales = _load_scales(scale_ptr, tile, STEP, limit, all_rows, K, GROUP, SEGS, W, ROWS)
        up_scales = scales
        if SWIGLU:
            up_scales = _load_scales(
                scale_ptr + up_tiles * 16, tile, STEP, limit, all_rows, K, GROUP, SEGS, W, ROWS
            )
    return words, up_words, scales, up_scales


@gluon.jit
def _row_vector(pointer, tile, n_local, m, limit):
    """Row tile's part of a vector as [16, 8]; column 0 counts."""
    return gl.load(pointer + tile * 16 + n_local + m * 0, mask=(tile < limit) & (m == 0), other=0.0)


@gluon.jit
def byte_mma_kernel(
    x_ptr, norm_ptr, words_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, limit, up_tiles,
    all_rows, eps, K: gl.constexpr, GROUP: gl.constexpr, SEGS: gl.constexpr, W: gl.constexpr,
    DEPTH: gl.constexpr, FP8: gl.constexpr, HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr,
    ADD: gl.constexpr, SWIGLU: gl.constexpr, TRIGGER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """out[n] = norm(x) . w[n] (+ bias) (+ residual), or SwiGLU of two row tiles.

    A program walks row tiles program_id, + num_programs, ... below limit; DEPTH steps of
    words are in registers ahead of use. x is staged as float16 times the norm's weights and
    a power of two that makes its largest value at most 2 ** 15; the root mean square divides
    the result. scale is [K / GROUP, all_rows]. The next launch may start at once (TRIGGER 0),
    once x is staged (1) or after the first row tile (2).
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [W, 1, 1], [1, 16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    OUT: gl.constexpr = gl.SliceLayout(0, MMA)
    WORDS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 1, 32, 1], [W, 1, 1, 1], [3, 2, 1, 0])
    XL: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [W, 1], [1, 0])
    XS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    STEPS: gl.constexpr = (K + W * SEGS * SEGMENT - 1) // (W * SEGS * SEGMENT)
    S: gl.constexpr = gl.SliceLayout
    ROWS: gl.constexpr = gl.SliceLayout(2, MMA)
    GROUPED: gl.constexpr = GROUP < K

    first = gl.program_id(0)
    stride = gl.num_programs(0)
    warp = gl.arange(0, W, layout=S(1, S(2, S(3, WORDS))))[:, None, None, None]
    row_half = gl.arange(0, 2, layout=S(0, S(2, S(3, WORDS))))[None, :, None, None]
    lane = gl.arange(0, 32, layout=S(0, S(1, S(3, WORDS))))[None, None, :, None]
    word = gl.arange(0, 4, layout=S(0, S(1, S(2, WORDS))))[None, None, None, :]
    place = (row_half * 8 + lane // 4) * (K // 4) + warp * (SEGS * 16) + lane % 4 * 4 + word
    at = words_ptr + place
    # As a tensor, also where the compiler was given it as the number 1.
    up_at = at + gl.to_tensor(up_tiles).to(gl.int64) * (4 * K)
    ring = ()
    for i in gl.static_range(DEPTH):
        ring = ring + (
            _load_entry(
                at, up_at, scale_ptr, warp, first + (i // STEPS) * stride, i % STEPS, limit,
                up_tiles, all_rows, K, GROUP, SEGS, W, SWIGLU, ROWS,
            ),
        )  # fmt: skip
    norms = ()
    if HAS_NORM:
        for i in gl.static_range(STEPS):
            col = _columns(i, SEGS, W, XL)
            norms = norms + (gl.load(norm_ptr + col, mask=col < K, other=0.0),)
    n_local = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(1, OUT)), 1)
    m = gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, OUT)), 0)
    scale = gl.full([16, 8], 1.0, gl.float32, layout=OUT)
    up_scale = scale
    if not GROUPED:
        scale = _row_vector(scale_ptr, first, n_local, m, limit)
        if SWIGLU:
            up_scale = _row_vector(scale_ptr + up_tiles * 16, first, n_local, m, limit)
    if PDL:
        if TRIGGER == 0:
            gdc_launch_dependents()
        gdc_wait()
    # All that comes from memory now is asked for before any of it is waited for.
    raw = ()
    for i in gl.static_range(STEPS):
        col = _columns(i, SEGS, W, XL)
        raw = raw + (gl.load(x_ptr + col, mask=col < K, other=0.0),)
    residual = gl.zeros([16, 8], gl.float32, layout=OUT)
    if ADD:
        residual = _row_vector(residual_ptr, first, n_local, m, limit).to(gl.float32)
    squares = gl.zeros([SEGS * W, SEGMENT], gl.float32, layout=XL)
    largest = gl.full([SEGS * W, SEGMENT], 1e-18, gl.float32, layout=XL)
    for i in gl.static_range(STEPS):
        x = raw[i].to(gl.float32)
        if HAS_NORM:
            squares += x * x
            x *= norms[i].to(gl.float32)
        largest = gl.maximum(largest, gl.abs(x))
    factor = power_below(gl.max(gl.max(largest, 1), 0))
    # One buffer a step: stores to buffers of their own need no barrier between them.
    x_smem = ()
    for i in gl.static_range(STEPS):
        buffer = gl.allocate_shared_memory(gl.float16, [SEGS * W, SEGMENT], XS)
        x = raw[i].to(gl.float32) * factor
        if HAS_NORM:
            x *= norms[i].to(gl.float32)
        buffer.store(x.to(gl.float16))
        x_smem = x_smem + (buffer,)
    inverse = 1.0 / factor
    if HAS_NORM:
        inverse *= gl.rsqrt(gl.sum(gl.sum(squares, 1), 0) / K + eps)
    thread_barrier()
    if PDL and TRIGGER == 1:
        gdc_launch_dependents()

    for tile in range(first, limit, stride):
        acc = gl.zeros([W, 16, 8], gl.float32, layout=MMA)
        up = acc
        for i in gl.static_range(STEPS):
            entry = ring[0]
            ring = ring[1:] + (
                _load_entry(
                    at, up_at, scale_ptr, warp, tile + ((i + DEPTH) // STEPS) * stride,
                    (i + DEPTH) % STEPS, limit, up_tiles, all_rows, K, GROUP, SEGS, W, SWIGLU,
                    ROWS,
                ),
            )  # fmt: skip
            keep_order()
            for s in gl.static_range(SEGS):
                b = _x_operand(x_smem[i].slice(s * W, W, dim=0), W, B)
                acc = _add_segment(acc, entry[0], b, entry[2], s, FP8, GROUPED, W, A, MMA)
                if SWIGLU:
                    up = _add_segment(up, entry[1], b, entry[3], s, FP8, GROUPED, W, A, MMA)
        if PDL and TRIGGER == 2:
            gdc_launch_dependents()
        where = tile * 16 + n_local + m * 0
        total = gl.sum(acc, 0) * scale * inverse
        if SWIGLU:
            up_total = gl.sum(up, 0) * up_scale * inverse
            total = up_total * total / (1.0 + gl.exp(-total))
        if not GROUPED:
            scale = _row_vector(scale_ptr, tile + stride, n_local, m, limit)
            if SWIGLU:
                up_scale = _row_vector(scale_ptr + up_tiles * 16, tile + stride, n_local, m, limit)
        if HAS_BIAS:
            total += _row_vector(bias_ptr, tile, n_local, m, limit).to(gl.float32)
        if ADD:
            total += residual
            residual = _row_vector(residual_ptr, tile + stride, n_local, m, limit).to(gl.float32)
        gl.store(out_ptr + where, total.to(out_ptr.dtype.element_ty), mask=m == 0)
