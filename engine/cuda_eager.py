"""One pass over any plan on the GPU, launched kernel by kernel: what no graph is for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch

from engine.runner import Model, StepInputs
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention.triton import is_whole_prompt
from kernels.paged_attention.whole_prompt import padded_length, plan_whole_prompt


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

    def prepare(self, inputs: StepInputs) -> float:
        """Let the library plan for a long prompt's length; how long it took, seconds."""
        num_tokens = len(inputs.token_ids)
        if not is_whole_prompt(num_tokens, self._caches[0], inputs.batch):
            return 0.0
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

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """[R, vocab] of the rows that `inputs` wants, on the device."""
        batch = inputs.batch
        moved = AttentionBatch(
            self._move(batch.query_starts), self._move(batch.context_lens),
            self._move(batch.block_tables), batch.max_query_len, batch.max_context_len,
        )  # fmt: skip
        return self._model.forward(
            self._move(inputs.token_ids), self._move(inputs.positions), self._move(inputs.slots),
            moved, self._caches, self._move(inputs.logits_rows),
        )  # fmt: skip

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)
