"""A clock that a test moves."""

from __future__ import annotations


class VirtualClock:
    """Seconds since an arbitrary start; call it to read it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
