"""Plans' pieces of prompts on the GPU, and whatever else no graph of decodes is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.cuda_eager import EagerPass
from engine.cuda_memory import MAX_LOGITS_ROWS
from engine.cuda_prefill import PIECE_LENGTHS, PrefillPiece
from engine.cuda_shelf import GraphShelf
from engine.runner import Model, StepInputs, accepted_tokens
from engine.step import StepPlan, Work
from kernels.kv_cache import LayerCache
from kernels.sampling import SamplingBatch
from kernels.sampling.triton import sample_triton


@dataclass(frozen=True, slots=True)
class Launched:
    """A pass under way.

    Attributes:
        plan: What it computes.
        sampled: int64, on the device: what was sampled, in order; None for nothing.
    """

    plan: StepPlan
    sampled: torch.Tensor | None

    def tokens(self) -> dict[int, list[int]]:
        """By sequence; waits for them."""
        return accepted_tokens(self.plan, [] if self.sampled is None else self.sampled.tolist())


class PromptPass:
    """Computes pieces of prompts, drafts, and rows with penalties, bias or masked tokens.

    A piece that comes alone has graphs by length; everything else is launched kernel by
    kernel.

    Args:
        model: The model, on `device`.
        caches: One a layer.
        max_blocks: Blocks of the longest sequence that may come.
        device: Where it runs.
        shelf: Keeps the graphs.
    """

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        max_blocks: int,
        device: torch.device,
        shelf: GraphShelf,
    ) -> None:
        self._model = model
        self._caches = caches
        self._max_blocks = max_blocks
        self._device = device
        self._shelf = shelf
        self._eager = EagerPass(model, caches, device)

    def piece(self, num_tokens: int) -> PrefillPiece:
        """The graph for a prefill piece, captured on first use."""
        length = next(length for length in PIECE_LENGTHS if length >= num_tokens)

        def make() -> PrefillPiece:
            return PrefillPiece(
                self._model.forward, self._caches, length, self._max_blocks, self._device,
                self._shelf.pool,
            )  # fmt: skip

        return self._shelf.get(("piece", length), make)

    def launch(self, work: Sequence[Work]) -> list[Launched]:
        """Start whatever `work` needs; several passes where one's logits would be too many."""
        plan = StepPlan(tuple(work))
        if _is_one_piece(plan):
            return [self._launch_piece(plan)]
        return [self._launch_eagerly(part) for part in _parts(plan)]

    def _launch_piece(self, plan: StepPlan) -> Launched:
        inputs = StepInputs(plan, self._caches[0].block_size)
        piece = self.piece(plan.num_tokens)
        row = inputs.rows[0] if inputs.rows else None
        if row is None or not (row.bias or row.seen or row.masked):
            piece.run(inputs, row)
            return Launched(plan, None if row is None else piece.token)
        piece.run(inputs, None)
        return Launched(plan, sample_triton(piece.logits, SamplingBatch.from_rows([row])))

    def _launch_eagerly(self, plan: StepPlan) -> Launched:
        inputs = StepInputs(plan, self._caches[0].block_size)
        logits, setup_s = self._eager.logits(inputs)
        self._shelf.note_setup(setup_s)
        if not inputs.rows:
            return Launched(plan, None)
        return Launched(plan, sample_triton(logits, SamplingBatch.from_rows(inputs.rows)))


def _is_one_piece(plan: StepPlan) -> bool:
    """Whether a prefill graph computes this plan: one piece, not too short nor too long.

    Drafts want the logits of several tokens, and the graph gives the last one's.
    """
    if len(plan.work) != 1 or plan.work[0].draft:
        return False
    return PIECE_LENGTHS[0] // 2 <= plan.num_tokens <= PIECE_LENGTHS[-1]


def _parts(plan: StepPlan) -> Iterator[StepPlan]:
    """`plan` in as few passes as there is memory for the logits of."""
    part: list[Work] = []
    num_rows = 0
    for item in plan.work:
        wanted = 1 + len(item.draft) if item.samples else 0
        if num_rows + wanted > MAX_LOGITS_ROWS:
            yield StepPlan(tuple(part))
            part, num_rows = [], 0
        part.append(item)
        num_rows += wanted
    yield StepPlan(tuple(part))
