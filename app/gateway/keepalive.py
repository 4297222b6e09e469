"""Pings for all sockets by one timer, and the end of those whose peer is silent.

A timer for each socket would be a few hundred bytes each, and thousands of wake-ups. Here
sockets sit on a wheel: one turn of it is the ping interval, and each tick pings those of
one slot.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Protocol

MAX_SLOTS = 64
MIN_TICK_S = 0.02
PAYLOAD_BYTES = 4


class Pinged(Protocol):
    """A socket on the wheel.

    Attributes:
        ping_payload: That of the ping that waits for its pong; None if none does.
        wheel_slot: Where it sits; kept by the wheel.
    """

    ping_payload: bytes | None
    wheel_slot: int

    def ping(self, payload: bytes) -> None:
        """Send a ping."""

    def end_silent(self) -> None:
        """The peer has not answered in time."""


class PingWheel:
    """See the module.

    Args:
        interval_s: Between a socket's pings.
        timeout_s: How long its pong may take.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        num_slots = min(MAX_SLOTS, max(1, int(interval_s / MIN_TICK_S)))
        self._tick_s = interval_s / num_slots
        self._timeout_s = timeout_s
        self._slots: list[set[Pinged]] = [set() for _ in range(num_slots)]
        self._slot = 0
        self._num_sockets = 0
        self._due: deque[tuple[float, bytes, list[Pinged]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, socket: Pinged) -> None:
        """Ping a socket from now on, for the first time in one interval."""
        socket.wheel_slot = (self._slot - 1) % len(self._slots)
        self._slots[socket.wheel_slot].add(socket)
        self._num_sockets += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def remove(self, socket: Pinged) -> None:
        """Ping it no more."""
        if socket in self._slots[socket.wheel_slot]:
            self._slots[socket.wheel_slot].remove(socket)
            self._num_sockets -= 1
        if not self._num_sockets and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._due.clear()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        # Pongs that have arrived are read after this tick: who is late by one is not silent.
        self._timer = loop.call_later(self._tick_s, self._tick)
        while self._due and self._due[0][0] <= loop.time():
            _, payload, sockets = self._due.popleft()
            for socket in sockets:
                if socket.ping_payload is payload:
                    socket.end_silent()
        self._ping(self._slots[self._slot], loop.time() + self._timeout_s)
        self._slot = (self._slot + 1) % len(self._slots)

    def _ping(self, sockets: set[Pinged], due_at: float) -> None:
        payload = os.urandom(PAYLOAD_BYTES)
        pinged = [socket for socket in sockets if socket.ping_payload is None]
        for socket in pinged:
            socket.ping_payload = payload
            socket.ping(payload)
        if pinged:
            self._due.append((due_at, payload, pinged))
