"""How long and how many requests may wait, as an operator sets it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.contract import Tier
from engine.contract.tier_values import MAX_TIER_WAITING, parse_tier_values

DEFAULT_WAITS_S = "vip=10,standard=7,batch=20"
DEFAULT_WAITING = "vip=1024,standard=1024,batch=1024"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of the queue, by tier.

    Attributes:
        max_wait_s: Longest predicted wait with which a request is taken.
        max_waiting: Most requests that wait.
        ageing_s: See `EngineConfig.ageing_ms`.
        batch_wait_s: See `EngineConfig.batch_wait_ms`.
    """

    max_wait_s: dict[Tier, float]
    max_waiting: dict[Tier, float]
    ageing_s: float
    batch_wait_s: float

    @classmethod
    def parse(
        cls,
        waits: str = DEFAULT_WAITS_S,
        waiting: str = DEFAULT_WAITING,
        ageing_s: float = 10.0,
        batch_wait_s: float = 0.1,
    ) -> QueueLimits:
        """From the texts of `--max-wait` and `--max-waiting`.

        Raises:
            ValueError: for a text that isn't of the form, or a number out of range.
        """
        return cls(
            parse_tier_values(waits, DEFAULT_WAITS_S, low=0.001, high=86_400),
            parse_tier_values(waiting, DEFAULT_WAITING, low=1, high=MAX_TIER_WAITING),
            ageing_s,
            batch_wait_s,
        )

    def apply(self, config: EngineConfig) -> EngineConfig:
        """The settings with these limits."""
        return replace(
            config,
            vip_max_wait_ms=self.max_wait_s[Tier.VIP] * 1000,
            standard_max_wait_ms=self.max_wait_s[Tier.STANDARD] * 1000,
            batch_max_wait_ms=self.max_wait_s[Tier.BATCH] * 1000,
            vip_max_waiting=int(self.max_waiting[Tier.VIP]),
            standard_max_waiting=int(self.max_waiting[Tier.STANDARD]),
            batch_max_waiting=int(self.max_waiting[Tier.BATCH]),
            ageing_ms=self.ageing_s * 1000,
            batch_wait_ms=self.batch_wait_s * 1000,
        )
