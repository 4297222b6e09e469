"""Causal attention over the paged cache, in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.kv_cache import AttentionBatch, LayerCache


def paged_attention(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """softmax(scale * q @ Kᵀ, causal) @ V: q [T, q heads, D] to float32 [T, q heads * D]."""
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    num_kv_heads = cache.k.shape[1]
    group = q.shape[1] // num_kv_heads
    starts = batch.query_starts.tolist()
    for index, context_len in enumerate(batch.context_lens.tolist()):
        start, end = starts[index], starts[index + 1]
        if start == end:
            continue
        num_blocks = -(-context_len // cache.block_size)
        blocks = batch.block_tables[index, :num_blocks].long()
        k = _vectors(cache.k, cache.k_scale, blocks)[:, :context_len]
        v = _vectors(cache.v, cache.v_scale, blocks)[:, :context_len]
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        query = q[start:end].float().transpose(0, 1)
        positions = torch.arange(context_len, device=q.device)
        visible = positions[None, :] <= positions[context_len - (end - start) :, None]
        scores = (query @ k.transpose(1, 2) * scale).masked_fill(~visible, -torch.inf)
        out[start:end] = (scores.softmax(dim=-1) @ v).transpose(0, 1)
    return out.flatten(1)


def _vectors(
    values: torch.Tensor, scale: torch.Tensor | None, blocks: torch.Tensor
) -> torch.Tensor:
    """[blocks, heads, block_size, D] to float32 [heads, tokens, D]."""
    vectors = values[blocks].float()
    if scale is not None:
        vectors = vectors * scale[blocks].unsqueeze(-1)
    return vectors.transpose(0, 1).flatten(1, 2)
