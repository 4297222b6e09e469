"""Rotary embedding, the write to the paged cache and attention: what follows q, k and v."""

from __future__ import annotations

import torch

from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import paged_attention
from kernels.rope_kv_write import rope_kv_write


def rope_attention(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """`rope_kv_write`, then `paged_attention` with the rotated q.

    On CUDA a decode step of few rows is one launch: each program rotates the heads that
    it needs, and reads the KV of earlier tokens while q, k and v are still being computed.
    A long prompt that is computed whole leaves its rotated q and k in `qkv`.

    Args:
        qkv: [T, (q heads + 2 * kv heads) * D]; see `kernels.rope_kv_write`, which also
            tells of the arguments up to `slots`, `q_norm`, `k_norm` and `eps`.
        positions: [T].
        rope: [positions, D].
        cache: Written in place.
        slots: [T].
        batch: See `kernels.paged_attention`.
        scale: Usually D ** -0.5.
        q_norm: [D] or None.
        k_norm: [D] or None.
        eps: Of the norms.

    Returns:
        A new tensor [T, q heads * D] of qkv's dtype.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    if not qkv.is_cpu:
        from kernels.rope_attention import triton
        from kernels.rope_attention.whole_prompt import is_whole_prompt, whole_prompt

        if is_whole_prompt(len(qkv), batch):
            return whole_prompt(
                qkv, positions, rope, cache, slots, batch, scale, q_norm, k_norm, eps
            )
        if triton.fits(qkv, cache, batch, q_norm):
            return triton.rope_attention(qkv, positions, rope, cache, slots, batch, scale)
    q = rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)
    return paged_attention(q, cache, batch, scale)
