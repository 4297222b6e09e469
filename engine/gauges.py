"""The engine as heartbeats and metrics show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.contract.keys import WORKER_BEAT_S
from engine.retention import Retention
from engine.scheduler import Scheduler
from engine.stats import EngineStats, Totals
from engine.system_prompts import SystemPrompts


class Gauges:
    """Reads all that is counted.

    Args:
        scheduler: The engine's.
        retention: The engine's.
        system_prompts: The engine's.
        totals: The engine's.
        device: Gauges of the runner's device.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        retention: Retention,
        system_prompts: SystemPrompts,
        *,
        totals: Totals,
        device: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._retention = retention
        self._system_prompts = system_prompts
        self._totals = totals
        self._device = device
        self._clock = clock
        self._held: dict[str, int] = {}
        self._held_at = float("-inf")

    def read(self) -> EngineStats:
        """Gauges and totals now."""
        scheduler = self._scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            used_blocks=scheduler.blocks.num_used,
            num_blocks=scheduler.blocks.num_blocks,
            decode_tokens_per_s=self._totals.decode_tokens_per_s,
            counters={
                **self._totals.counters(),
                **self._scheduler_counters(),
                **self._device(),
            },
            held=self._held_now(),
        )

    def _scheduler_counters(self) -> dict[str, float]:
        scheduler = self._scheduler
        counts, speculation = scheduler.counts, scheduler.speculation
        counters: dict[str, float] = {
            "repartee_engine_admissions_total": counts.admissions,
            "repartee_engine_suspensions_total": counts.suspensions,
            "repartee_engine_cached_tokens_total": counts.cached_tokens,
            "repartee_engine_drafted_tokens_total": speculation.num_drafted,
            "repartee_engine_accepted_tokens_total": speculation.num_accepted,
            "repartee_engine_drafting_requests_total": speculation.num_requests,
            "repartee_engine_acceptance_sum_total": speculation.acceptance,
            "repartee_engine_warm_ups_total": scheduler.warm_ups.counts.warm_ups,
            "repartee_engine_warm_tokens_total": scheduler.warm_ups.counts.tokens,
            "repartee_engine_retained_conversations": len(self._retention),
            "repartee_engine_retained_blocks": scheduler.blocks.num_kept,
            "repartee_engine_cached_blocks": scheduler.blocks.num_named,
            # Blocks that somebody refers to while nothing runs: always 0.
            "repartee_engine_leaked_blocks": (
                0 if scheduler.running else scheduler.blocks.num_used
            ),
        }
        if scheduler.swaps.host is not None:
            counters.update(scheduler.swaps.host.counters())
        return counters

    def _held_now(self) -> dict[str, int]:
        """What is held for whom, looked up no more often than heartbeats tell it."""
        now = self._clock()
        if now - self._held_at >= WORKER_BEAT_S:
            self._held_at = now
            self._held = {**self._system_prompts.held(), **self._retention.held()}
        return self._held
