"""Guessed tokens checked on the GPU: a step of some sequences by several tokens, as a graph.

Each sequence brings its last known token and a draft. What comes after each of them is
sampled in the graph, at the noise of its own position, as a plain step would sample it; the
host keeps a draft as far as it is what was sampled (`engine.runner.accept_draft`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.cuda_graph import Pool, StepGraph
from engine.cuda_memory import MAX_LOGITS_ROWS
from engine.runner import StepInputs
from engine.step import Work
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingRow
from kernels.sampling.triton import DeviceRows, sample_rows

# Draft lengths with a graph of their own; shorter drafts are padded.
DRAFT_LENGTHS = (1, 2, 4, 8, 16)
Forward = Callable[..., torch.Tensor]


class VerifyStep:
    """Computes and samples up to `num_rows` sequences by up to 1 + `draft_len` tokens.

    Args:
        forward: The model's; see `engine.runner.Model`.
        caches: One a layer.
        num_rows: Sequences; those that aren't there are padding.
        draft_len: Guessed tokens of the longest draft.
        max_blocks: Blocks of the longest sequence that may come.
        device: Where it runs.
        pool: The graphs' shared memory.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Sequence[LayerCache],
        num_rows: int,
        draft_len: int,
        max_blocks: int,
        device: torch.device,
        pool: Pool,
    ) -> None:
        self._forward = forward
        self._caches = caches
        num_tokens = num_rows * (1 + draft_len)
        pinned = device.type == "cuda"
        # ids, positions, slots, seeds, sample positions
        self._host_ints = torch.zeros(5, num_tokens, dtype=torch.int64, pin_memory=pinned)
        # temperature, top_p, min_p
        self._host_floats = torch.zeros(3, num_tokens, dtype=torch.float32, pin_memory=pinned)
        # query starts, context lengths, top_k
        sizes = (num_rows + 1, num_rows, num_tokens)
        self._host_lens = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        self._host_tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, pin_memory=pinned)
        self._host_tokens = torch.zeros(num_tokens, dtype=torch.int64, pin_memory=pinned)
        self._ints, self._floats, self._lens, self._tables, self._tokens = (
            torch.zeros_like(host, device=device, pin_memory=False)
            for host in (
                *(self._host_ints, self._host_floats, self._host_lens),
                *(self._host_tables, self._host_tokens),
            )
        )
        self._starts, self._contexts, self._top_k = self._host_lens.split(sizes)
        starts, contexts, top_k = self._lens.split(sizes)
        self._batch = AttentionBatch(
            query_starts=starts,
            context_lens=contexts,
            block_tables=self._tables,
            max_query_len=1 + draft_len,
            max_context_len=max_blocks * caches[0].block_size,
        )
        temperature, top_p, min_p = self._floats
        self._sampling = DeviceRows(temperature, top_k, top_p, min_p, self._ints[3], self._ints[4])
        self._rows = torch.arange(num_tokens, device=device)
        # Padding alone: every kernel is compiled, and no KV is written.
        self._host_ints[2] = -1
        self._host_floats[1] = 1.0
        self._upload()
        self._graph = StepGraph(self._step, pool)

    def run(self, inputs: StepInputs, rows: Sequence[SamplingRow]) -> list[int]:
        """What is sampled after each token of a plan.

        Args:
            inputs: The plan's, every token of which is sampled.
            rows: How, without bias, penalties or masks.
        """
        count, num_sequences = len(rows), len(inputs.batch.context_lens)
        self._fill_tokens(inputs, count)
        self._fill_sampling(rows)
        self._starts[: num_sequences + 1] = inputs.batch.query_starts
        # Sequences that aren't there have no tokens.
        self._starts[num_sequences + 1 :] = count
        self._contexts.zero_()
        self._contexts[:num_sequences] = inputs.batch.context_lens
        tables = inputs.batch.block_tables
        self._host_tables[:num_sequences, : tables.shape[1]] = tables
        self._upload()
        self._graph.run()
        self._host_tokens.copy_(self._tokens, non_blocking=True)
        if self._tokens.is_cuda:
            torch.cuda.current_stream().synchronize()
        return self._host_tokens[:count].tolist()

    def _fill_tokens(self, inputs: StepInputs, count: int) -> None:
        ids, positions, slots, *_ = self._host_ints
        ids[:count], positions[:count], slots[:count] = (
            inputs.token_ids, inputs.positions, inputs.slots
        )  # fmt: skip
        ids[count:] = 0
        positions[count:] = 0
        slots[count:] = -1

    def _fill_sampling(self, rows: Sequence[SamplingRow]) -> None:
        ints, floats, count = self._host_ints.numpy(), self._host_floats.numpy(), len(rows)
        ints[3:, :count] = np.array([(row.seed, row.position) for row in rows], np.int64).T
        floats[:, :count] = np.array(
            [(0.0 if row.is_greedy else row.temperature, row.top_p, row.min_p) for row in rows],
            np.float32,
        ).T
        # Padding chooses the likeliest.
        floats[:, count:] = [[0.0], [1.0], [0.0]]
        self._top_k[:count] = torch.tensor(
            [min(max(row.top_k, 0), 2**31 - 1) for row in rows], dtype=torch.int32
        )
        self._top_k[count:] = 0

    @torch.inference_mode()
    def _step(self) -> None:
        ids, positions, slots, _, _ = self._ints
        logits = self._forward(ids, positions, slots, self._batch, self._caches, self._rows)
        sample_rows(logits, self._sampling, self._tokens)

    def _upload(self) -> None:
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._floats.copy_(self._host_floats, non_blocking=True)
        self._lens.copy_(self._host_lens, non_blocking=True)
        self._tables.copy_(self._host_tables, non_blocking=True)


def graph_size(work: Sequence[Work], row_counts: Sequence[int]) -> tuple[int, int] | None:
    """(sequences, draft length) of the graph that checks a plan; None if none does.

    Args:
        work: A plan's.
        row_counts: Numbers of sequences that have graphs, ascending.
    """
    if not any(item.draft for item in work):
        return None
    if any(item.num_tokens != 1 or not item.samples for item in work):
        return None
    longest = max(len(item.draft) for item in work)
    rows = next((count for count in row_counts if count >= len(work)), None)
    length = next((length for length in DRAFT_LENGTHS if length >= longest), None)
    if rows is None or length is None or rows * (1 + length) > MAX_LOGITS_ROWS:
        return None
    return rows, length
