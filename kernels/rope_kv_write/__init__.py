"""Rotary embedding of q and k, and the write of k and v to the paged cache."""

from __future__ import annotations

import torch

from kernels.kv_cache import LayerCache
from kernels.rope_kv_write import cpu


def rope_table(inverse_frequencies: torch.Tensor, max_positions: int) -> torch.Tensor:
    """The `rope` argument of `rope_kv_write`: D / 2 cosines, then D / 2 sines a position.

    Args:
        inverse_frequencies: [D / 2], radians a position, after any scaling.
        max_positions: Positions to tabulate.

    Returns:
        float32 [max_positions, D], computed in float64.
    """
    positions = torch.arange(max_positions, dtype=torch.float64)
    angles = torch.outer(positions, inverse_frequencies.double().cpu())
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


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
    """Rotate q and k, write k and v to their slots, return q.

    Element i of a head pairs with element i + D / 2, as in Hugging Face checkpoints.

    Args:
        qkv: [T, (q heads + 2 * kv heads) * D]: all q heads, then k, then v; float32 on
            the CPU. Rows may be strided.
        positions: int32 or int64 [T], each a row of `rope`.
        rope: float32 [positions, D]: D / 2 cosines, then D / 2 sines (`rope_table`).
        cache: Written at `slots`; 8-bit values with the scale of their vector.
        slots: Dtype of `positions`, [T]: block * block_size + offset; a negative slot
            writes nothing.
        q_norm: [D], RMSNorm over each q head before rotation; None for none.
        k_norm: [D], the same for k.
        eps: Of those norms.

    Returns:
        A new tensor [T, q heads, D] of qkv's dtype.

    Raises:
        ValueError: Wrong shape or dtype or, on the CPU, a position or slot out of range.
    """
    if qkv.is_cpu:
        return cpu.rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)
    from kernels.rope_kv_write import triton

    return triton.rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)
