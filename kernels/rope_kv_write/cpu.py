"""Rotary embedding and the write to the paged cache, on the CPU."""

from __future__ import annotations

import torch

from kernels import native
from kernels.checks import expect
from kernels.kv_cache import KV_DTYPES, LayerCache
from kernels.native.library import KV_KINDS
from kernels.rope_kv_write import reference

_INDEX_DTYPES = (torch.int32, torch.int64)


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """See `kernels.rope_kv_write`."""
    num_q_heads = _check(qkv, positions, rope, cache, slots, q_norm, k_norm)
    num_blocks, num_kv_heads, block_size, head_dim = cache.k.shape
    library = native.library()
    if library is None:
        _check_ranges(positions, len(rope), slots, num_blocks * block_size)
        return reference.rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)
    num_tokens = qkv.size(0)
    q = torch.empty(num_tokens, num_q_heads, head_dim)
    failed = library.rope_kv_write(
        qkv.data_ptr(),
        qkv.stride(0),
        num_tokens,
        num_q_heads,
        positions.data_ptr(),
        slots.data_ptr(),
        positions.dtype is torch.int64,
        rope.data_ptr(),
        rope.size(0),
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        eps,
        cache.k.data_ptr(),
        cache.v.data_ptr(),
        None if cache.k_scale is None else cache.k_scale.data_ptr(),
        None if cache.v_scale is None else cache.v_scale.data_ptr(),
        num_blocks,
        num_kv_heads,
        block_size,
        head_dim,
        KV_KINDS[cache.k.dtype],
        q.data_ptr(),
    )
    if failed:
        _check_ranges(positions, len(rope), slots, num_blocks * block_size)
    return q


def _check(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
) -> int:
    """Check shapes and dtypes; returns the number of q heads."""
    if cache.k.dtype not in KV_KINDS:
        expect("cache.k", cache.k, [None] * 4, KV_DTYPES)
    _, num_kv_heads, _, head_dim = cache.k.shape
    # This runs for each layer of each token: the cheap questions first.
    if qkv.dtype is not torch.float32 or qkv.dim() != 2 or qkv.stride(1) != 1:
        expect("qkv", qkv, [None, None], [torch.float32], contiguous=False)
    num_tokens, width = qkv.shape
    num_q_heads = width // head_dim - 2 * num_kv_heads
    if num_q_heads < 1 or width % head_dim or head_dim % 2:
        raise ValueError(
            f"qkv: expected (q heads + 2 * {num_kv_heads}) * {head_dim} columns, got {width}"
        )
    for name, index in (("positions", positions), ("slots", slots)):
        if (
            index.dtype is not positions.dtype
            or index.dtype not in _INDEX_DTYPES
            or index.dim() != 1
            or index.size(0) != num_tokens
            or not index.is_contiguous()
        ):
            dtypes = _INDEX_DTYPES if index is positions else (positions.dtype,)
            expect(name, index, [num_tokens], dtypes)
    if (
        rope.dtype is not torch.float32
        or rope.dim() != 2
        or rope.size(1) != head_dim
        or not rope.is_contiguous()
    ):
        expect("rope", rope, [None, head_dim], [torch.float32])
    if q_norm is not None:
        expect("q_norm", q_norm, [head_dim], [torch.float32])
    if k_norm is not None:
        expect("k_norm", k_norm, [head_dim], [torch.float32])
    return num_q_heads


def _check_ranges(
    positions: torch.Tensor, num_positions: int, slots: torch.Tensor, num_slots: int
) -> None:
    for name, values, end in (("positions", positions, num_positions), ("slots", slots, num_slots)):
        if not len(values):
            continue
        low, high = (int(value) for value in torch.aminmax(values))
        if high >= end or (name == "positions" and low < 0):
            raise ValueError(f"{name}: expected 0 .. {end - 1}, got {low} .. {high}")
