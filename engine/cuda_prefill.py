"""A prefill piece of one sequence on the GPU, as a CUDA graph over padded tokens.

A piece of some hundred tokens is computed faster than Python launches its kernels, so the
time to the first token would be the launches'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.runner import StepInputs
from kernels.kv_cache import AttentionBatch, LayerCache

# Lengths with a graph of their own; pieces between them are padded. Longer pieces keep
# the GPU busy enough without one.
PIECE_LENGTHS = (32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)

Forward = Callable[..., torch.Tensor]


class PrefillPiece:
    """Computes one piece of at most `length` tokens.

    Args:
        forward: The model's; see `engine.runner.Model`.
        caches: One a layer.
        length: Tokens, with padding.
        max_blocks: Blocks of the longest sequence that may come.
        device: Where it runs.
        pool: The graphs' shared memory pool; None runs without a graph.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Sequence[LayerCache],
        length: int,
        max_blocks: int,
        device: torch.device,
        pool: tuple[int, int] | None,
    ) -> None:
        self._forward = forward
        self._caches = caches
        self._length = length
        pinned = device.type == "cuda"
        # ids, positions, slots; then the row whose logits are wanted.
        self._host_ints = torch.zeros(3 * length + 1, dtype=torch.int64, pin_memory=pinned)
        # the number of tokens, the context's length, the block table
        self._host_table = torch.zeros(3 + max_blocks, dtype=torch.int32, pin_memory=pinned)
        self._ints = torch.zeros(3 * length + 1, dtype=torch.int64, device=device)
        self._table = torch.zeros(3 + max_blocks, dtype=torch.int32, device=device)
        self._batch = AttentionBatch(
            query_starts=self._table[:2],
            context_lens=self._table[2:3],
            block_tables=self._table[3:].unsqueeze(0),
            max_query_len=length,
            max_context_len=max_blocks * caches[0].block_size,
        )
        self._logits: torch.Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        if pool is not None:
            self._capture(pool)

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [1, vocab] of the last token of a plan of one piece; valid until the next run."""
        num_tokens = len(inputs.token_ids)
        ints = self._host_ints[:-1].view(3, self._length)
        ints.zero_()
        ints[2] = -1
        for row, values in zip(
            ints, (inputs.token_ids, inputs.positions, inputs.slots), strict=True
        ):
            row[:num_tokens] = values
        self._host_ints[-1] = num_tokens - 1
        blocks = inputs.batch.block_tables[0]
        self._host_table[1] = num_tokens
        self._host_table[2] = inputs.batch.context_lens[0]
        self._host_table[3 : 3 + len(blocks)] = blocks
        self._upload()
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()
        assert self._logits is not None
        return self._logits

    def _capture(self, pool: tuple[int, int]) -> None:
        # Padding alone: every kernel is compiled, and no KV is written.
        self._host_ints[2 * self._length : -1] = -1
        self._host_table[1:3] = 1
        self._upload()
        self._step()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._step()

    @torch.inference_mode()
    def _step(self) -> None:
        ids, positions, slots = self._ints[:-1].view(3, self._length)
        self._logits = self._forward(
            ids, positions, slots, self._batch, self._caches, self._ints[-1:]
        )

    def _upload(self) -> None:
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._table.copy_(self._host_table, non_blocking=True)
