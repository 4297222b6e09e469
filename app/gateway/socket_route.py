"""What every WebSocket route does: accept, open, say why not, drain."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar

from starlette.types import Send

from app.auth import Authenticator, Principal
from app.gateway.config import GatewayConfig
from app.gateway.credential_watch import Authenticate, CredentialWatch
from app.gateway.event_inbox import EventInbox
from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Responses
from app.gateway.socket_connection import SocketConnection
from app.gateway.throttle import TenantThrottles, Throttle
from app.gateway.writer import SocketWriter
from app.protocol.errors import error_event, public
from app.protocol.ids import new_id
from app.protocol.json_codec import encode
from engine.contract import ReparteeError
from engine.contract.logs import log_context

logger = logging.getLogger(__name__)

SUBPROTOCOL = "realtime"
DRAIN_CODE = 1012
DRAIN_REASON = "gateway is restarting; reconnect"
# Client events read and not carried out yet; a full inbox stops the reading. The event that
# fills it is taken in whole, so that up to 2 MiB are held.
INBOX_EVENTS = 256
INBOX_CHARS = 1024 * 1024
# How long events of a socket that has closed may take.
LAST_EVENTS_S = 5.0


class OpenSocket(ABC):
    """One socket that is served: its events carried out, its end followed by what is due then.

    Args:
        connection: The socket.
        writer: The only way to write to it.
        watch: Whose it is, and for how long.
        throttles: Slow down whoever sends too many events: the socket's, the tenant's.

    Attributes:
        watch: See above.
        log_fields: What each line logged for it says.
    """

    log_fields: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        connection: SocketConnection,
        writer: SocketWriter,
        watch: CredentialWatch,
        throttles: tuple[Throttle, ...],
    ) -> None:
        self._connection = connection
        self._writer = writer
        self.watch = watch
        self._inbox = EventInbox(connection, throttles, INBOX_EVENTS, INBOX_CHARS)

    def on_text(self, text: str) -> None:
        """One message of the client's."""
        self._inbox.put(text, self.carry_out)

    @abstractmethod
    async def carry_out(self, text: str) -> None:
        """Do what one event asks for."""

    async def finish(self) -> None:
        """The socket has ended; what was sent before the goodbye is still carried out."""
        await self._inbox.close(LAST_EVENTS_S)
        self.watch.stop()

    @abstractmethod
    def drain(self, code: int, reason: str) -> None:
        """Close once nothing runs here."""

    def close(self, code: int, reason: str) -> None:
        """Close now."""
        self._writer.close(code, reason)


Socket = TypeVar("Socket", bound=OpenSocket)
Leave = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a client that may open a socket asks for.

    Attributes:
        connection: Its connection.
        send: Answers the handshake.
        principal: Who asks.
        subprotocols: Offered.
        query: The query string.
        leave: Gives back the place that the socket has in its tenant's budget.
        authenticate: Knows who shows another credential from there; refuses who shows too
            many wrong ones.
    """

    connection: SocketConnection
    send: Send
    principal: Principal
    subprotocols: list[str]
    query: bytes
    leave: Leave
    authenticate: Authenticate


class SocketRoute(ABC, Generic[Socket]):
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

    async def __call__(self, handshake: Handshake) -> None:
        """Open a socket; from then on it lives by what its client says.

        Raises:
            ReparteeError: There is none, and the handshake is still to be answered.
        """
        try:
            self._responses.check_open()
        except ReparteeError:
            await handshake.leave()
            raise
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in handshake.subprotocols else None
        await handshake.send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._metrics.connections.inc()
        writer = SocketWriter(handshake.connection, self._config.max_pending_bytes, self._metrics)
        socket: Socket | None = None
        try:
            socket = await self._open(handshake, writer)
        except ReparteeError as error:
            self._refuse(writer, error)
        except Exception as error:
            logger.exception("a socket failed")
            self._refuse(writer, error)
        finally:
            if socket is None:
                await self._leave(writer, handshake.leave)
        if socket is not None:
            self.sockets.add(socket)
            finish = partial(self._finish, socket, writer, handshake.leave)
            with log_context(**socket.log_fields):
                handshake.connection.hand_over(socket.on_text, finish)

    @abstractmethod
    async def _open(self, handshake: Handshake, writer: SocketWriter) -> Socket:
        """Greet an accepted socket; whatever was taken for it is given back if that fails."""

    async def _finish(self, socket: Socket, writer: SocketWriter, leave: Leave) -> None:
        """A socket has ended."""
        try:
            await socket.finish()
        finally:
            self.sockets.discard(socket)
            await self._leave(writer, leave)

    async def _leave(self, writer: SocketWriter, leave: Leave) -> None:
        writer.discard()
        self._metrics.connections.dec()
        await leave()

    def _throttles_for(self, principal: Principal) -> tuple[Throttle, ...]:
        """The socket's own, and its tenant's."""
        return Throttle(self._config.max_events_per_s), self._throttles.of(principal.tenant)

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
