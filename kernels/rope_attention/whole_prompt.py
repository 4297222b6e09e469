"""Attention of a long prompt over itself, by the vendor's library, on q, k and v where they are.

On Hopper it is twice as fast as our own kernel. K and V of a whole prompt need not come
from the cache: rotated in place, they are views of the projection's result.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cuda.launch import capability
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention.triton import attend_singles
from kernels.rope_kv_write.triton import rope_in_place

# Longer than any piece that is captured in a graph, and than what padding would double.
LIBRARY_TOKENS = 1537
# Lengths are padded to multiples: the library plans for each length that it meets, which
# takes it about a tenth of a second.
LENGTH_STEP = 1024


def has_library_attention() -> bool:
    """Whether the library has a kernel that is worth it: Hopper and later."""
    return capability() >= (9, 0) and torch.backends.cudnn.is_available()


def is_whole_prompt(num_tokens: int, batch: AttentionBatch) -> bool:
    """Whether a step is one sequence from its first token on, beside decodes or not.

    Graphs of padded pieces are shorter: there the lengths would be the padding's.

    Args:
        num_tokens: Of the step.
        batch: The step's.
    """
    pieces = batch
    if batch.apart is not None:
        num_tokens -= len(batch.apart[0].context_lens)
        pieces = batch.apart[1]
    return (
        len(pieces.context_lens) == 1
        and num_tokens >= LIBRARY_TOKENS
        and pieces.max_query_len == pieces.max_context_len == num_tokens
        and has_library_attention()
    )


def padded_length(num_tokens: int) -> int:
    """The length that a prompt of so many tokens is computed at."""
    return -(-num_tokens // LENGTH_STEP) * LENGTH_STEP


def plan_whole_prompt(
    num_tokens: int, num_q: int, num_kv: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Let the library plan, on this thread, for prompts of this padded length; waits for it."""
    width = (num_q + 2 * num_kv) * head_dim
    qkv = torch.zeros(padded_length(num_tokens), width, dtype=dtype, device="cuda")
    attend_views(qkv, num_kv, head_dim, 1.0)
    torch.cuda.synchronize()


def whole_prompt(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """See `kernels.rope_attention`; only where `is_whole_prompt` says so."""
    rope_in_place(qkv, positions, rope, cache, slots, q_norm, k_norm, eps)
    _, num_kv, _, head_dim = cache.k.shape
    if batch.apart is None:
        return attend_views(qkv, num_kv, head_dim, scale)
    singles = batch.apart[0]
    first = len(singles.context_lens)
    attended = attend_views(qkv[first:], num_kv, head_dim, scale)
    q = qkv[:first, : attended.shape[1]].contiguous().view(first, -1, head_dim)
    return torch.cat((attend_singles(q, cache, singles, scale), attended))


def attend_views(qkv: torch.Tensor, num_kv: int, head_dim: int, scale: float) -> torch.Tensor:
    """Causal attention [T, q heads * D] of the rotated q, k and v of one sequence.

    Args:
        qkv: [T, (q heads + 2 * kv heads) * D].
        num_kv: KV heads.
        head_dim: D.
        scale: As for `kernels.paged_attention`.
    """
    num_tokens = len(qkv)
    missing = padded_length(num_tokens) - num_tokens
    if missing:
        # Padding comes after all tokens, so that none of them sees it.
        qkv = torch.nn.functional.pad(qkv, (0, 0, 0, missing))
    heads = qkv.unflatten(1, (-1, head_dim)).transpose(0, 1).unsqueeze(0)
    q, k, v = heads.split([heads.shape[1] - 2 * num_kv, num_kv, num_kv], dim=1)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
    # In q's own order of axes, so that this is a view.
    return attended[0].transpose(0, 1).flatten(1)[:num_tokens]
