"""What every WebSocket route does: accept, serve to the end, say why not, drain."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from starlette.websockets import WebSocket

from app.auth import Authenticator, Principal
from app.gateway.config import GatewayConfig
from app.gateway.credential_watch import CredentialWatch
from app.gateway.edge import PRINCIPAL
from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Responses
from app.gateway.throttle import TenantThrottles, Throttle
from app.gateway.transport import CONNECTION, SocketConnection
from app.gateway.writer import SocketWriter
from app.protocol.errors import error_event, public
from app.protocol.ids import new_id
from app.protocol.json_codec import encode
from engine.contract import ReparteeError

logger = logging.getLogger(__name__)

SUBPROTOCOL = "realtime"
DRAIN_CODE = 1012
DRAIN_REASON = "gateway is restarting; reconnect"
BINARY_CODE = 1003


class OpenSocket(Protocol):
    """One socket that is served.

    Attributes:
        watch: Whose it is, and for how long.
    """

    watch: CredentialWatch

    def drain(self, code: int, reason: str) -> None:
        """Close once nothing runs here."""

    def close(self, code: int, reason: str) -> None:
        """Close now."""


Socket = TypeVar("Socket", bound=OpenSocket)


class SocketRoute(Generic[Socket]):
    """A route's handler, and the sockets it has open.

    Args:
        responses: The way to the engine.
        config: Limits.
        metrics: Counts sockets.
        authenticator: Knows callers, also those who renew their credential.
        throttles: Slow down tenants that send too many events.

    Attributes:
        sockets: Those open now.
    """

    def __init__(
        self,
        responses: Responses,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        throttles: TenantThrottles,
    ) -> None:
        self._responses = responses
        self._config = config
        self._metrics = metrics
        self._authenticator = authenticator
        self._throttles = throttles
        self.sockets: set[Socket] = set()

    async def __call__(self, websocket: WebSocket) -> None:
        """Serve one socket to its end."""
        self._responses.check_open()
        principal: Principal = websocket.scope["state"][PRINCIPAL]
        offered = websocket.scope["subprotocols"]
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        connection: SocketConnection = websocket.scope["state"][CONNECTION]
        self._metrics.connections.inc()
        writer = SocketWriter(connection, self._config.max_pending_bytes, self._metrics)
        try:
            await self._serve(websocket, writer, principal)
        except ReparteeError as error:
            self._refuse(writer, error)
        except Exception as error:
            logger.exception("a socket failed")
            self._refuse(writer, error)
        finally:
            writer.discard()
            self._metrics.connections.dec()

    async def _serve(
        self, websocket: WebSocket, writer: SocketWriter, principal: Principal
    ) -> None:
        """Serve an accepted socket to its end."""
        raise NotImplementedError

    def _throttles_for(self, principal: Principal) -> tuple[Throttle, ...]:
        """The socket's own, and its tenant's."""
        return Throttle(self._config.max_events_per_s), self._throttles.of(principal.tenant)

    @contextmanager
    def _holding(self, socket: Socket) -> Iterator[None]:
        self.sockets.add(socket)
        try:
            yield
        finally:
            self.sockets.discard(socket)

    def _refuse(self, writer: SocketWriter, error: Exception) -> None:
        """Say why, then close with the error's code."""
        known = public(error)
        writer.send(encode(error_event(known, new_id("event_"))))
        writer.close(known.close_code, known.code)

    def look_again(self) -> None:
        """Keys have changed: end the sockets of those that are gone."""
        for socket in tuple(self.sockets):
            socket.watch.look_again()

    def drain(self) -> None:
        """Close every socket as soon as nothing runs on it."""
        for socket in tuple(self.sockets):
            socket.drain(DRAIN_CODE, DRAIN_REASON)

    def close_all(self) -> None:
        """Close every socket now."""
        for socket in tuple(self.sockets):
            socket.close(DRAIN_CODE, DRAIN_REASON)


async def texts_of(
    websocket: WebSocket, writer: SocketWriter, throttles: Sequence[Throttle]
) -> AsyncIterator[str]:
    """A socket's frames as they come, until it ends; a binary one ends it."""
    while True:
        message = await websocket.receive()
        if message["type"] != "websocket.receive":
            return
        text = message.get("text")
        if text is None:
            writer.close(BINARY_CODE, "text frames only")
            return
        for throttle in throttles:
            await throttle.wait()
        yield text
