"""How many frames a peer may send that are no whole message: control frames and fragments.

Each takes as long to read as a message does, but no throttle of events counts it. A
megabyte of empty pings would hold up all other sockets for a second.
"""

from __future__ import annotations

# At once, and from then on each second: a mebibyte in fragments of 256 bytes, say.
BURST_FRAMES = 4096
FRAMES_PER_S = 256.0
FLOOD_CODE = 1008
FLOOD_REASON = "too many control frames or fragments"


def count_frame(whole_at: float, now: float) -> float:
    """When a peer's budget is whole again after one more frame, seconds.

    Args:
        whole_at: When it would have been; 0.0 at first.
        now: On the same clock.
    """
    return max(whole_at, now) + 1 / FRAMES_PER_S


def is_flood(whole_at: float, now: float) -> bool:
    """Whether more came than the budget holds."""
    return whole_at - now > BURST_FRAMES / FRAMES_PER_S
