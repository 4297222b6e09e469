"""Attention of a long prompt over itself, by the vendor's library on contiguous tensors.

Gathering K and V from the paged cache costs little beside the products, which the library
does twice as fast as our own kernel on Hopper.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cuda.launch import capability
from kernels.kv_cache import AttentionBatch, LayerCache

# Longer than any piece that is captured in a graph, and than what padding would double.
LIBRARY_TOKENS = 1537
# Lengths are padded to multiples: the library plans for each length that it meets, which
# takes it about a tenth of a second.
LENGTH_STEP = 1024


def has_library_attention() -> bool:
    """Whether the library has a kernel that is worth it: Hopper and later."""
    return capability() >= (9, 0) and torch.backends.cudnn.is_available()


def padded_length(num_tokens: int) -> int:
    """The length that a prompt of so many tokens is computed at."""
    return -(-num_tokens // LENGTH_STEP) * LENGTH_STEP


def plan_whole_prompt(
    num_tokens: int, num_q: int, num_kv: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Let the library plan, on this thread, for prompts of this padded length; waits for it."""
    length = padded_length(num_tokens)
    q = torch.zeros(length, num_q, head_dim, dtype=dtype, device="cuda")
    k = torch.zeros(1, num_kv, length, head_dim, dtype=dtype, device="cuda")
    _attend(q, k, k, 1.0)
    torch.cuda.synchronize()


def whole_prompt(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """Causal attention of one sequence's tokens, all of them in `q`.

    Args:
        q: [T, q heads, D], rotated.
        cache: Holds the KV of the same T tokens.
        batch: One sequence.
        scale: As for `kernels.paged_attention`.

    Returns:
        [T, q heads * D].
    """
    num_tokens = q.shape[0]
    length = padded_length(num_tokens)
    if length > num_tokens:
        # Padding comes after all tokens, so that none of them sees it.
        q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, length - num_tokens))
    num_blocks = -(-num_tokens // cache.block_size)
    blocks = batch.block_tables[0, :num_blocks]
    k, v = (_contiguous(values, blocks, num_tokens, length) for values in (cache.k, cache.v))
    return _attend(q, k, v, scale)[:num_tokens]


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """[T, q heads * D] of q [T, q heads, D] over K and V [1, KV heads, T, D]."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0), k, v, is_causal=True, scale=scale, enable_gqa=True
        )
    # In q's own order of axes, so that this is a view.
    return attended[0].transpose(0, 1).flatten(1)


def _contiguous(
    values: torch.Tensor, blocks: torch.Tensor, num_tokens: int, length: int
) -> torch.Tensor:
    """The tokens in blocks [n] of a cache as [1, KV heads, length, D], zeros after the last."""
    heads = values.index_select(0, blocks).transpose(0, 1).flatten(1, 2)
    # A former owner's NaN would get through a weight of 0.
    heads[:, num_tokens:] = 0
    missing = length - heads.shape[1]
    if missing > 0:
        heads = torch.nn.functional.pad(heads, (0, 0, 0, missing))
    return heads[:, :length].unsqueeze(0)
