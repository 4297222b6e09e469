"""Where a caller stands with its rate limits, as the wire says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One limit and what is left of it.

    Attributes:
        name: `requests` or `tokens`.
        limit: A minute's worth.
        remaining: What may be asked for at once, now.
        reset_ms: Until all of it is there again.
    """

    name: str
    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """All rate limits of a caller, one of a name; empty where there are none."""

    limits: tuple[RateLimit, ...] = ()

    @classmethod
    def of(cls, limits: Iterable[RateLimit]) -> Standing:
        """Of several limits of one name, the one with the least left."""
        tightest: dict[str, RateLimit] = {}
        for limit in limits:
            other = tightest.get(limit.name)
            if other is None or limit.remaining < other.remaining:
                tightest[limit.name] = limit
        return cls(tuple(tightest.values()))

    def headers(self) -> dict[str, str]:
        """OpenAI's headers: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`."""
        headers = {}
        for each in self.limits:
            headers[f"x-ratelimit-limit-{each.name}"] = str(each.limit)
            headers[f"x-ratelimit-remaining-{each.name}"] = str(each.remaining)
            headers[f"x-ratelimit-reset-{each.name}"] = duration(each.reset_ms)
        return headers

    def event_fields(self) -> dict[str, Any]:
        """Fields of the Realtime API's `rate_limits.updated`."""
        return {
            "rate_limits": [
                {
                    "name": each.name,
                    "limit": each.limit,
                    "remaining": each.remaining,
                    "reset_seconds": each.reset_ms / 1000,
                }
                for each in self.limits
            ]
        }


def duration(milliseconds: int) -> str:
    """Time as OpenAI's headers write it: `20ms`, `1.5s`, `2m0s`."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    seconds = f"{rest_ms / 1000:g}s"
    return f"{minutes}m{seconds}" if minutes else seconds
