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
def _store_vector(
    values_ptr, scale_ptr, row, low, high, i, inside, D: tl.constexpr, QUANTIZED: tl.constexpr
):  # fmt: skip
    """Write one head's vector, the halves `low` and `high`, to row `row` of the cache."""
    element: tl.constexpr = values_ptr.dtype.element_ty
    if QUANTIZED:
        top: tl.constexpr = _INT8_LARGEST if element == tl.int8 else _FP8_LARGEST
        largest = tl.maximum(tl.max(tl.abs(low)), tl.max(tl.abs(high)))
        tl.store(scale_ptr + row, largest / top)
        inverse = top / tl.where(largest > 0, largest, 1.0)
        low *= inverse
        high *= inverse
        if element == tl.int8:
            low = (low + _ROUNDING).to(tl.int32, bitcast=True)
            high = (high + _ROUNDING).to(tl.int32, bitcast=True)
    at = values_ptr + row * D + i
    tl.store(at, low.to(element), mask=inside)
    tl.store(at + D // 2, high.to(element), mask=inside)


@triton.jit
def _rope_kv_write_kernel(
    qkv_ptr, positions_ptr, rope_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, slots_ptr,
    q_norm_ptr, k_norm_ptr, q_out_ptr, qkv_stride, eps, NUM_Q: tl.constexpr, NUM_KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr, QUANTIZED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token: q heads first, then k, then v."""
    token = tl.program_id(0).to(tl.int64)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for step in tl.static_range(HEADS):
        head = tl.program_id(1) * HEADS + step
        if head < NUM_Q + 2 * NUM_KV:
            _rope_head(
                token, head, qkv_ptr, positions_ptr, rope_ptr, k_ptr, v_ptr, k_scale_ptr,
                v_scale_ptr, slots_ptr, q_norm_ptr, k_norm_ptr, q_out_ptr, qkv_stride, eps, NUM_Q,
                NUM_KV, BLOCK_SIZE, D, HALF, HAS_NORM, QUANTIZED,
            )  # fmt: skip


@triton.jit
def _rope_head(
    token, head, qkv_ptr, positions_ptr, rope_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
    slots_ptr, q_norm_ptr, k_norm_ptr, q_out_ptr, qkv_stride, eps, NUM_Q: tl.constexpr,
    NUM_KV: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    HAS_NORM: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    i = tl.arange(0, HALF)
    inside = i < D // 2
    at = qkv_ptr + token * qkv_stride + head * D
    low = tl.load(at + i, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2 + i, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    block = slot // BLOCK_SIZE
    if head < NUM_Q + NUM_KV:
        if HAS_NORM:
            inverse = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / D + eps)
            if head < NUM_Q:
                low_norm = tl.load(q_norm_ptr + i, mask=inside, other=0.0)
                high_norm = tl.load(q_norm_ptr + D // 2 + i, mask=inside, other=0.0)
            else:
                low_norm = tl.load(k_norm_ptr + i, mask=inside, other=0.0)
                high_norm = tl.load(k_norm_ptr + D // 2 + i, mask=inside, other=0.0)
            low *= inverse * low_norm.to(tl.float32)
            high *= inverse * high_norm.to(tl.float32)
        position = tl.load(positions_ptr + token).to(tl.int64)
        cos = tl.load(rope_ptr + position * D + i, mask=inside, other=0.0)
        sin = tl.load(rope_ptr + position * D + D // 2 + i, mask=inside, other=0.0)
        first = low * cos - high * sin
        second = high * cos + low * sin
        if head < NUM_Q:
            out = q_out_ptr + (token * NUM_Q + head) * D
            tl.store(out + i, first.to(q_out_ptr.dtype.element_ty), mask=inside)
            tl.store(out + D // 2 + i, second.to(q_out_ptr.dtype.element_ty), mask=inside)
        elif slot >= 0:
            row = (block * NUM_KV + (head - NUM_Q)) * BLOCK_SIZE + slot % BLOCK_SIZE
            _store_vector(k_ptr, k_scale_ptr, row, first, second, i, inside, D, QUANTIZED)
    elif slot >= 0:
        row = (block * NUM_KV + (head - NUM_Q - NUM_KV)) * BLOCK_SIZE + slot % BLOCK_SIZE
        _store_vector(v_ptr, v_scale_ptr, row, low, high, i, inside, D, QUANTIZED)


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
    _, num_kv, block_size, head_dim = cache.k.shape
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
    num_heads = num_q + 2 * num_kv
    # Many tokens fill the GPU anyway: fewer programs, each with more to do.
    heads = 1 if num_tokens < MANY_TOKENS else HEADS_A_PROGRAM
    _rope_kv_write_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        qkv, positions, rope, cache.k, cache.v, cache.k_scale, cache.v_scale, slots,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, q,
        qkv.stride(0), eps, num_q, num_kv, block_size, head_dim,
        triton.next_power_of_2(head_dim // 2), heads, q_norm is not None, cache.is_quantized,
        num_warps=1, **overlap_options(),
    )  # fmt: skip
    return q
