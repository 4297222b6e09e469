"""Whether new prompts wait a moment for others, to share the cost of a step.

A step with pieces of prompts beside decodes may cost more than its tokens do: on a GPU it
runs outside the recorded graphs, one token at a time. Prompts that come one by one pay
that each, prompts that begin together pay it once. On a CPU it is next to nothing, and
nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.contract import Tier
from engine.sequence import Sequence
from engine.step_budget import StepBudget

# How far back arrivals count, seconds.
_MEMORY_S = 2.0
# Share of the machine's time that waiting must save.
_LEAST_GAIN = 0.05


class BatchForming:
    """Holds prompts back while more are expected to come and that saves time.

    With r arrivals a second, a step's extra cost f and a wait of w seconds, about r w
    prompts join one that waits. That saves f for each of these: of every second,
    r f * r w / (1 + r w).

    Args:
        max_wait_s: Longest wait; 0 for none ever.
        budget: Knows the extra cost.
    """

    def __init__(self, max_wait_s: float, budget: StepBudget) -> None:
        self._max_wait_s = max_wait_s
        self._budget = budget
        self._arrivals = 0.0
        self._arrived_at = 0.0

    def arrived(self, now: float) -> None:
        """A request came."""
        self._arrivals = self._recent(now) + 1
        self._arrived_at = now

    def gain(self, now: float) -> float:
        """Share of the machine's time that waiting saves, from 0 to 1."""
        extra_ms = self._budget.mixed_base_ms
        if extra_ms is None:
            return 0.0
        rate = self._recent(now) / _MEMORY_S
        joining = rate * self._max_wait_s
        return min(rate * extra_ms / 1000 * joining / (1 + joining), 1.0)

    def holds(self, now: float, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> bool:
        """Whether those who wait should wait on.

        Never a VIP, never anybody for longer than the bound, and only beside decodes
        alone: where nothing runs there is nothing to share, and where a prompt is being
        computed new ones join it at no cost.
        """
        if not self._max_wait_s:
            return False
        decoding = [seq.num_uncomputed == 1 for seq in running]
        if not decoding or not all(decoding):
            return False
        if any(
            seq.request.tier is Tier.VIP or now - seq.enqueued_at >= self._max_wait_s
            for seq in waiting
        ):
            return False
        return self.gain(now) >= _LEAST_GAIN

    def _recent(self, now: float) -> float:
        return self._arrivals * math.exp(-max(now - self._arrived_at, 0.0) / _MEMORY_S)
