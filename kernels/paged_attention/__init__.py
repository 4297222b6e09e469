"""Causal attention over the paged cache, decode and prefill pieces mixed."""

from __future__ import annotations

import torch

from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import cpu


def paged_attention(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """softmax(scale * q @ Kᵀ, causal) @ V for every query token over its own sequence.

    Args:
        q: [T, q heads, D], rotated; float32 on the CPU. Query head h reads KV head
            h // (q heads / kv heads).
        cache: Holds the KV of every visible token, this step's own included.
        batch: The sequences; rows of q past query_starts[B] are padding, and their
            output is undefined.
        scale: Usually D ** -0.5.

    Returns:
        A new tensor [T, q heads * D] of q's dtype.

    Raises:
        ValueError: Wrong shape or dtype or, on the CPU, a length or block out of range.
    """
    if q.is_cpu:
        return cpu.paged_attention(q, cache, batch, scale)
    from kernels.paged_attention import triton

    return triton.paged_attention(q, cache, batch, scale)
