"""Attention of a long prompt over itself, by the vendor's library on contiguous tensors.

Gathering K and V from the paged cache costs little beside the products, which the library
does twice as fast as our own kernel on Hopper.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cuda.launch import capability
from kernels.kv_cache import AttentionBatch, LayerCache

# Longer than any piece that is captured in a graph.
LIBRARY_TOKENS = 1025
# Lengths are padded to multiples: the library plans for each length that it meets.
LENGTH_STEP = 512


def has_library_attention() -> bool:
    """Whether the library has a kernel that is worth it: Hopper and later."""
    return capability() >= (9, 0) and torch.backends.cudnn.is_available()


def whole_prompt(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    """Causal attention of one sequence's tokens, all of them in `q`, to `out`.

    Args:
        q: [T, q heads, D], rotated.
        cache: Holds the KV of the same T tokens.
        batch: One sequence.
        scale: As for `kernels.paged_attention`.
        out: [T, q heads * D].
    """
    num_tokens, num_q, head_dim = q.shape
    length = -(-num_tokens // LENGTH_STEP) * LENGTH_STEP
    # Padding comes after all tokens, so that none of them sees it.
    rows = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, length - num_tokens))
    num_blocks = -(-num_tokens // cache.block_size)
    blocks = batch.block_tables[0, :num_blocks]
    k, v = (_contiguous(values, blocks, num_tokens, length) for values in (cache.k, cache.v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attended = torch.nn.functional.scaled_dot_product_attention(
            rows.transpose(0, 1).unsqueeze(0), k, v, is_causal=True, scale=scale, enable_gqa=True
        )
    values = attended[0, :, :num_tokens].transpose(0, 1)
    out.view(num_tokens, num_q, head_dim).copy_(values)


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
