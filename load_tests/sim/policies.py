"""The policies that the scheduler is compared with, as small changes of it.

They share its step budget, memory and batch; only the order, the suspension for a
VIP and the admission by predicted wait differ.
"""

from __future__ import annotations

from engine.scheduler import Scheduler
from engine.sequence import Sequence


class Fcfs(Scheduler):
    """First come, first served, whatever the tier."""

    def _place(self, seq: Sequence) -> tuple[float, int]:
        return (seq.arrived_at, seq.id)

    def _make_room(self, seq: Sequence, now: float) -> bool:
        return False

    def _try_admit(self, seq: Sequence, now: float) -> bool:
        admitted = super()._try_admit(seq, now)
        # All are of one rank when the step is shared out.
        seq.rank = 0
        return admitted


class StrictPriority(Scheduler):
    """Tier by tier, without ageing."""

    def _place(self, seq: Sequence) -> tuple[float, int]:
        return (seq.tier_rank, seq.id)


class LongestPrefixFirst(Fcfs):
    """Whoever finds the longest part of the prompt in the prefix cache goes first."""

    def _admit(self, now: float) -> None:
        self.waiting.sort(key=lambda seq: (-len(self._cached_blocks(seq)), seq.id))
        super()._admit(now)
        # `remove` and `insort` rely on the queue's own order.
        self.waiting.sort(key=self._place)


POLICIES: dict[str, type[Scheduler]] = {
    "Repartee": Scheduler,
    "FCFS": Fcfs,
    "priority, no ageing": StrictPriority,
    "longest prefix first": LongestPrefixFirst,
}
