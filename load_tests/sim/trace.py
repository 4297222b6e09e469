"""Seeded chat traffic: who asks when, how long the prompt is, how long the answer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from engine.contract import Tier

# Shares of requests. The rest is batch work.
VIP_SHARE = 0.08
STANDARD_SHARE = 0.57
TENANTS = 6
# One in so many requests comes in a burst of its own tenant.
BURST_SHARE = 0.15
BURST_SIZE = 6
SYSTEM_TOKENS = (64, 128, 256, 384)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    Attributes:
        at_s: When it comes, seconds from the start.
        tier: Its tier.
        tenant: Its tenant; the first asks for as much as all others together.
        system: Which of the shared system prompts it begins with.
        own_tokens: Prompt tokens behind the system prompt.
        answer_tokens: Length of its answer.
    """

    at_s: float
    tier: Tier
    tenant: str
    system: int
    own_tokens: int
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return SYSTEM_TOKENS[self.system] + self.own_tokens


def mean_lengths() -> tuple[float, float]:
    """Mean of `own_tokens` and `answer_tokens` over much traffic."""
    rng = random.Random(0)
    drawn = [_lengths(rng) for _ in range(20_000)]
    return (
        sum(own for own, _ in drawn) / len(drawn),
        sum(answer for _, answer in drawn) / len(drawn),
    )


def make_trace(seed: int, *, requests_per_s: float, duration_s: float) -> list[Arrival]:
    """Poisson arrivals, some of them in bursts, in order of time."""
    rng = random.Random(seed)
    trace: list[Arrival] = []
    at_s = 0.0
    events_per_s = requests_per_s / (1 + BURST_SHARE * (BURST_SIZE - 1))
    while True:
        at_s += rng.expovariate(events_per_s)
        if at_s >= duration_s:
            return sorted(trace, key=lambda arrival: arrival.at_s)
        tenant = rng.choice(("t0", f"t{rng.randrange(1, TENANTS)}"))
        count = BURST_SIZE if rng.random() < BURST_SHARE else 1
        for _ in range(count):
            own, answer = _lengths(rng)
            trace.append(
                Arrival(
                    at_s=at_s + (rng.random() * 0.5 if count > 1 else 0.0),
                    tier=_tier(rng),
                    tenant=tenant,
                    system=rng.randrange(len(SYSTEM_TOKENS)),
                    own_tokens=own,
                    answer_tokens=answer,
                )
            )


def _tier(rng: random.Random) -> Tier:
    drawn = rng.random()
    if drawn < VIP_SHARE:
        return Tier.VIP
    return Tier.STANDARD if drawn < VIP_SHARE + STANDARD_SHARE else Tier.BATCH


def _lengths(rng: random.Random) -> tuple[int, int]:
    own = _log_normal(rng, 120, 0.9, 8, 2500)
    return own, _log_normal(rng, 80, 0.7, 4, 400)


def _log_normal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return min(max(int(rng.lognormvariate(math.log(median), sigma)), low), high)
