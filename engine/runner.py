"""A step as tensors, through the model and the sampler, on the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from engine.config import EngineConfig
from engine.kv_blocks import copy_kv_blocks, make_caches, read_kv_blocks, write_kv_blocks
from engine.model.config import ModelConfig
from engine.model.layer_slice import LayerSlice
from engine.sampling_rows import sampling_row
from engine.sequence import PartialPiece
from engine.step import StepOutput, StepPlan, StepTimes, Work
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingBatch, SamplingRow, sample


class Model(Protocol):
    """What a runner needs of a model; `engine.model.CausalLM` is one."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        caches: Sequence[LayerCache],
        logits_rows: torch.Tensor,
        part: LayerSlice | None = None,
    ) -> torch.Tensor: ...


class CpuRunner:
    """Runs plans on the CPU. Samples one token a step and sequence, drafts apart.

    Args:
        model: The model.
        config: The engine's, for the size of the KV pool.
        kv_dtype: One of `kernels.kv_cache.KV_DTYPES`.
    """

    def __init__(
        self, model: Model, config: EngineConfig, kv_dtype: torch.dtype = torch.float32
    ) -> None:
        self._model = model
        self._block_size = config.block_size
        self._caches = make_caches(model.config, config, kv_dtype, "cpu")

    @property
    def max_decode_steps(self) -> int:
        return 1

    @property
    def max_ahead_steps(self) -> int:
        return 0

    @property
    def piece_layers(self) -> int:
        return self._model.config.num_layers

    def gauges(self) -> dict[str, float]:
        """See `engine.step.Runner`."""
        return {}

    def run(self, plan: StepPlan) -> StepOutput:
        """See `engine.step.Runner`."""
        started = time.perf_counter()
        inputs = StepInputs(plan, self._block_size)
        prepared = time.perf_counter()
        logits = self._model.forward(
            inputs.token_ids,
            inputs.positions,
            inputs.slots,
            inputs.batch,
            self._caches,
            inputs.logits_rows,
            inputs.part,
        )
        if inputs.part is not None:
            keep_hidden(plan, inputs.part)
        computed = time.perf_counter()
        tokens: list[int] = []
        if inputs.rows:
            tokens = sample(logits, SamplingBatch.from_rows(inputs.rows)).tolist()
        output = accepted_tokens(plan, tokens)
        times = StepTimes(
            prepare_s=prepared - started,
            forward_s=computed - prepared,
            sample_s=time.perf_counter() - computed,
        )
        return StepOutput(output, times)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See `engine.step.Runner`."""
        copy_kv_blocks(self._caches, pairs)

    def read_blocks(self, blocks: list[int]) -> list[np.ndarray]:
        """See `engine.step.Runner`."""
        return list(read_kv_blocks(self._caches, blocks))

    def write_blocks(self, blocks: list[int], contents: Sequence[np.ndarray]) -> None:
        """See `engine.step.Runner`."""
        write_kv_blocks(self._caches, blocks, contents)


class StepInputs:
    """A plan's tensors."""

    def __init__(self, plan: StepPlan, block_size: int) -> None:
        self._work = plan.work
        num_sequences = len(plan.work)
        max_blocks = max(len(item.sequence.block_table) for item in plan.work)
        token_ids = np.empty(plan.num_tokens, np.int64)
        positions = np.empty(plan.num_tokens, np.int64)
        slots = np.empty(plan.num_tokens, np.int64)
        tables = np.zeros((num_sequences, max_blocks), np.int32)
        query_starts = np.zeros(num_sequences + 1, np.int32)
        context_lens = np.empty(num_sequences, np.int32)
        logits_rows: list[int] = []
        end = 0
        for i, item in enumerate(plan.work):
            seq = item.sequence
            table = tables[i]
            table[: len(seq.block_table)] = seq.block_table
            known_end = item.start + item.num_tokens
            context_len = known_end + len(item.draft)
            start, end = end, end + context_len - item.start
            if end - start == 1:
                # A plain decode: cheaper without arrays.
                token_ids[start] = seq.tokens[item.start]
                positions[start] = item.start
                block, offset = divmod(item.start, block_size)
                slots[start] = seq.block_table[block] * block_size + offset
            else:
                token_ids[start:end] = (*seq.tokens[item.start : known_end], *item.draft)
                where = np.arange(item.start, context_len)
                positions[start:end] = where
                slots[start:end] = table[where // block_size] * block_size + where % block_size
            query_starts[i + 1] = end
            context_lens[i] = context_len
            if item.samples:
                logits_rows += range(end - len(item.draft) - 1, end)
        self.token_ids = torch.from_numpy(token_ids)
        self.positions = torch.from_numpy(positions)
        self.slots = torch.from_numpy(slots)
        self.logits_rows = torch.tensor(logits_rows, dtype=torch.int64)
        self.batch = AttentionBatch(
            query_starts=torch.from_numpy(query_starts),
            context_lens=torch.from_numpy(context_lens),
            block_tables=torch.from_numpy(tables),
            max_query_len=int(np.diff(query_starts).max()),
            max_context_len=int(context_lens.max()),
        )
        self.part = layer_slice(plan, self.batch)

    @cached_property
    def rows(self) -> list[SamplingRow]:
        """How each row of logits is sampled; made when first asked for, beside a device's work."""
        return [
            sampling_row(item.sequence, item.draft[:guessed])
            for item in self._work
            if item.samples
            for guessed in range(len(item.draft) + 1)
        ]


def layer_slice(plan: StepPlan, batch: AttentionBatch) -> LayerSlice | None:
    """Which rows of a plan take part in some layers only; None where all take part in all."""
    sliced = [item for item in plan.work if item.layers is not None]
    if not sliced:
        return None
    layers = sliced[0].layers
    assert layers is not None
    num_others = len(plan.work) - len(sliced)
    others = None
    if num_others:
        starts, lens = batch.query_starts[: num_others + 1], batch.context_lens[:num_others]
        others = AttentionBatch(
            query_starts=starts,
            context_lens=lens,
            block_tables=batch.block_tables[:num_others],
            max_query_len=int(starts.diff().max()),
            max_context_len=int(lens.max()),
        )
    hidden = None
    if layers.start > 0:
        hidden = torch.cat([_partial(item).hidden for item in sliced])
    return LayerSlice(layers, sum(item.num_tokens for item in sliced), others, hidden)


def keep_hidden(plan: StepPlan, part: LayerSlice) -> None:
    """Leave with each piece that the step doesn't finish what its next layer starts from."""
    assert part.hidden is not None
    row = 0
    for item in plan.work:
        if item.layers is not None:
            _partial(item).hidden = part.hidden[row : row + item.num_tokens]
            row += item.num_tokens


def _partial(item: Work) -> PartialPiece:
    partial = item.sequence.partial
    assert partial is not None
    return partial


def accepted_tokens(plan: StepPlan, sampled: list[int]) -> dict[int, list[int]]:
    """Tokens by sequence id: each draft is accepted while it is what was sampled."""
    output: dict[int, list[int]] = {}
    row = 0
    for item in plan.work:
        if item.samples:
            count = len(item.draft) + 1
            output[item.sequence.id] = accept_draft(item, sampled[row : row + count])
            row += count
    return output


def accept_draft(item: Work, sampled: list[int]) -> list[int]:
    """The part of `sampled` that stands: up to the first that differs from the draft."""
    for i, guess in enumerate(item.draft):
        if sampled[i] != guess:
            return sampled[: i + 1]
    return sampled
