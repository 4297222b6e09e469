"""Rotary embedding and the write to the paged cache on CUDA, one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.checks import expect
from kernels.cuda.launch import overlap_options
from kernels.kv_cache import KV_DTYPES, LayerCache

# As `kernels.kv_cache.LARGEST`.
_INT8_LARGEST = tl.constexpr(127.0)
_FP8_LARGEST = tl.constexpr(448.0)
# Added to a number of at most 2^22, leaves it rounded to nearest even in the low bits.
_ROUNDING = tl.constexpr(12582912.0)
MANY_TOKENS = 64
HEADS_A_PROGRAM = 8


@triton.jit
def _store_heads(
    values_ptr, scale_ptr, row, low, high, i, chosen, D: tl.constexpr, QUANTIZED: tl.constexpr
):  # fmt: skip
    """Write the chosen heads' vectors, halves `low` and `high`, to the cache's rows `row`."""
    element: tl.constexpr = values_ptr.dtype.element_ty
    if QUANTIZED:
        top: tl.constexpr = _INT8_LARGEST if element == tl.int8 else _FP8_LARGEST
        largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), axis=1, keep_dims=True)
        tl.store(scale_ptr + row, largest / top, mask=chosen)
        inverse = top / tl.where(largest > 0, largest, 1.0)
        low *= inverse
        high *= inverse
        if element == tl.int8:
            low = (low + _ROUNDING).to(tl.int32, bitcast=True)
            high = (high + _ROUNDING).to(tl.int32, bitcast=True)
    at = values_ptr + row * D + i
    inside = chosen & (i < D // 2)
    tl.store(at, low.to(element), mask=inside)
    tl.store(at + D // 2, high.to(element), mask=inside)


@triton.jit
def _rope_kv_write_kernel(
    qkv_ptr, positions_ptr, rope_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, slots_ptr,
    q_norm_ptr, k_norm_ptr, q_out_ptr, qkv_stride, q_stride, eps, NUM_Q: tl.constexpr,
    NUM_KV: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, HAS_NORM: tl.constexpr, QUANTIZED: tl.constexpr, IN_PLACE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token: q heads first, then k, then v."""
    token = tl.program_id(0).to(tl.int64)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    i = tl.arange(0, HALF)[None, :]
    inside = (i < D // 2) & (head < NUM_Q + 2 * NUM_KV)
    at = qkv_ptr + token * qkv_stride + head * D + i
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    is_q = head < NUM_Q
    is_k = (head >= NUM_Q) & (head < NUM_Q + NUM_KV)
    is_v = (head >= NUM_Q + NUM_KV) & (head < NUM_Q + 2 * NUM_KV)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    row = slot // BLOCK_SIZE * (NUM_KV * BLOCK_SIZE) + slot % BLOCK_SIZE
    if tl.program_id(1) * HEADS < NUM_Q + NUM_KV:
        first, second = low, high
        if HAS_NORM:
            squares = tl.sum(low * low + high * high, axis=1, keep_dims=True)
            inverse = tl.rsqrt(squares / D + eps)
            low_norm = tl.where(
                is_q, tl.load(q_norm_ptr + i, mask=i < D // 2, other=0.0),
                tl.load(k_norm_ptr + i, mask=i < D // 2, other=0.0),
            )  # fmt: skip
            high_norm = tl.where(
                is_q, tl.load(q_norm_ptr + D // 2 + i, mask=i < D // 2, other=0.0),
                tl.load(k_norm_ptr + D // 2 + i, mask=i < D // 2, other=0.0),
            )  # fmt: skip
            first *= inverse * low_norm.to(tl.float32)
            second *= inverse * high_norm.to(tl.float32)
        position = tl.load(positions_ptr + token).to(tl.int64)
        cos = tl.load(rope_ptr + position * D + i, mask=i < D // 2, other=0.0)
        sin = tl.load(rope_ptr + position * D + D // 2 + i, mask=i < D // 2, other=0.0)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        out = q_out_ptr + token * q_stride + head * D + i
        # In place the rotated k stands behind q, where it was.
        written = inside & (is_q | (IN_PLACE & is_k))
        tl.store(out, turned.to(q_out_ptr.dtype.element_ty), mask=written)
        tl.store(out + D // 2, second.to(q_out_ptr.dtype.element_ty), mask=written)
        if slot >= 0:
            _store_heads(
                k_ptr, k_scale_ptr, row + (head - NUM_Q) * BLOCK_SIZE, turned, second, i,
                is_k, D, QUANTIZED,
            )  # fmt: skip
    if (slot >= 0) & ((tl.program_id(1) + 1) * HEADS > NUM_Q + NUM_KV):
        _store_heads(
            v_ptr, v_scale_ptr, row + (head - NUM_Q - NUM_KV) * BLOCK_SIZE, low, high, i,
            is_v, D, QUANTIZED,
        )  # fmt: skip


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See `kernels.rope_kv_write`."""
    _, num_kv, _, head_dim = cache.k.shape
    num_tokens = qkv.shape[0]
    expect("qkv", qkv, [None, None], [torch.bfloat16, torch.float32], contiguous=False)
    expect("rope", rope, [None, head_dim], [torch.float32])
    expect("positions", positions, [num_tokens], [torch.int32, torch.int64])
    expect("slots", slots, [num_tokens], [torch.int32, torch.int64])
    expect("cache.k", cache.k, [None] * 4, KV_DTYPES)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm: expected both or neither")
    num_q = qkv.shape[1] // head_dim - 2 * num_kv
    q = torch.empty(num_tokens, num_q, head_dim, dtype=qkv.dtype, device=qkv.device)
    _launch(qkv, positions, rope, cache, slots, q_norm, k_norm, eps, q, False)
    return q


def rope_in_place(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """`rope_kv_write`, but that the rotated q and k take the place of those in `qkv`."""
    q = qkv[:, : qkv.shape[1] - 2 * cache.k.shape[1] * cache.k.shape[3]]
    _launch(qkv, positions, rope, cache, slots, q_norm, k_norm, eps, q, True)


def _launch(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    q: torch.Tensor,
    in_place: bool,
) -> None:
    """The rotated q goes to `q`; in place, k goes behind it."""
    _, num_kv, block_size, head_dim = cache.k.shape
    num_tokens = qkv.shape[0]
    num_q = qkv.shape[1] // head_dim - 2 * num_kv
    num_heads = num_q + 2 * num_kv
    # Many tokens fill the GPU anyway: fewer programs, each with more to do.
    heads = 1 if num_tokens < MANY_TOKENS else HEADS_A_PROGRAM
    _rope_kv_write_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        qkv, positions, rope, cache.k, cache.v, cache.k_scale, cache.v_scale, slots,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, q,
        qkv.stride(0), q.stride(0), eps, num_q, num_kv, block_size, head_dim,
        triton.next_power_of_2(head_dim // 2), heads, q_norm is not None, cache.is_quantized,
        in_place, num_warps=1, **overlap_options(),
    )  # fmt: skip
