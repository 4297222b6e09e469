"""Settings with a value for each tier, as text: `vip=10,standard=7,batch=20`."""

from __future__ import annotations

import math

from engine.contract.messages import Tier

# The most that a tier's queue may be set to hold: gateways pass over a worker where more
# wait than all of its queues can hold.
MAX_TIER_WAITING = 4096


def parse_tier_values(text: str, default: str, *, low: float, high: float) -> dict[Tier, float]:
    """Read a number for each tier.

    Args:
        text: `tier=number`, joined by commas; a number alone is for all tiers. Tiers
            that it leaves out are as in `default`.
        default: The same, complete.
        low: Least number.
        high: Largest number.

    Raises:
        ValueError: saying what was expected, for anything else.
    """
    expected = (
        f"tier=number for vip, standard and batch, joined by commas, from {low:g} to {high:g}"
    )
    values = {} if text == default else parse_tier_values(default, default, low=low, high=high)
    seen: set[Tier] = set()
    for part in text.split(","):
        name, sign, number = part.strip().partition("=")
        try:
            tiers = [Tier(name)] if sign else list(Tier)
            value = float(number if sign else name)
        except ValueError:
            raise ValueError(expected) from None
        if not math.isfinite(value) or not low <= value <= high or seen & set(tiers):
            raise ValueError(expected)
        seen.update(tiers)
        values.update(dict.fromkeys(tiers, value))
    return values


def tier_values_text(values: dict[Tier, float]) -> str:
    """The text that `parse_tier_values` reads back."""
    return ",".join(f"{tier.value}={values[tier]:.15g}" for tier in Tier)
