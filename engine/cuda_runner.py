"""Plans on a GPU: CUDA graphs for decode, several tokens a plan, and for prefill pieces."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from engine.config import EngineConfig
from engine.cuda_ahead import Ahead, AheadLength
from engine.cuda_chunk import DecodeChunk, Rows, Segment
from engine.cuda_eager import EagerPass
from engine.cuda_memory import MAX_GRAPHS, gauges
from engine.cuda_prefill import PIECE_LENGTHS, PrefillPiece
from engine.cuda_verify import VerifyStep, graph_size
from engine.kv_blocks import (
    copy_kv_blocks,
    kv_bytes_per_token,
    make_caches,
    read_kv_blocks,
    write_kv_blocks,
)
from engine.model.config import ModelConfig
from engine.runner import Model, StepInputs, accepted_tokens
from engine.sampling_rows import is_plain
from engine.shared_prefix import PrefixFinder, num_tiles, tile_sequences
from engine.step import StepOutput, StepPlan, StepTimes, Work
from kernels.sampling import SamplingBatch
from kernels.sampling.triton import sample_triton

K = TypeVar("K")
V = TypeVar("V")

# Batch sizes with a graph of their own; between them rows are padded.
ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# Contexts at which another number of programs shares a sequence's attention.
CONTEXT_STEPS = (1024, 4096, 16384, 65536, 1 << 20)


class CudaRunner:
    """Runs plans on a GPU.

    Sequences that decode with plain sampling (any temperature, top_k, top_p, min_p) go
    through a CUDA graph, captured when its batch size first occurs, replayed once a token
    with all state on the device, and read back once a plan; further tokens are made ahead
    while the host works on those. A prefill piece that comes alone has graphs by length,
    and so have decodes with drafts. Everything else goes in one eager pass: long or several
    pieces, and rows with penalties, bias or masked tokens, which get one token a plan.

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
        self._caches = make_caches(model.config, config, kv_dtype, self._device)
        self._chunks: dict[tuple[int, int, bool], DecodeChunk] = {}
        self._group = model.config.num_heads // model.config.num_kv_heads
        self._prefixes = PrefixFinder(
            config.block_size,
            kv_bytes_per_token(model.config, kv_dtype)
            * config.block_size
            // model.config.num_layers,
        )
        self._pieces: dict[int, PrefillPiece] = {}
        self._verifies: dict[tuple[int, int], VerifyStep] = {}
        self._ahead: Ahead | None = None
        self._ahead_length = AheadLength(max_decode_steps // 2)
        self._eager = EagerPass(model, self._caches, self._device)
        # Of the current plan: spent on graphs that the next of its kind finds.
        self._setup_s = 0.0
        on_gpu = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None

    @property
    def model_config(self) -> ModelConfig:
        return self._model.config

    @property
    def max_decode_steps(self) -> int:
        return self._max_steps

    @property
    def max_ahead_steps(self) -> int:
        return self._max_steps // 2

    def run(self, plan: StepPlan) -> StepOutput:
        """See `engine.step.Runner`."""
        started = time.perf_counter()
        self._setup_s = 0.0
        tokens = self._verify(plan)
        if tokens is not None:
            took_s = time.perf_counter() - started - self._setup_s
            return StepOutput(tokens, StepTimes(forward_s=took_s), self._setup_s)
        chunked: list[Work] = []
        eager: list[Work] = []
        for item in plan.work:
            (chunked if _goes_in_chunks(item) else eager).append(item)
        tokens = {}
        if eager:
            tokens |= self._run_eager(StepPlan(tuple(eager)))
        if len(chunked) <= ROW_COUNTS[-1]:
            tokens |= self._decode(chunked, started, goes_on=not eager)
        else:
            self._ahead = None
            for first in range(0, len(chunked), ROW_COUNTS[-1]):
                part = chunked[first : first + ROW_COUNTS[-1]]
                tokens |= self._decode(part, started, goes_on=False)
        took_s = time.perf_counter() - started - self._setup_s
        return StepOutput(tokens, StepTimes(forward_s=took_s), self._setup_s)

    def gauges(self) -> dict[str, float]:
        """See `engine.step.Runner`."""
        return gauges() if self._device.type == "cuda" else {}

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See `engine.step.Runner`."""
        copy_kv_blocks(self._caches, pairs)

    def warm_up(
        self,
        row_counts: Sequence[int] = ROW_COUNTS,
        piece_lengths: Sequence[int] = PIECE_LENGTHS,
        limit_s: float = math.inf,
    ) -> None:
        """Compile and capture ahead, so that no request pays for it.

        Args:
            row_counts: Batch sizes that will decode.
            piece_lengths: Prefill pieces that will come, tokens.
            limit_s: Seconds after which no more are begun, the smaller ones going first;
                what is left out is captured when it first occurs.
        """
        started = time.perf_counter()
        for length, count in itertools.zip_longest(sorted(piece_lengths), sorted(row_counts)):
            if length is not None:
                self.piece(length)
            if count is not None:
                self.chunk(count, CONTEXT_STEPS[0])
            if time.perf_counter() - started > limit_s:
                return

    def read_blocks(self, blocks: list[int]) -> list[np.ndarray]:
        """See `engine.step.Runner`."""
        return list(read_kv_blocks(self._caches, blocks))

    def write_blocks(self, blocks: list[int], contents: Sequence[np.ndarray]) -> None:
        """See `engine.step.Runner`."""
        write_kv_blocks(self._caches, blocks, contents)

    def chunk(self, num_rows: int, context_len: int, is_shared: bool = False) -> DecodeChunk:
        """The decode chunk for a batch, captured on first use.

        Args:
            num_rows: Sequences that decode.
            context_len: The longest context.
            is_shared: Whether prefixes in common are read once; see `engine.shared_prefix`.
        """
        rows = next(count for count in ROW_COUNTS if count >= num_rows)
        context = next(step for step in CONTEXT_STEPS if step >= context_len)

        tile_shape = (num_tiles(rows, self._group), tile_sequences(self._group))

        def make() -> DecodeChunk:
            return DecodeChunk(
                self._model.forward, self._caches, rows, context, self._max_blocks,
                self._max_steps, tile_shape if is_shared else None, self._device, self._pool,
            )  # fmt: skip

        return self._kept(self._chunks, (rows, context, is_shared), make)

    def piece(self, num_tokens: int) -> PrefillPiece:
        """The graph for a prefill piece, captured on first use."""
        length = next(length for length in PIECE_LENGTHS if length >= num_tokens)

        def make() -> PrefillPiece:
            return PrefillPiece(
                self._model.forward, self._caches, length, self._max_blocks, self._device,
                self._pool,
            )  # fmt: skip

        return self._kept(self._pieces, length, make)

    def _kept(self, kept: dict[K, V], key: K, make: Callable[[], V]) -> V:
        """The graph under `key`, made if it isn't there; the one longest out of use goes."""
        if key in kept:
            # The latest comes last.
            kept[key] = kept.pop(key)
            return kept[key]
        started = time.perf_counter()
        if len(self._chunks) + len(self._pieces) + len(self._verifies) >= MAX_GRAPHS:
            fuller: dict[Any, Any] = max(self._chunks, self._pieces, self._verifies, key=len)
            self._ahead = None
            del fuller[next(iter(fuller))]
        kept[key] = make()
        self._setup_s += time.perf_counter() - started
        return kept[key]

    def _decode(self, work: Rows, started: float, goes_on: bool) -> dict[int, list[int]]:
        """Tokens of sequences that decode, some of them made ahead.

        Args:
            work: The sequences.
            started: When the plan began to run, on `time.perf_counter`.
            goes_on: Whether the next plan is likely to hold the same sequences.
        """
        if not work:
            self._ahead_length.plan_done(started, 0.0, 0)
            return {}
        num_steps = max(item.num_decode_steps for item in work)
        ahead, self._ahead = self._ahead, None
        found: list[int | None] = [None] * len(work) if ahead is None else ahead.find(work)
        num_early = ahead.segment.num_steps if ahead and found != [None] * len(work) else 0
        if None in found and num_early >= num_steps:
            # Whoever has no tokens yet needs a step, which the others would not take part in.
            ahead, found, num_early = None, [None] * len(work), 0
        early: list[list[int]] = [[] for _ in work]
        late: Segment | None = None
        rows: list[int] = []
        if num_early:
            self._ahead_length.plan_came(started)
        if num_early < num_steps:
            chunk, rows = self._resume(work, ahead if num_early else None, found)
            late = chunk.launch(num_steps - num_early)
            if goes_on:
                ends = [
                    item.start + num_steps - (num_early if row is None else 0)
                    for item, row in zip(work, found, strict=True)
                ]
                self._ahead = self._launch_ahead(work, chunk, rows, ends)
        if ahead is not None and num_early:
            early = ahead.tokens(found)
        made = late.wait() if late is not None else []
        rest = [made[row] for row in rows] if late is not None else [[] for _ in work]
        now = time.perf_counter()
        took_s = now - started - self._setup_s
        self._ahead_length.plan_done(now, took_s, num_steps if goes_on else 0)
        return {
            item.sequence.id: (first + last)[: item.num_decode_steps]
            for item, first, last in zip(work, early, rest, strict=True)
        }

    def _resume(
        self, work: Rows, ahead: Ahead | None, found: list[int | None]
    ) -> tuple[DecodeChunk, list[int]]:
        """A chunk that goes on with `work` after what was made ahead; which row each is."""
        groups = self._prefixes.find(work)
        longest = max(item.start for item in work) + 2 * self._max_steps
        chunk = self.chunk(len(work), longest, bool(groups))
        in_place = list(range(len(work)))
        if ahead is None:
            chunk.start(work, groups=groups)
            return chunk, in_place
        # Shared prefixes are described by the rows' places.
        is_same = found == in_place and len(ahead.rows) == len(work)
        if ahead.chunk is chunk and (is_same or not groups) and ahead.can_go_on(work, found):
            return chunk, chunk.go_on(work, found)
        chunk.start(work, ahead.tokens(found), groups)
        return chunk, in_place

    def _launch_ahead(
        self, work: Rows, chunk: DecodeChunk, rows: list[int], ends: list[int]
    ) -> Ahead | None:
        """Start the next plan's first steps, unless no sequence goes on beyond this plan's.

        Args:
            work: The plan's.
            chunk: Whose rows they are.
            rows: Which row each is.
            ends: The position at which each goes on.
        """
        num_steps = self._ahead_length.num_steps
        if not num_steps or not any(map(chunk.reaches, rows, ends)):
            return None
        keys = {
            (item.sequence.id, item.sequence.num_suspensions, end): row
            for item, row, end in zip(work, rows, ends, strict=True)
        }
        return Ahead(chunk, chunk.launch(num_steps), keys)

    def _verify(self, plan: StepPlan) -> dict[int, list[int]] | None:
        """Tokens of a plan of decodes with drafts, by a graph; None if it isn't for one."""
        size = graph_size(plan.work, ROW_COUNTS)
        if size is None:
            return None
        inputs = StepInputs(plan, self._block_size)
        if any(row.bias or row.seen or row.masked for row in inputs.rows):
            return None

        def make() -> VerifyStep:
            return VerifyStep(
                self._model.forward, self._caches, *size, self._max_blocks, self._device,
                self._pool,
            )  # fmt: skip

        step = self._kept(self._verifies, size, make)
        return accepted_tokens(plan, step.run(inputs, inputs.rows))

    def _run_eager(self, plan: StepPlan) -> dict[int, list[int]]:
        inputs = StepInputs(plan, self._block_size)
        if _is_one_piece(plan):
            piece = self.piece(plan.num_tokens)
            row = inputs.rows[0] if inputs.rows else None
            plain = row is not None and not (row.bias or row.seen or row.masked)
            piece.run(inputs, row if plain else None)
            if plain:
                return accepted_tokens(plan, [piece.token])
            logits = piece.logits
        else:
            self._setup_s += self._eager.prepare(inputs)
            logits = self._eager.logits(inputs)
        tokens: Sequence[int] = []
        if inputs.rows:
            tokens = sample_triton(logits, SamplingBatch.from_rows(inputs.rows)).tolist()
        elif self._device.type == "cuda":
            # What the scheduler measures as this step's time must be its own.
            torch.cuda.current_stream().synchronize()
        return accepted_tokens(plan, list(tokens))


def _goes_in_chunks(item: Work) -> bool:
    """Whether the next tokens depend on nothing but the device's own state."""
    return item.num_tokens == 1 and not item.draft and item.samples and is_plain(item.sequence)


def _is_one_piece(plan: StepPlan) -> bool:
    """Whether a prefill graph computes this plan: one piece, not too short nor too long.

    Drafts want the logits of several tokens, and the graph gives the last one's.
    """
    if len(plan.work) != 1 or plan.work[0].draft:
        return False
    return PIECE_LENGTHS[0] // 2 <= plan.num_tokens <= PIECE_LENGTHS[-1]


def table_bytes(max_blocks: int) -> int:
    """Memory of as many graphs' block tables as are kept, at the largest.

    Args:
        max_blocks: Blocks of the longest sequence.
    """
    largest = sorted(ROW_COUNTS * len(CONTEXT_STEPS))[-MAX_GRAPHS:]
    return sum(largest) * max_blocks * 4
