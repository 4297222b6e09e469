"""Causal attention over the paged cache on the CPU."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import reference


def paged_attention(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """See `kernels.paged_attention`."""
    expect("cache.k", cache.k, [None] * 4, [torch.float32, torch.bfloat16])
    expect("cache.v", cache.v, cache.k.shape, [cache.k.dtype])
    _, num_kv_heads, _, head_dim = cache.k.shape
    expect("q", q, [None, None, head_dim], [torch.float32])
    if q.shape[1] % num_kv_heads:
        raise ValueError(f"q: expected a multiple of {num_kv_heads} heads, got {q.shape[1]}")
    num_sequences = len(batch.context_lens)
    expect("query_starts", batch.query_starts, [num_sequences + 1], [torch.int32])
    expect("context_lens", batch.context_lens, [num_sequences], [torch.int32])
    expect("block_tables", batch.block_tables, [num_sequences, None], [torch.int32])
    return reference.paged_attention(q, cache, batch, scale)
