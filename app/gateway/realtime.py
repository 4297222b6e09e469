"""`/v1/realtime`: from the upgrade to a session that is open."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import QueryParams

from app.auth import Authenticator
from app.gateway.config import GatewayConfig
from app.gateway.conversation import Conversation
from app.gateway.credential_watch import CredentialWatch
from app.gateway.metrics import GatewayMetrics
from app.gateway.realtime_socket import RealtimeSocket
from app.gateway.responses import Responses
from app.gateway.snapshots import Snapshots
from app.gateway.socket_route import Handshake, SocketRoute
from app.gateway.throttle import TenantThrottles
from app.gateway.writer import SocketWriter
from app.protocol.ids import MAX_ID_CHARS
from app.protocol.realtime.wire import RealtimeWire
from app.sessions import SessionStore
from app.sessions.feed import ChangeFeed, Subscription
from engine.contract import Cursor, InvalidRequest, ReparteeError
from engine.contract.logs import log_context

logger = logging.getLogger(__name__)

# Between two renewals of what is open: well within the life of a session without items.
KEEP_S = 1200.0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What the upgrade's query asks for.

    Attributes:
        model: Model of a new session; None takes the default.
        session_id: A session to open again.
        after: The last delta that the client saw of the response running there.
        response_id: That response.
    """

    model: str | None
    session_id: str | None
    after: Cursor | None
    response_id: str | None

    @classmethod
    def of(cls, query: QueryParams) -> OpenRequest:
        """Read the query; fields that are not known are left alone.

        Raises:
            InvalidRequest: naming the field.
        """
        session_id, response_id = _id(query, "session_id"), _id(query, "response_id")
        epoch, seq = _count(query, "epoch"), _count(query, "starting_after")
        after = None if epoch is None or seq is None else Cursor(epoch, seq)
        return cls(query.get("model") or None, session_id, after, response_id)


def _id(query: QueryParams, name: str) -> str | None:
    text = query.get(name)
    if text is not None and not 1 <= len(text) <= MAX_ID_CHARS:
        raise InvalidRequest(
            f"{name} must have 1 to {MAX_ID_CHARS} characters, has {len(text)}.", param=name
        )
    return text


def _count(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidRequest(
            f"{name} must be a whole number of at least 0, got {text[:40]!r}.", param=name
        )
    return int(text)


class RealtimeRoute(SocketRoute[RealtimeSocket]):
    """The route's handler; see `SocketRoute`.

    Args:
        responses: The way to the engine.
        sessions: The conversations.
        config: Limits.
        metrics: Counts sockets.
        authenticator: Knows callers, also those who renew their credential.
        throttles: Slow down tenants that send too many events.

    Attributes:
        snapshots: Whole conversations on their way to clients.
    """

    def __init__(
        self,
        responses: Responses,
        sessions: SessionStore,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        throttles: TenantThrottles,
    ) -> None:
        super().__init__(responses, config, metrics, authenticator, throttles)
        self._sessions = sessions
        self._feed = ChangeFeed(config.redis_url, sessions)
        self.snapshots = Snapshots()
        self._keeper: asyncio.Task[None] | None = None

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

    async def _open(self, handshake: Handshake, writer: SocketWriter) -> RealtimeSocket:
        wanted = OpenRequest.of(QueryParams(handshake.query))
        subscription = Subscription()
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._feed.leave, subscription)
            conversation = await Conversation.open(
                self._sessions,
                self._responses.engine,
                handshake.principal,
                wanted.session_id,
                wanted.model,
                partial(self._feed.follow, subscription),
            )
            wire = RealtimeWire(conversation.session_id, conversation.settings, conversation.card)
            watch = CredentialWatch(
                *(handshake.principal, self._authenticator, handshake.authenticate),
                tell=lambda error: writer.send(wire.error(error, None)),
                close=writer.close,
            )
            socket = RealtimeSocket(
                *(handshake.connection, writer, wire, conversation, self._responses),
                *(watch, self._throttles_for(handshake.principal), subscription),
                *(self._feed, self.snapshots),
            )
            with log_context(**socket.log_fields):
                await socket.greet(wanted.after, wanted.response_id)
            undo.pop_all()
        return socket
