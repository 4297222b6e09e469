"""Plans on a GPU: decodes by graphs, several tokens a plan, and prompts beside them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from engine.config import EngineConfig
from engine.cuda_chunk import CONTEXT_STEPS
from engine.cuda_decode import ROW_COUNTS, Decoder
from engine.cuda_memory import MAX_GRAPHS, MAX_LOGITS_ROWS, gauges
from engine.cuda_prefill import PIECE_LENGTHS
from engine.cuda_prompts import PromptPass
from engine.cuda_shelf import GraphShelf
from engine.cuda_verify import VerifyStep, graph_size
from engine.kv_blocks import copy_kv_blocks, make_caches, read_kv_blocks, write_kv_blocks
from engine.model.config import ModelConfig
from engine.runner import Model, StepInputs, accepted_tokens
from engine.sampling_rows import is_plain
from engine.step import StepOutput, StepPlan, StepTimes, Work

# Tokens of prompts from which rows that decode are computed with them instead of by a graph.
ONE_PASS_TOKENS = 256


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

    Attributes:
        shelf: Keeps all graphs.
        decoder: What decodes in chunks goes through it.
        prompts: What doesn't and has no drafts.
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
        self.shelf = GraphShelf(self._device)
        self.decoder = Decoder(
            model, self._caches, config, max_decode_steps, self._max_blocks, self._device,
            self.shelf,
        )  # fmt: skip
        self.prompts = PromptPass(model, self._caches, self._max_blocks, self._device, self.shelf)

    @property
    def model_config(self) -> ModelConfig:
        return self._model.config

    @property
    def max_decode_steps(self) -> int:
        return self._max_steps

    @property
    def max_ahead_steps(self) -> int:
        return self._max_steps // 2

    @property
    def piece_layers(self) -> int:
        return 1

    def run(self, plan: StepPlan) -> StepOutput:
        """See `engine.step.Runner`."""
        started = time.perf_counter()
        self.shelf.take_setup_s()
        tokens = self._verify(plan)
        if tokens is None:
            tokens = self._run(plan, started)
        setup_s = self.shelf.take_setup_s()
        took_s = time.perf_counter() - started - setup_s
        return StepOutput(tokens, StepTimes(forward_s=took_s), setup_s)

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
                self.prompts.piece(length)
            if count is not None:
                self.decoder.chunk(count, CONTEXT_STEPS[0])
            if time.perf_counter() - started > limit_s:
                break
        self.shelf.take_setup_s()

    def read_blocks(self, blocks: list[int]) -> list[np.ndarray]:
        """See `engine.step.Runner`."""
        return list(read_kv_blocks(self._caches, blocks))

    def write_blocks(self, blocks: list[int], contents: Sequence[np.ndarray]) -> None:
        """See `engine.step.Runner`."""
        write_kv_blocks(self._caches, blocks, contents)

    def _run(self, plan: StepPlan, started: float) -> dict[int, list[int]]:
        """Tokens of a plan, prompts and decodes one behind the other on the device."""
        decodes: list[Work] = []
        others: list[Work] = []
        for item in plan.work:
            (decodes if _goes_in_chunks(item) else others).append(item)
        if not others and len(decodes) <= ROW_COUNTS[-1]:
            return self.decoder.tokens(decodes, started)
        self.decoder.interrupted()
        if _fit_one_pass(decodes, others) and not self.decoder.goes_alone(decodes):
            # In a pass of hundreds of tokens a few more cost next to nothing.
            decodes, others = [], [*decodes, *others]
        # Prompts go first: while they are computed, the host prepares the decodes.
        passes = self.prompts.launch(others) if others else []
        tokens: dict[int, list[int]] = {}
        for first in range(0, len(decodes), ROW_COUNTS[-1]):
            part = decodes[first : first + ROW_COUNTS[-1]]
            tokens |= self.decoder.launch(part, started, goes_on=False).tokens()
        for launched in passes:
            tokens |= launched.tokens()
        if self._device.type == "cuda":
            # What the scheduler measures as this step's time must be its own.
            torch.cuda.current_stream().synchronize()
        return tokens

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
                self.shelf.pool,
            )  # fmt: skip

        step = self.shelf.get(("verify", *size), make)
        return accepted_tokens(plan, step.run(inputs, inputs.rows))


def _goes_in_chunks(item: Work) -> bool:
    """Whether the next tokens depend on nothing but the device's own state."""
    return item.num_tokens == 1 and not item.draft and item.samples and is_plain(item.sequence)


def _fit_one_pass(decodes: list[Work], others: list[Work]) -> bool:
    """Whether rows that decode one token may go with others that are launched one by one."""
    num_tokens = sum(item.num_tokens for item in others)
    num_logits = len(decodes) + sum(1 + len(item.draft) for item in others if item.samples)
    return (
        len(decodes) > 0
        and num_tokens >= ONE_PASS_TOKENS
        and num_logits <= MAX_LOGITS_ROWS
        and all(item.num_decode_steps == 1 for item in decodes)
    )


def table_bytes(max_blocks: int) -> int:
    """Memory of as many graphs' block tables as are kept, at the largest.

    Args:
        max_blocks: Blocks of the longest sequence.
    """
    largest = sorted(ROW_COUNTS * len(CONTEXT_STEPS))[-MAX_GRAPHS:]
    return sum(largest) * max_blocks * 4
