"""Rows that decode on the GPU: several tokens a plan, by graphs, and further ones ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.cuda_ahead import Ahead, AheadLength
from engine.cuda_chunk import CONTEXT_STEPS, DecodeChunk, Segment
from engine.cuda_rows import Rows
from engine.cuda_shelf import GraphShelf
from engine.runner import Model
from engine.shared_prefix import PrefixFinder, num_tiles, tile_sequences
from kernels.kv_cache import LayerCache
from kernels.paged_attention import triton as kernel

# Batch sizes with a graph of their own; between them rows are padded.
ROW_COUNTS = kernel.ROW_COUNTS


@dataclass(slots=True)
class Launched:
    """A plan's decodes under way, or made already.

    Attributes:
        work: The plan's.
        ahead: Tokens that an earlier plan had launched; None for none.
        found: Which row of these each of `work` is; None where it has none there.
        late: Steps launched for this plan; None where none were missing.
        rows: Which row of these each of `work` is.
    """

    work: Rows
    ahead: Ahead | None
    found: list[int | None]
    late: Segment | None
    rows: list[int]

    def tokens(self) -> dict[int, list[int]]:
        """By sequence; waits for them."""
        tokens: list[list[int]] = [[] for _ in self.work]
        if self.ahead is not None:
            tokens = self.ahead.tokens(self.found)
        if self.late is not None:
            made = self.late.wait()
            tokens = [first + made[row] for first, row in zip(tokens, self.rows, strict=True)]
        return {
            item.sequence.id: given[: item.num_decode_steps]
            for item, given in zip(self.work, tokens, strict=True)
        }


class Decoder:
    """Decodes sequences with plain sampling, all their state on the device.

    Args:
        model: The model, on `device`.
        caches: One a layer.
        config: The engine's.
        max_steps: Most tokens a sequence decodes in one plan.
        max_blocks: Blocks of the longest sequence that may come.
        device: Where it runs.
        shelf: Keeps the graphs.
    """

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        config: EngineConfig,
        max_steps: int,
        max_blocks: int,
        device: torch.device,
        shelf: GraphShelf,
    ) -> None:
        self._model = model
        self._caches = caches
        self._max_steps = max_steps
        self._max_blocks = max_blocks
        self._device = device
        self._shelf = shelf
        self._group = model.config.num_heads // model.config.num_kv_heads
        block_bytes = sum(tensor[0].nbytes for tensor in caches[0].tensors())
        self._prefixes = PrefixFinder(config.block_size, block_bytes)
        self._ahead: Ahead | None = None
        self._ahead_length = AheadLength(max_steps // 2)

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
                self._max_steps, tile_shape if is_shared else None, self._device,
                self._shelf.pool,
            )  # fmt: skip

        return self._shelf.get(("chunk", rows, context, is_shared), make)

    def tokens(self, work: Rows, started: float) -> dict[int, list[int]]:
        """Tokens by sequence of a plan that only decodes, some of them made ahead.

        Args:
            work: The sequences.
            started: When the plan began to run, on `time.perf_counter`.
        """
        launched = self.launch(work, started, goes_on=True)
        tokens = launched.tokens()
        now = time.perf_counter()
        num_steps = max(item.num_decode_steps for item in work)
        self._ahead_length.plan_done(now, now - started - self._shelf.setup_s, num_steps)
        return tokens

    def goes_alone(self, work: Rows) -> bool:
        """Whether a decode step of its own is cheaper than rows in a pass with prompts.

        It is where its tokens are made already, or where prefixes in common are read once.
        """
        is_made = self._ahead is not None and None not in self._ahead.find(work)
        return is_made or bool(self._prefixes.find(work))

    def launch(self, work: Rows, started: float, goes_on: bool) -> Launched:
        """Start what a plan's decodes want and isn't made yet.

        Args:
            work: The sequences, as many as the largest batch at most.
            started: When the plan began to run, on `time.perf_counter`.
            goes_on: Whether the next plan is likely to hold the same sequences.
        """
        num_steps = max(item.num_decode_steps for item in work)
        nothing: list[int | None] = [None] * len(work)
        ahead, self._ahead = self._ahead, None
        found = nothing if ahead is None else ahead.find(work)
        num_early = 0 if ahead is None or found == nothing else ahead.segment.num_steps
        if None in found and num_early >= num_steps:
            # Whoever has no tokens yet needs a step, which the others would not take part in.
            num_early = 0
        if num_early:
            self._ahead_length.plan_came(started)
        else:
            ahead, found = None, nothing
        launched = Launched(work, ahead, found, None, [])
        if num_early < num_steps:
            chunk, launched.rows = self._resume(work, ahead, found)
            launched.late = chunk.launch(num_steps - num_early)
            if goes_on:
                ends = [
                    item.start + num_steps - (num_early if row is None else 0)
                    for item, row in zip(work, found, strict=True)
                ]
                self._ahead = self._launch_ahead(work, chunk, launched.rows, ends)
        return launched

    def interrupted(self) -> None:
        """A plan came that decodes nothing, or something beside."""
        self._ahead_length.plan_done(0.0, 0.0, 0)

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
