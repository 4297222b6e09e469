"""Drives a model's forward over sequences with a paged cache, without the engine."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from engine.model.llama import CausalLM
from kernels.kv_cache import AttentionBatch, LayerCache


class PagedRun:
    """Some sequences side by side, their blocks scattered over one cache.

    Args:
        model: The model.
        num_sequences: How many.
        max_tokens: The longest a sequence gets.
        block_size: Tokens a block.
        kv_dtype: One of `kernels.kv_cache.KV_DTYPES`.

    Attributes:
        caches: Each layer's.
    """

    def __init__(
        self,
        model: CausalLM,
        num_sequences: int,
        max_tokens: int,
        block_size: int = 16,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        config = model.config
        per_sequence = -(-max_tokens // block_size)
        blocks = list(range(num_sequences * per_sequence))
        random.Random(0).shuffle(blocks)
        self._model = model
        self._block_size = block_size
        self._tables = torch.tensor(blocks, dtype=torch.int32).view(num_sequences, per_sequence)
        shape = (len(blocks), config.num_kv_heads, block_size, config.head_dim)
        self.caches = [LayerCache.zeros(shape, kv_dtype, "cpu") for _ in range(config.num_layers)]
        # NaN shows where something reads what it never wrote; 8-bit values have it in the scale.
        for cache in self.caches:
            for tensor in cache.tensors():
                if tensor.itemsize > 1:
                    tensor.fill_(torch.nan)
        self._lengths = [0] * num_sequences

    def step(self, pieces: Sequence[Sequence[int]], *, all_rows: bool = False) -> torch.Tensor:
        """Append a piece of tokens, at least one, to each sequence.

        Returns:
            float32 [sequences, vocab]: the logits after each piece; with `all_rows`
            [tokens, vocab], after each token.
        """
        starts = [0]
        positions: list[int] = []
        slots: list[int] = []
        for index, piece in enumerate(pieces):
            begin = self._lengths[index]
            for position in range(begin, begin + len(piece)):
                block = int(self._tables[index, position // self._block_size])
                positions.append(position)
                slots.append(block * self._block_size + position % self._block_size)
            self._lengths[index] += len(piece)
            starts.append(starts[-1] + len(piece))
        batch = AttentionBatch(
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(self._lengths, dtype=torch.int32),
            self._tables,
            max(map(len, pieces)),
            max(self._lengths),
        )
        rows = torch.arange(starts[-1]) if all_rows else torch.tensor(starts[1:]) - 1
        tokens = torch.tensor([token for piece in pieces for token in piece])
        return self._model.forward(
            tokens, torch.tensor(positions), torch.tensor(slots), batch, self.caches, rows
        )


def all_logits(
    model: CausalLM, tokens: Sequence[int], kv_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """float32 [tokens, vocab]: the logits after each token of one sequence."""
    return PagedRun(model, 1, len(tokens), kv_dtype=kv_dtype).step([tokens], all_rows=True)
