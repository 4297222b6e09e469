"""`/v1/realtime`: from the upgrade to a session that is open."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import QueryParams
from starlette.websockets import WebSocket

from app.auth import Authenticator, Principal
from app.gateway.config import GatewayConfig
from app.gateway.conversation import Conversation
from app.gateway.credential_watch import CredentialWatch
from app.gateway.edge import PRINCIPAL
from app.gateway.metrics import GatewayMetrics
from app.gateway.realtime_socket import RealtimeSocket
from app.gateway.responses import Responses
from app.gateway.throttle import TenantThrottles, Throttle
from app.gateway.transport import CONNECTION, SocketConnection
from app.gateway.writer import SocketWriter
from app.protocol.errors import error_event, public
from app.protocol.ids import MAX_ID_CHARS, new_id
from app.protocol.json_codec import encode
from app.protocol.realtime.wire import RealtimeWire
from app.sessions import SessionStore
from app.sessions.feed import ChangeFeed, Subscription
from engine.contract import Cursor, InvalidRequest, ReparteeError
from engine.contract.logs import log_context

logger = logging.getLogger(__name__)

SUBPROTOCOL = "realtime"
DRAIN_CODE = 1012
DRAIN_REASON = "gateway is restarting; reconnect"
# Between two renewals of what is open: well within the life of a session without items.
KEEP_S = 1200.0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What the upgrade's query asks for.

    Attributes:
        model: Model of a new session; None takes the default.
        session_id: A session to open again.
        after: The last delta that the client saw of the response running there.
    """

    model: str | None
    session_id: str | None
    after: Cursor | None

    @classmethod
    def of(cls, query: QueryParams) -> OpenRequest:
        """Read the query; fields that are not known are left alone.

        Raises:
            InvalidRequest: naming the field.
        """
        session_id = query.get("session_id")
        if session_id is not None and not 1 <= len(session_id) <= MAX_ID_CHARS:
            raise InvalidRequest(
                f"session_id must have 1 to {MAX_ID_CHARS} characters, has {len(session_id)}.",
                param="session_id",
            )
        epoch, seq = _count(query, "epoch"), _count(query, "starting_after")
        after = None if epoch is None or seq is None else Cursor(epoch, seq)
        return cls(query.get("model") or None, session_id, after)


def _count(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidRequest(
            f"{name} must be a whole number of at least 0, got {text[:40]!r}.", param=name
        )
    return int(text)


class RealtimeRoute:
    """The route's handler, and the sockets it has open.

    Args:
        responses: The way to the engine.
        sessions: The conversations.
        config: Limits.
        metrics: Counts sockets.
        authenticator: Knows callers, also those who renew their credential.

    Attributes:
        sockets: Those open now.
    """

    def __init__(
        self,
        responses: Responses,
        sessions: SessionStore,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
    ) -> None:
        self._responses = responses
        self._sessions = sessions
        self._config = config
        self._metrics = metrics
        self._authenticator = authenticator
        self._throttles = TenantThrottles(config.max_tenant_events_per_s)
        self._feed = ChangeFeed(config.redis_url, sessions)
        self._keeper: asyncio.Task[None] | None = None
        self.sockets: set[RealtimeSocket] = set()

    async def start(self) -> None:
        """Begin to hear of changes, and to keep what is open."""
        await self._feed.start()
        self._keeper = asyncio.create_task(self._keep_forever(), name="session-keeper")

    async def stop(self) -> None:
        """Hear no more; the sockets are closed."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._feed.close()

    async def _keep_forever(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            try:
                await self.keep_sessions()
            except ReparteeError as error:
                logger.warning("open sessions are not kept yet: %s", error)

    async def keep_sessions(self) -> None:
        """Let the sessions of all open sockets live on, however quiet these are."""
        await self._sessions.keep(list({socket.session_id for socket in self.sockets}))

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
        wanted = OpenRequest.of(websocket.query_params)
        subscription = Subscription()
        try:
            conversation = await Conversation.open(
                self._sessions,
                self._responses.engine,
                principal,
                wanted.session_id,
                wanted.model,
                partial(self._feed.follow, subscription),
            )
            wire = RealtimeWire(conversation.session_id, conversation.settings, conversation.card)
            watch = CredentialWatch(
                *(principal, self._authenticator),
                tell=lambda error: writer.send(wire.error(error, None)),
                close=writer.close,
            )
            own = Throttle(self._config.max_events_per_s)
            socket = RealtimeSocket(
                *(websocket, writer, wire, conversation, self._responses),
                *(watch, (own, self._throttles.of(principal.tenant)), subscription),
            )
            await self._run(socket, wanted.after)
        finally:
            await self._feed.leave(subscription)

    async def _run(self, socket: RealtimeSocket, after: Cursor | None) -> None:
        self.sockets.add(socket)
        try:
            with log_context(session_id=socket.session_id):
                await socket.run(after)
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
