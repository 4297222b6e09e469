"""The one writer of a socket: never waits, bounded in bytes.

While the peer keeps up, frames go straight to the transport. Once the transport is
full they queue here, and neighbouring deltas of one response become one delta: its
text is that of all of them, its cursor that of the last. A queue that outgrows its bound
ends the socket with 1013; the client comes back and resumes from the log.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from app.gateway.metrics import GatewayMetrics
from app.gateway.socket_connection import SocketConnection
from engine.contract import Cursor

SLOW_CODE = 1013
SLOW_REASON = "reader too slow; reconnect and resume"
# What a queued frame costs besides its text.
ENTRY_BYTES = 128


class DeltaView(Protocol):
    """One response as a socket shows it."""

    def delta(self, text: str, cursor: Cursor) -> bytes:
        """The frame of a delta; `cursor` is that of the last event in `text`."""


class PendingText:
    """Text of one response that is not written yet."""

    __slots__ = ("cursor", "num_bytes", "texts", "view")

    def __init__(self, view: DeltaView, text: str, cursor: Cursor) -> None:
        self.view = view
        self.texts = [text]
        self.cursor = cursor
        self.num_bytes = len(text.encode())

    def add(self, text: str, cursor: Cursor) -> int:
        """Take in the text that follows; how many bytes that is."""
        self.texts.append(text)
        self.cursor = cursor
        num_bytes = len(text.encode())
        self.num_bytes += num_bytes
        return num_bytes

    def render(self) -> bytes:
        """The delta frame of all text gathered."""
        return self.view.delta("".join(self.texts), self.cursor)


class SocketWriter:
    """See the module.

    Args:
        connection: The socket.
        max_pending_bytes: The queue's bound.
        metrics: Counts merges, cuts and pending bytes.
    """

    def __init__(
        self, connection: SocketConnection, max_pending_bytes: int, metrics: GatewayMetrics
    ) -> None:
        self._connection = connection
        self._max_pending_bytes = max_pending_bytes
        self._metrics = metrics
        # A deque takes 760 bytes even empty, and most sockets never need one.
        self._queue: deque[bytes | PendingText] | None = None
        self.pending_bytes = 0
        connection.on_writable = self._drain

    @property
    def is_open(self) -> bool:
        """Whether frames still go out."""
        return self._connection.is_open

    def send(self, frame: bytes) -> None:
        """Write one frame, or queue it."""
        if self._goes_straight():
            self._connection.send_frame(frame)
        elif self.is_open:
            self._enqueue(frame)

    def send_all(self, frames: list[bytes]) -> None:
        """Write frames in order."""
        if self._goes_straight():
            self._connection.send_frames(frames)
            return
        for frame in frames:
            self.send(frame)

    def send_text(self, view: DeltaView, text: str, cursor: Cursor) -> None:
        """Write a delta, or queue it, or add it to the delta that is queued last."""
        if self._goes_straight():
            self._connection.send_frame(view.delta(text, cursor))
            return
        if not self.is_open:
            return
        last = self._queue[-1] if self._queue else None
        if isinstance(last, PendingText) and last.view is view:
            self._metrics.merged_deltas.inc()
            self._grow(last.add(text, cursor))
            return
        self._enqueue(PendingText(view, text, cursor))

    def close(self, code: int, reason: str) -> None:
        """End the socket; what is queued is dropped."""
        self._clear()
        self._connection.end(code, reason)

    def discard(self) -> None:
        """Forget what is queued; the socket is gone."""
        self._connection.on_writable = None
        self._clear()

    def _goes_straight(self) -> bool:
        return not self._queue and not self._connection.is_congested

    def _enqueue(self, entry: bytes | PendingText) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append(entry)
        self._grow(_cost_bytes(entry))

    def _grow(self, num_bytes: int) -> None:
        self.pending_bytes += num_bytes
        self._metrics.pending_bytes.inc(num_bytes)
        if self.pending_bytes > self._max_pending_bytes:
            self._metrics.slow_closes.inc()
            self.close(SLOW_CODE, SLOW_REASON)

    def _drain(self) -> None:
        while self._queue and not self._connection.is_congested:
            entry = self._queue.popleft()
            self._shrink(_cost_bytes(entry))
            self._connection.send_frame(entry if isinstance(entry, bytes) else entry.render())
        if not self._queue:
            self._clear()

    def _shrink(self, num_bytes: int) -> None:
        self.pending_bytes -= num_bytes
        self._metrics.pending_bytes.dec(num_bytes)

    def _clear(self) -> None:
        self._queue = None
        self._shrink(self.pending_bytes)


def _cost_bytes(entry: bytes | PendingText) -> int:
    num_bytes = len(entry) if isinstance(entry, bytes) else entry.num_bytes
    return num_bytes + ENTRY_BYTES
