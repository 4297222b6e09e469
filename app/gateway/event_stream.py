"""An answer as server-sent events: deltas, heartbeats, an end; never stuck on its reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Protocol

from starlette.types import Scope, Send

from app.gateway.config import GatewayConfig
from app.gateway.metrics import GatewayMetrics
from app.gateway.transport import CONNECTION, HttpConnection
from app.protocol.chat import HEARTBEAT
from engine.contract import Delta, Event

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventView(Protocol):
    """Renders events as bytes of an event stream."""

    def render(self, event: Event) -> bytes:
        """Bytes of one event; may be empty."""

    def render_deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Bytes of deltas that go out as one."""

    def render_error(self, error: BaseException) -> bytes:
        """Bytes of an end that is a failure."""


class EventSource(Protocol):
    """An answer's events."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """One after the other, as they come."""

    def drain_pending(self) -> list[Event]:
        """Those that have arrived, without waiting."""


class EventStream:
    """One answer on its way to one reader.

    A reader that is behind gets what has gathered as one chunk. A reader that takes
    nothing for the write timeout is cut, and so is one that leaves silence unread.

    Args:
        answer: Its events after the first.
        view: How they look.
        first: The event already read.
        config: Heartbeat and write timeout.
        metrics: Counts merges and cuts.
    """

    def __init__(
        self,
        answer: EventSource,
        view: EventView,
        first: Event,
        config: GatewayConfig,
        metrics: GatewayMetrics,
    ) -> None:
        self._answer = answer
        self._view = view
        self._first = first
        self._config = config
        self._metrics = metrics
        self._sent_at = time.monotonic()
        self._sending_since: float | None = None

    async def run(self, scope: Scope, send: Send) -> None:
        """Send everything; returns at the end of the answer or of the connection."""
        connection: HttpConnection = scope["state"][CONNECTION]
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._write(send, self._view.render(self._first))
        watch = asyncio.create_task(self._watch(send, connection))
        try:
            async for event in self._answer:
                await self._write(send, self._render(event, connection))
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, send: Send, error: BaseException) -> None:
        """End a stream that `run` was taken off of."""
        body = self._view.render_error(error)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _render(self, event: Event, connection: HttpConnection) -> bytes:
        if not connection.is_congested:
            return self._view.render(event)
        chunks: list[bytes] = []
        deltas: list[Delta] = []
        for each in (event, *self._answer.drain_pending()):
            if isinstance(each, Delta):
                deltas.append(each)
                continue
            chunks.append(self._view.render(each))
        if deltas:
            self._metrics.merged_deltas.inc(len(deltas) - 1)
            chunks.insert(0, self._view.render_deltas(deltas))
        return b"".join(chunks)

    async def _write(self, send: Send, data: bytes) -> None:
        if not data:
            return
        self._sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since = None
        self._sent_at = time.monotonic()

    async def _watch(self, send: Send, connection: HttpConnection) -> None:
        """Fill silence with heartbeats; cut a reader that takes nothing."""
        pause_s = min(self._config.heartbeat_s, self._config.write_timeout_s) / 4
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            since = self._sending_since
            if since is not None and now - since > self._config.write_timeout_s:
                self._metrics.slow_closes.inc()
                connection.abort()
                return
            if since is None and now - self._sent_at > self._config.heartbeat_s:
                await self._write(send, HEARTBEAT)
