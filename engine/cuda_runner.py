"""Plans on a GPU: CUDA graphs for decode, several tokens a plan, and for prefill pieces."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from engine.config import EngineConfig
from engine.cuda_chunk import DecodeChunk
from engine.cuda_prefill import PIECE_LENGTHS, PrefillPiece
from engine.runner import (
    Model,
    StepInputs,
    accepted_tokens,
    read_kv_blocks,
    write_kv_blocks,
)
from engine.sampling_rows import sampling_row
from engine.step import StepOutput, StepPlan, StepTimes, Work
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingBatch, SamplingRow
from kernels.sampling.triton import sample_triton

# Batch sizes with a graph of their own; between them rows are padded.
ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# Contexts at which another number of programs shares a sequence's attention.
CONTEXT_STEPS = (1024, 4096, 16384, 65536, 1 << 20)


class CudaRunner:
    """Runs plans on a GPU.

    Sequences that decode with plain sampling (any temperature, top_k, top_p, min_p) go
    through a CUDA graph, captured when its batch size first occurs, replayed once a token
    with all state on the device, and read back once a plan. A prefill piece that comes
    alone has graphs by length. Everything else goes in one eager pass: long or several
    pieces, drafts, and rows with penalties, bias or masked tokens, which get one token
    a plan.

    Args:
        model: The model, on `device`.
        config: The engine's, for the size of the KV pool.
        device: cuda, or cpu for a test of the logic.
        kv_dtype: Of the KV pool.
        max_decode_steps: Most tokens a sequence decodes in one plan.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        device: torch.device | str = "cuda",
        kv_dtype: torch.dtype = torch.bfloat16,
        max_decode_steps: int = 4,
    ) -> None:
        self._model = model
        self._device = torch.device(device)
        self._block_size = config.block_size
        self._max_steps = max_decode_steps
        window = model.config.context_window
        self._max_blocks = min(-(-window // config.block_size) + 1, config.num_blocks)
        shape = (
            config.num_blocks,
            model.config.num_kv_heads,
            config.block_size,
            model.config.head_dim,
        )
        self._caches = [
            LayerCache(
                torch.zeros(shape, dtype=kv_dtype, device=self._device),
                torch.zeros(shape, dtype=kv_dtype, device=self._device),
            )
            for _ in range(model.config.num_layers)
        ]
        self._chunks: dict[tuple[int, int], DecodeChunk] = {}
        self._pieces: dict[int, PrefillPiece] = {}
        on_gpu = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None

    @property
    def max_decode_steps(self) -> int:
        return self._max_steps

    def run(self, plan: StepPlan) -> StepOutput:
        """See `engine.step.Runner`."""
        started = time.perf_counter()
        chunked: list[tuple[Work, SamplingRow]] = []
        eager: list[Work] = []
        for item in plan.work:
            row = _plain_row(item)
            if row is None:
                eager.append(item)
            else:
                chunked.append((item, row))
        tokens: dict[int, list[int]] = {}
        if eager:
            tokens |= self._run_eager(StepPlan(tuple(eager)))
        for first in range(0, len(chunked), ROW_COUNTS[-1]):
            part = chunked[first : first + ROW_COUNTS[-1]]
            longest = max(item.start for item, _ in part)
            decoded = self.chunk(len(part), longest + self._max_steps).run(part)
            tokens |= {item.sequence.id: row for (item, _), row in zip(part, decoded, strict=True)}
        return StepOutput(tokens, StepTimes(forward_s=time.perf_counter() - started))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See `engine.step.Runner`."""
        sources = torch.tensor([source for source, _ in pairs], device=self._device)
        targets = torch.tensor([target for _, target in pairs], device=self._device)
        for cache in self._caches:
            for values in (cache.k, cache.v):
                values[targets] = values[sources]

    def warm_up(self, row_counts: Sequence[int], piece_lengths: Sequence[int]) -> None:
        """Compile and capture ahead, so that no request pays for it.

        Args:
            row_counts: Batch sizes that will decode.
            piece_lengths: Prefill pieces that will come, tokens.
        """
        for length in piece_lengths:
            self.piece(length)
        for count in row_counts:
            self.chunk(count, CONTEXT_STEPS[0])

    def read_blocks(self, blocks: list[int]) -> list[np.ndarray]:
        """See `engine.step.Runner`."""
        return list(read_kv_blocks(self._caches, blocks))

    def write_blocks(self, blocks: list[int], contents: Sequence[np.ndarray]) -> None:
        """See `engine.step.Runner`."""
        write_kv_blocks(self._caches, blocks, contents)

    def chunk(self, num_rows: int, context_len: int) -> DecodeChunk:
        """The decode chunk for a batch, captured on first use."""
        rows = next(count for count in ROW_COUNTS if count >= num_rows)
        context = next(step for step in CONTEXT_STEPS if step >= context_len)
        key = (rows, context)
        if key not in self._chunks:
            self._chunks[key] = DecodeChunk(
                self._model.forward, self._caches, rows, context, self._max_blocks,
                self._max_steps, self._device, self._pool,
            )  # fmt: skip
        return self._chunks[key]

    def piece(self, num_tokens: int) -> PrefillPiece:
        """The graph for a prefill piece, captured on first use."""
        length = next(length for length in PIECE_LENGTHS if length >= num_tokens)
        if length not in self._pieces:
            self._pieces[length] = PrefillPiece(
                self._model.forward, self._caches, length, self._max_blocks, self._device,
                self._pool,
            )  # fmt: skip
        return self._pieces[length]

    def _run_eager(self, plan: StepPlan) -> dict[int, list[int]]:
        inputs = StepInputs(plan, self._block_size)
        if _is_one_piece(plan):
            logits = self.piece(plan.num_tokens).run(inputs)
        else:
            logits = self._model.forward(
                self._move(inputs.token_ids), self._move(inputs.positions),
                self._move(inputs.slots), self._move_batch(inputs.batch), self._caches,
                self._move(inputs.logits_rows),
            )  # fmt: skip
        tokens: Sequence[int] = []
        if inputs.rows:
            tokens = sample_triton(logits, SamplingBatch.from_rows(inputs.rows)).tolist()
        elif self._device.type == "cuda":
            # What the scheduler measures as this step's time must be its own.
            torch.cuda.current_stream().synchronize()
        return accepted_tokens(plan, list(tokens))

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _move_batch(self, batch: AttentionBatch) -> AttentionBatch:
        return AttentionBatch(
            self._move(batch.query_starts), self._move(batch.context_lens),
            self._move(batch.block_tables), batch.max_query_len, batch.max_context_len,
        )  # fmt: skip


def _plain_row(item: Work) -> SamplingRow | None:
    """How to sample, if the next tokens depend on nothing but the device's own state."""
    if item.num_tokens != 1 or item.draft or not item.samples:
        return None
    row = sampling_row(item.sequence)
    return None if row.bias or row.seen or row.masked else row


def _is_one_piece(plan: StepPlan) -> bool:
    """Whether a prefill graph computes this plan: one piece, not too short nor too long.

    Drafts want the logits of several tokens, and the graph gives the last one's.
    """
    if len(plan.work) != 1 or plan.work[0].draft:
        return False
    return PIECE_LENGTHS[0] // 2 <= plan.num_tokens <= PIECE_LENGTHS[-1]
