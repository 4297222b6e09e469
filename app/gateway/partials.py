"""Messages of which the end has still to come: bounded in time, and together in bytes.

What has arrived of a message has to be kept. A peer that sends messages bit by bit would
keep it for ever, and a thousand such peers a gigabyte.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MESSAGE_TIMEOUT_S = 60.0
MAX_BYTES = 64 * 1024 * 1024
LATE_CODE = 1008
LATE_REASON = "the message took too long"
FULL_CODE = 1013
FULL_REASON = "too much is half sent; try again"


class Receiving(Protocol):
    """A socket in the midst of a message."""

    def end(self, code: int, reason: str) -> None:
        """Close it."""


class PartialMessages:
    """Those of all sockets, the oldest first.

    Args:
        timeout_s: How long a message may take from its first bytes to its last.
        max_bytes: Held of all of them together. Beyond it the one that has taken the
            longest so far goes.

    Attributes:
        timeout_s: See above.
        max_bytes: See above.
        num_bytes: Held now.
    """

    def __init__(self, timeout_s: float = MESSAGE_TIMEOUT_S, max_bytes: int = MAX_BYTES) -> None:
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        # Since when, and how many bytes.
        self._held: dict[Receiving, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.num_bytes = 0

    def note(self, socket: Receiving, num_bytes: int) -> None:
        """A socket holds so many bytes of the message that it has begun with now."""
        loop = asyncio.get_running_loop()
        since, before = self._held.get(socket, (loop.time(), 0))
        self._held[socket] = since, num_bytes
        self.num_bytes += num_bytes - before
        if self._timer is None:
            self._timer = loop.call_at(since + self.timeout_s, self._end_late)
        while self.num_bytes > self.max_bytes:
            self._end_oldest(FULL_CODE, FULL_REASON)

    def forget(self, socket: Receiving) -> None:
        """Its message is whole, or the socket gone."""
        _, num_bytes = self._held.pop(socket, (0.0, 0))
        self.num_bytes -= num_bytes
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_oldest(self, code: int, reason: str) -> None:
        oldest = next(iter(self._held))
        self.forget(oldest)
        oldest.end(code, reason)

    def _end_late(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._held:
            due_at = next(iter(self._held.values()))[0] + self.timeout_s
            if due_at > loop.time():
                self._timer = loop.call_at(due_at, self._end_late)
                return
            self._end_oldest(LATE_CODE, LATE_REASON)
