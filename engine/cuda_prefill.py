"""A prefill piece of one sequence on the GPU, as a CUDA graph over padded tokens.

A piece of some hundred tokens is computed faster than Python launches its kernels, so the
time to the first token would be the launches'. The token after it is sampled in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.cuda_graph import Pool, StepGraph
from engine.runner import StepInputs
from kernels.cuda.launch import overlapped_launches
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingRow
from kernels.sampling.triton import DeviceRows, sample_rows

# Lengths with a graph of their own; pieces between them are padded. Longer pieces keep
# the GPU busy enough without one.
PIECE_LENGTHS = (32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)

# Pieces up to this length gain from kernels that start before their predecessors end.
OVERLAP_TOKENS = 256

Forward = Callable[..., torch.Tensor]


class PrefillPiece:
    """Computes one piece of at most `length` tokens.

    Args:
        forward: The model's; see `engine.runner.Model`.
        caches: One a layer.
        length: Tokens, with padding.
        max_blocks: Blocks of the longest sequence that may come.
        device: Where it runs.
        pool: The graphs' shared memory.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Sequence[LayerCache],
        length: int,
        max_blocks: int,
        device: torch.device,
        pool: Pool,
    ) -> None:
        self._forward = forward
        self._caches = caches
        self._length = length
        pinned = device.type == "cuda"
        # ids, positions, slots; then the row whose logits are wanted, and its sampling:
        # seed, position.
        self._host_ints = torch.zeros(3 * length + 3, dtype=torch.int64, pin_memory=pinned)
        # the number of tokens, the context's length, top_k, the block table
        self._host_table = torch.zeros(4 + max_blocks, dtype=torch.int32, pin_memory=pinned)
        # temperature, top_p, min_p
        self._host_floats = torch.zeros(3, 1, dtype=torch.float32, pin_memory=pinned)
        self._ints = torch.zeros(3 * length + 3, dtype=torch.int64, device=device)
        self._table = torch.zeros(4 + max_blocks, dtype=torch.int32, device=device)
        self._floats = torch.zeros(3, 1, dtype=torch.float32, device=device)
        self._token = torch.zeros(1, dtype=torch.int64, device=device)
        self._batch = AttentionBatch(
            query_starts=self._table[:2],
            context_lens=self._table[2:3],
            block_tables=self._table[4:].unsqueeze(0),
            max_query_len=length,
            max_context_len=max_blocks * caches[0].block_size,
        )
        self._sampling = DeviceRows(
            self._floats[0], self._table[3:4], self._floats[1], self._floats[2],
            self._ints[-2:-1], self._ints[-1:],
        )  # fmt: skip
        self._logits: torch.Tensor | None = None
        # Padding alone: every kernel is compiled, and no KV is written.
        self._host_ints[2 * length : 3 * length] = -1
        self._host_table[1:3] = 1
        self._upload()
        self._graph = StepGraph(self._step, pool)

    def run(self, inputs: StepInputs, row: SamplingRow | None = None) -> None:
        """Compute a plan of one piece.

        Args:
            inputs: The plan's.
            row: How to sample the token after it; None leaves that to the caller.
        """
        num_tokens = len(inputs.token_ids)
        ints = self._host_ints[:-3].view(3, self._length)
        ints.zero_()
        ints[2] = -1
        for values, given in zip(
            ints, (inputs.token_ids, inputs.positions, inputs.slots), strict=True
        ):
            values[:num_tokens] = given
        self._host_ints[-3] = num_tokens - 1
        blocks = inputs.batch.block_tables[0]
        self._host_table[1] = num_tokens
        self._host_table[2] = inputs.batch.context_lens[0]
        self._host_table[4 : 4 + len(blocks)] = blocks
        self._fill_sampling(row or SamplingRow(temperature=0.0))
        self._upload()
        self._graph.run()

    @property
    def logits(self) -> torch.Tensor:
        """[1, vocab] after the last run's last token; valid until the next run."""
        assert self._logits is not None
        return self._logits

    @property
    def token(self) -> torch.Tensor:
        """int64 [1]: what the last run sampled, on the device; valid until the next run."""
        return self._token

    def _fill_sampling(self, row: SamplingRow) -> None:
        self._host_ints[-2] = row.seed
        self._host_ints[-1] = row.position
        self._host_table[3] = min(max(row.top_k, 0), 2**31 - 1)
        self._host_floats[0] = 0.0 if row.is_greedy else row.temperature
        self._host_floats[1] = row.top_p
        self._host_floats[2] = row.min_p

    @torch.inference_mode()
    def _step(self) -> None:
        ids, positions, slots = self._ints[:-3].view(3, self._length)
        with overlapped_launches(self._length <= OVERLAP_TOKENS):
            self._logits = self._forward(
                ids, positions, slots, self._batch, self._caches, self._ints[-3:-2]
            )
            sample_rows(self._logits, self._sampling, self._token)

    def _upload(self) -> None:
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._table.copy_(self._host_table, non_blocking=True)
        self._floats.copy_(self._host_floats, non_blocking=True)
