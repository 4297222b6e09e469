"""A runner whose steps cost what measured ones do, on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from engine.step import StepOutput, StepPlan, StepTimes

_LETTER = ord("a")


class Clock:
    """Seconds; the simulation moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Costs:
    """Step time, milliseconds, near what two CPU cores take for 135 million parameters.

    Attributes:
        base_ms: Of any step.
        prompt_ms: For each token of a prompt.
        decode_ms: For each sequence that decodes: sampling and text on top of the token.
        mixed_ms: Of a step with pieces of prompts beside decodes, on top.
        context_ms: For each token and 1000 tokens before it.
        noise: Spread of a step's time, as a share.
    """

    base_ms: float = 12.0
    prompt_ms: float = 0.35
    decode_ms: float = 1.2
    mixed_ms: float = 0.0
    context_ms: float = 0.05
    noise: float = 0.05


class Vocabulary:
    """Token ids are bytes; none ends an answer."""

    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))


class Machine:
    """A `Runner` without a model: every answer is the same letter, as long as asked for."""

    max_decode_steps = 1
    max_ahead_steps = 0
    piece_layers = 1

    def __init__(self, clock: Clock, costs: Costs, seed: int) -> None:
        self._clock = clock
        self._costs = costs
        self._rng = random.Random(seed)

    def run(self, plan: StepPlan) -> StepOutput:
        costs = self._costs
        elapsed_ms = costs.base_ms
        is_decode = [item.num_tokens == 1 for item in plan.work]
        if any(is_decode) and not all(is_decode):
            elapsed_ms += costs.mixed_ms
        for item in plan.work:
            each_ms = costs.decode_ms if item.num_tokens == 1 else costs.prompt_ms
            elapsed_ms += item.num_tokens * (each_ms + costs.context_ms * item.start / 1000)
        elapsed_ms *= max(self._rng.gauss(1.0, costs.noise), 0.5)
        self._clock.now += elapsed_ms / 1000
        tokens = {item.sequence.id: [_LETTER] for item in plan.work if item.samples}
        return StepOutput(tokens, StepTimes(forward_s=elapsed_ms / 1000))

    def gauges(self) -> Mapping[str, float]:
        """There is no memory to tell of."""
        return {}

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Nothing is kept, so nothing is copied."""
