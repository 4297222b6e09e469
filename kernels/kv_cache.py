"""The paged KV cache's tensors and the description of one step over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.checks import expect


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's K and V.

    Raises ValueError if k and v differ in shape or dtype, or are not contiguous.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim].
        v: Same shape and dtype as k.
    """

    k: torch.Tensor
    v: torch.Tensor

    def __post_init__(self) -> None:
        expect("cache.k", self.k, [None] * 4, [self.k.dtype])
        expect("cache.v", self.v, self.k.shape, [self.k.dtype])

    @property
    def block_size(self) -> int:
        return self.k.shape[2]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which query tokens belong to which sequence, and where their KV lies.

    T query tokens of B sequences, concatenated in order. Sequence b's query
    tokens are rows query_starts[b] : query_starts[b + 1], and the last of them is
    at position context_lens[b] - 1, so the first is at context_lens[b] minus its
    number of query tokens. A decode step has one query token a sequence.

    Attributes:
        query_starts: int32 [B + 1].
        context_lens: int32 [B]; KV tokens in all, this step's own included.
        block_tables: int32 [B, max_blocks]; entries past a sequence's blocks are
            never read.
        max_query_len: The longest sequence piece in this batch.
        max_context_len: The longest context in this batch.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int

    def __post_init__(self) -> None:
        num_sequences = self.context_lens.numel()
        expect("query_starts", self.query_starts, [num_sequences + 1], [torch.int32])
        expect("context_lens", self.context_lens, [num_sequences], [torch.int32])
        expect("block_tables", self.block_tables, [num_sequences, None], [torch.int32])
