"""uvicorn's HTTP connections with bounded buffers, and a way to cut them.

As they come, a peer that stops reading holds its connection for good: closing waits
for the unsent bytes. Here every close has a deadline, after which the connection is
aborted. Nor may a peer hold one by sending a request bit by bit. A request finds its
connection in `scope["state"][CONNECTION]`. Refusals that no application sees (there is
no place, the head is too long or no HTTP) are JSON as all others.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from app.gateway.gate import Gate, Place
from app.protocol.errors import RequestHeadTooLarge, error_body, http_headers
from app.protocol.ids import new_id
from app.protocol.json_codec import encode
from engine.contract import InvalidRequest, ReparteeError, Unavailable

CONNECTION = "repartee.connection"
SEND_BUFFER_BYTES = 64 * 1024
WRITE_HIGH_WATER_BYTES = 32 * 1024
CLOSE_TIMEOUT_S = 3.0
USER_TIMEOUT_MS = 20_000
# How long a request's head may take to arrive, and then its body.
HEAD_TIMEOUT_S = 15.0
BODY_TIMEOUT_S = 60.0
FULL_RETRY_MS = 1000
BAD_REQUEST = InvalidRequest("The request is not sound HTTP.", code="invalid_http")
_LONG_HEAD = RequestHeadTooLarge("The request's head is too long.")
_FULL = Unavailable(
    "All connections are taken; try again.",
    code="too_many_connections",
    retry_after_ms=FULL_RETRY_MS,
)


def raw_refusal(error: ReparteeError) -> bytes:
    """A whole HTTP answer that ends its connection."""
    body = encode(error_body(error))
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "x-request-id": new_id("req_"),
        **http_headers(error),
    }
    return raw_answer(error.http_status, fields, body)


def raw_answer(status: int, fields: Mapping[str, str], body: bytes) -> bytes:
    """An HTTP answer of these fields that ends its connection."""
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "connection: close"]
    head += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def bound_connections(listener: socket.socket) -> None:
    """Give what `listener` accepts a bounded send buffer, and an end when the peer is gone."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    # asyncio does this only for sockets that were made with an explicit protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


class HttpConnection(H11Protocol):
    """An HTTP connection that a request can abort.

    Attributes:
        place: Its place behind the gate; None if there was none left.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        gate: Gate,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._gate = gate
        self.place: Place | None = None
        self._is_refused = False
        self._arrival: asyncio.TimerHandle | None = None
        self._awaits_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        super().connection_made(transport)
        self.place = self._gate.enter(self.client[0] if self.client else "")
        if self.place is None:
            self._refuse(_FULL)
            return
        self._time_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_timing()
        if self.place is not None:
            self.place.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol; after a refusal what still arrives is thrown away."""
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_refused:
            return
        is_upgraded = self.transport.get_protocol() is not self
        awaits_body = self.conn.their_state is h11.SEND_BODY
        if is_upgraded or (not awaits_body and self.conn.their_state is not h11.IDLE):
            self._stop_timing()
        elif self._arrival is None or awaits_body != self._awaits_body:
            self._time_arrival(awaits_body=awaits_body)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, which calls this from where it catches h11's error."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # An answer is under way; nothing can be said in its midst.
            self.transport.close()
            return
        if self.cycle is not None:
            # Whoever waits for the rest of the body hears that it won't come.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(_LONG_HEAD if status == _LONG_HEAD.http_status else BAD_REQUEST)

    def _refuse(self, error: ReparteeError) -> None:
        """Say why, and go on reading for a while, or the peer would see a reset instead."""
        self._is_refused = True
        self._stop_timing()
        self.transport.write(raw_refusal(error))
        self.transport.write_eof()
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def _time_arrival(self, *, awaits_body: bool = False) -> None:
        self._stop_timing()
        self._awaits_body = awaits_body
        timeout_s = BODY_TIMEOUT_S if awaits_body else HEAD_TIMEOUT_S
        self._arrival = self.loop.call_later(timeout_s, self.abort)

    def _stop_timing(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads too slowly to take more right now."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Drop the connection and whatever is unsent."""
        self.transport.abort()
