"""The policies that the scheduler is compared with, as small changes of it.

They share its step budget, memory and batch; only the order, the suspension for a
VIP and the admission by predicted wait differ.
"""

from __future__ import annotations

from dataclasses import replace

from engine.admission import Admission
from engine.config import EngineConfig
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.waiting import WaitingQueue


class _NoDueTimes(WaitingQueue):
    def due(self, now: float, share: float) -> list[Sequence]:
        return []


class _ByArrival(_NoDueTimes):
    def place(self, seq: Sequence) -> tuple[float, int]:
        return (seq.arrived_at, seq.id)


class _ByTier(_NoDueTimes):
    def place(self, seq: Sequence) -> tuple[float, int]:
        return (seq.tier_rank, seq.id)


class _NoRanks(Admission):
    """All are of one rank when the step is shared out, and nobody makes room."""

    def _rank(self, seq: Sequence, now: float) -> int:
        return 0

    def _admit_vip(self, seq: Sequence, now: float) -> bool:
        return False


class _LongestPrefix(_NoRanks):
    def admit(self, now: float) -> None:
        waiting = self._queue.sequences
        waiting.sort(key=lambda seq: (-len(self._batch.cached_blocks(seq)), seq.id))
        super().admit(now)
        # The queue relies on its own order.
        waiting.sort(key=self._queue.place)


class Fcfs(Scheduler):
    """First come, first served, whatever the tier."""

    queue_type = _ByArrival
    admission_type = _NoRanks


class StrictPriority(Scheduler):
    """Tier by tier, without ageing."""

    queue_type = _ByTier


class LongestPrefixFirst(Fcfs):
    """Whoever finds the longest part of the prompt in the prefix cache goes first."""

    admission_type = _LongestPrefix


_FOREVER_MS = 1e9


def config_for(policy: type[Scheduler], config: EngineConfig) -> EngineConfig:
    """The settings under which a policy is what its name says.

    Args:
        policy: One of `POLICIES`.
        config: Repartee's own, which refuses who would wait too long; others take all.
    """
    if policy is Scheduler:
        return config
    return replace(
        config,
        vip_max_waiting=1_000_000,
        standard_max_waiting=1_000_000,
        batch_max_waiting=1_000_000,
        vip_max_wait_ms=_FOREVER_MS,
        standard_max_wait_ms=_FOREVER_MS,
        batch_max_wait_ms=_FOREVER_MS,
        # Where tiers count for nothing, nobody pauses for one.
        max_pause_ms=0.0 if issubclass(policy, Fcfs) else config.max_pause_ms,
    )


POLICIES: dict[str, type[Scheduler]] = {
    "Repartee": Scheduler,
    "FCFS": Fcfs,
    "priority, no ageing": StrictPriority,
    "longest prefix first": LongestPrefixFirst,
}
