"""A decode chunk on the GPU: its buffers, and the CUDA graph of one step over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.step import Work
from kernels.cuda.launch import overlapped_launches
from kernels.decode_state.triton import advance
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingRow
from kernels.sampling.triton import DeviceRows, sample_rows

# Rows from which starting a kernel early gains less than it disturbs.
OVERLAP_ROWS = 64

Forward = Callable[..., torch.Tensor]


class DecodeChunk:
    """Decodes up to `num_rows` sequences some tokens on, without the host in between.

    Args:
        forward: The model's; see `engine.runner.Model`.
        caches: One a layer.
        num_rows: Rows of the batch; those without a sequence are padding.
        max_context_len: Longest context of any row, rounded up; sizes the attention.
        max_blocks: Blocks of the longest sequence that may come.
        max_steps: Most steps a chunk.
        device: Where it runs.
        pool: The graphs' shared memory pool; None runs without a graph.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Sequence[LayerCache],
        num_rows: int,
        max_context_len: int,
        max_blocks: int,
        max_steps: int,
        device: torch.device,
        pool: tuple[int, int] | None,
    ) -> None:
        self._forward = forward
        self._caches = caches
        self._block_size = caches[0].block_size
        self._num_rows = num_rows
        pinned = device.type == "cuda"
        # ids, positions, sample positions, slots, limits, seeds, steps
        self._host_ints = torch.empty(7, num_rows, dtype=torch.int64, pin_memory=pinned)
        # context length, top_k
        self._host_lens = torch.zeros(2, num_rows, dtype=torch.int32, pin_memory=pinned)
        self._host_tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, pin_memory=pinned)
        self._host_floats = torch.empty(3, num_rows, dtype=torch.float32, pin_memory=pinned)
        self._host_out = torch.empty(max_steps, num_rows, dtype=torch.int64, pin_memory=pinned)
        self._ints = torch.empty(7, num_rows, dtype=torch.int64, device=device)
        self._tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device)
        self._floats = torch.empty(3, num_rows, dtype=torch.float32, device=device)
        self._lens = torch.zeros(2, num_rows, dtype=torch.int32, device=device)
        self._out = torch.empty(max_steps, num_rows, dtype=torch.int64, device=device)
        self._rows = torch.arange(num_rows, device=device)
        self._batch = AttentionBatch(
            query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            context_lens=self._lens[0],
            block_tables=self._tables,
            max_query_len=1,
            max_context_len=max_context_len,
        )
        temperature, top_p, min_p = self._floats
        self._sampling = DeviceRows(
            temperature, self._lens[1], top_p, min_p, self._ints[5], self._ints[2]
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        if pool is not None:
            self._capture(pool)

    def run(self, work: Sequence[tuple[Work, SamplingRow]]) -> list[list[int]]:
        """Decode; the tokens of each of `work`, as many as it asks for."""
        num_steps = max(item.num_decode_steps for item, _ in work)
        self._fill(work)
        self._upload()
        for _ in range(num_steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        self._host_out[:num_steps].copy_(self._out[:num_steps], non_blocking=True)
        if self._out.is_cuda:
            torch.cuda.current_stream().synchronize()
        tokens = self._host_out[:num_steps, : len(work)].T.tolist()
        return [row[: item.num_decode_steps] for row, (item, _) in zip(tokens, work, strict=True)]

    def _capture(self, pool: tuple[int, int]) -> None:
        # With padding alone, a step compiles every kernel and writes no KV.
        self._fill(())
        self._upload()
        self._step()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._step()

    @torch.inference_mode()
    def _step(self) -> None:
        ids, positions, sample_positions, slots, limits, _, steps = self._ints
        with overlapped_launches(self._num_rows < OVERLAP_ROWS):
            logits = self._forward(ids, positions, slots, self._batch, self._caches, self._rows)
            sampled = sample_rows(logits, self._sampling)
            advance(
                sampled, ids, positions, sample_positions, slots, self._lens[0], limits,
                self._batch.block_tables, self._out, steps, self._block_size,
            )  # fmt: skip

    def _upload(self) -> None:
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._floats.copy_(self._host_floats, non_blocking=True)
        self._tables.copy_(self._host_tables, non_blocking=True)
        self._lens.copy_(self._host_lens, non_blocking=True)

    def _fill(self, work: Sequence[tuple[Work, SamplingRow]]) -> None:
        ints, floats = self._host_ints.numpy(), self._host_floats.numpy()
        lens, tables = self._host_lens.numpy(), self._host_tables.numpy()
        ints[:] = 0
        ints[3] = -1
        lens[:] = 0
        floats[0] = 0.0
        floats[1] = 1.0
        floats[2] = 0.0
        columns = []
        for i, (item, row) in enumerate(work):
            seq, position = item.sequence, item.start
            table = seq.block_table
            tables[i, : len(table)] = table
            slot = table[position // self._block_size] * self._block_size
            columns.append(
                (
                    seq.tokens[position], position, row.position,
                    slot + position % self._block_size, position + item.num_decode_steps,
                    row.seed, 0,
                )
            )  # fmt: skip
        if not work:
            return
        count = len(work)
        ints[:, :count] = np.array(columns, np.int64).T
        lens[0, :count] = ints[1, :count] + 1
        lens[1, :count] = [min(max(row.top_k, 0), 2**31 - 1) for _, row in work]
        floats[0, :count] = [0.0 if row.is_greedy else row.temperature for _, row in work]
        floats[1, :count] = [row.top_p for _, row in work]
        floats[2, :count] = [row.min_p for _, row in work]
