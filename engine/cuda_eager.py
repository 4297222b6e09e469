"""One pass over any plan on the GPU, launched kernel by kernel: what no graph is for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch

from engine.cuda_chunk import CONTEXT_STEPS
from engine.runner import Model, StepInputs
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.rope_attention.whole_prompt import (
    is_whole_prompt,
    padded_length,
    plan_whole_prompt,
)


class EagerPass:
    """Computes plans of any shape.

    Args:
        model: The model, on `device`.
        caches: One a layer.
        device: Where it runs.
    """

    def __init__(self, model: Model, caches: Sequence[LayerCache], device: torch.device) -> None:
        self._model = model
        self._caches = caches
        self._device = device
        # Of the library's attention: by thread, since each has plans of its own, and length.
        self._planned: set[tuple[int, int]] = set()

    def logits(self, inputs: StepInputs) -> tuple[torch.Tensor, float]:
        """[R, vocab] of the rows that `inputs` wants, on the device, not waited for.

        And the seconds that went into what the next pass of the kind finds in place.
        """
        batch = self._batch(inputs.batch)
        setup_s = 0.0
        if is_whole_prompt(len(inputs.token_ids), batch):
            pieces = batch if batch.apart is None else batch.apart[1]
            setup_s = self._plan_library(pieces.max_query_len)
        logits = self._model.forward(
            self._move(inputs.token_ids), self._move(inputs.positions), self._move(inputs.slots),
            batch, self._caches, self._move(inputs.logits_rows),
        )  # fmt: skip
        return logits, setup_s

    def _batch(self, batch: AttentionBatch) -> AttentionBatch:
        """`batch` on the device, its leading single tokens told apart from longer pieces."""
        starts, lens, tables = batch.query_starts, batch.context_lens, _widened(batch.block_tables)
        count = int((starts.diff() != 1).long().argmax())
        apart = None
        if count:
            # Each with tensors of its own: where they begin decides which kernel is compiled.
            apart = (
                self._moved(starts[: count + 1], lens[:count], tables[:count], 1),
                self._moved(
                    starts[count:] - count, lens[count:], tables[count:], batch.max_query_len
                ),
            )
        return self._moved(starts, lens, tables, batch.max_query_len, apart)

    def _moved(
        self,
        starts: torch.Tensor,
        lens: torch.Tensor,
        tables: torch.Tensor,
        max_query_len: int,
        apart: tuple[AttentionBatch, AttentionBatch] | None = None,
    ) -> AttentionBatch:
        longest = int(lens.max())
        if max_query_len == 1:
            # As in the graphs.
            longest = next(step for step in CONTEXT_STEPS if step >= longest)
        return AttentionBatch(
            self._move(starts), self._move(lens), self._move(tables), max_query_len, longest,
            apart=apart,
        )  # fmt: skip

    def _plan_library(self, num_tokens: int) -> float:
        """Let the library plan for a long prompt's length; how long it took, seconds."""
        key = (threading.get_ident(), padded_length(num_tokens))
        if key in self._planned:
            return 0.0
        started = time.perf_counter()
        config = self._model.config
        plan_whole_prompt(
            num_tokens, config.num_heads, config.num_kv_heads, config.head_dim, torch.bfloat16
        )
        self._planned.add(key)
        return time.perf_counter() - started

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)


def _widened(tables: torch.Tensor) -> torch.Tensor:
    """Block tables of a width that is no multiple of 16, for which kernels are compiled apart."""
    return torch.nn.functional.pad(tables, (0, (1 - tables.shape[1]) % 16))
