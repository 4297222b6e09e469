"""Rotary embedding and the write to the paged cache, on the CPU."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.kv_cache import LayerCache
from kernels.rope_kv_write import reference

_INDEX_DTYPES = (torch.int32, torch.int64)
_CACHE_DTYPES = (torch.float32, torch.bfloat16)


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
    expect("cache.k", cache.k, [None] * 4, _CACHE_DTYPES)
    expect("cache.v", cache.v, cache.k.shape, [cache.k.dtype])
    num_blocks, num_kv_heads, block_size, head_dim = cache.k.shape
    expect("qkv", qkv, [None, None], [torch.float32], contiguous=False)
    num_tokens, width = qkv.shape
    num_q_heads = width // head_dim - 2 * num_kv_heads
    if num_q_heads < 1 or width % head_dim:
        raise ValueError(
            f"qkv: expected (q heads + 2 * {num_kv_heads}) * {head_dim} columns, got {width}"
        )
    expect("positions", positions, [num_tokens], _INDEX_DTYPES)
    expect("slots", slots, [num_tokens], [positions.dtype])
    expect("rope", rope, [None, head_dim], [torch.float32])
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            expect(name, norm, [head_dim], [torch.float32])
    if num_tokens:
        _expect_range("positions", positions, 0, len(rope))
        _expect_range("slots", slots, None, num_blocks * block_size)
    return reference.rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)


def _expect_range(name: str, values: torch.Tensor, low: int | None, end: int) -> None:
    smallest, largest = int(values.min()), int(values.max())
    if (low is not None and smallest < low) or largest >= end:
        raise ValueError(f"{name}: expected less than {end}, got {smallest} .. {largest}")
