"""Whether a request is taken: not if it would wait too long."""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.config import EngineConfig
from engine.contract import Overloaded, Tier
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import Totals

# Least wait that is told to a client that isn't taken.
RETRY_AFTER_MS = 1000


class Gate:
    """Refuses requests for which waiting would be of no use.

    Args:
        config: The engine's.
        scheduler: Foresees waits.
        totals: Refusals are counted here.
        wall_clock: Unix seconds, for deadlines.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        totals: Totals,
        wall_clock: Callable[[], float],
    ) -> None:
        self._max_waiting = {
            Tier.VIP: config.vip_max_waiting,
            Tier.STANDARD: config.standard_max_waiting,
            Tier.BATCH: config.batch_max_waiting,
        }
        self._scheduler = scheduler
        self._totals = totals
        self._wall_clock = wall_clock

    def check(self, seq: Sequence) -> None:
        """Foresee a new sequence's wait. One that another engine began is never refused.

        Raises:
            Overloaded: where its tier's queue is full, or the wait too long; it says
                how long.
        """
        tier = seq.request.tier
        wait_s = self._scheduler.foresee_wait_s(seq)
        if seq.request.epoch > 1:
            return
        retry_after_ms = max(math.ceil(wait_s * 1000), RETRY_AFTER_MS)
        num_waiting = sum(other.request.tier is tier for other in self._scheduler.waiting)
        if num_waiting >= self._max_waiting[tier]:
            self._totals.refused[tier.value] += 1
            raise Overloaded(
                f"The queue is full: {num_waiting} {tier.value} requests wait.",
                retry_after_ms=retry_after_ms,
            )
        left_s = seq.request.deadline_at - self._wall_clock()
        limit_s = min(self._scheduler.waits.limit_s(tier), left_s)
        if wait_s > max(limit_s, 0.0):
            self._totals.refused[tier.value] += 1
            raise Overloaded(
                f"The wait would be about {wait_s:.1f} s; {tier.value} requests are taken "
                f"up to {limit_s:.1f} s.",
                retry_after_ms=retry_after_ms,
            )
