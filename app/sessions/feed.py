"""`ChangeFeed`: changes of conversations as they are made, on whatever gateway.

One connection listens to the channels of all conversations that are open here. A
channel promises nothing: what was said while the connection was away is lost. So each
change carries the conversation's version, and once the connection is back, every
listener is told which version holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from app.redis_client import make_reader, redis_errors
from app.sessions import keys
from app.sessions.changes import Change, read_change
from app.sessions.store import SessionStore

logger = logging.getLogger(__name__)

# Changes that wait for a listener; of more, the first are dropped, which shows by version.
MAX_HELD = 256
PING_S = 10.0
SILENT_S = 25.0
SUBSCRIBE_TIMEOUT_S = 3.0
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
_AT_ONCE = 500
# A connection with no channel at all could not be read.
_OWN_CHANNEL = "rp:ses:feed"


class Subscription:
    """One listener of one conversation; what comes before it listens is held.

    Attributes:
        session_id: Which conversation, once the feed follows it.
    """

    def __init__(self) -> None:
        self.session_id: str | None = None
        self._others: set[Subscription] = set()
        self._is_live: Callable[[], bool] = lambda: False
        self._held: list[Change] = []
        self._held_version: int | None = None
        self._on_change: Callable[[Change], None] | None = None
        self._on_version: Callable[[int], None] | None = None

    @property
    def is_only(self) -> bool:
        """Whether nobody else listens to the conversation here."""
        return not self._others - {self}

    @property
    def is_live(self) -> bool:
        """Whether changes come as they are made; not while Redis is away."""
        return self._is_live()

    def join(self, session_id: str, others: set[Subscription], is_live: Callable[[], bool]) -> None:
        """The feed follows a conversation for this listener and others."""
        self.session_id, self._others, self._is_live = session_id, others, is_live
        others.add(self)

    def listen(
        self, on_change: Callable[[Change], None], on_version: Callable[[int], None]
    ) -> None:
        """Pass on what was held, and what comes.

        Args:
            on_change: Takes each change.
            on_version: Takes the version that holds after changes may have been lost.
        """
        self._on_change, self._on_version = on_change, on_version
        while self._held and self._on_change is not None:
            self._on_change(self._held.pop(0))
        if self._held_version is not None and self._on_version is not None:
            version, self._held_version = self._held_version, None
            self._on_version(version)

    def hold(self) -> None:
        """Hold what comes until `listen`."""
        self._on_change = self._on_version = None

    def take(self, change: Change) -> None:
        """A change, from the feed."""
        if self._on_change is None:
            self._held = [*self._held, change][-MAX_HELD:]
        else:
            self._on_change(change)

    def take_version(self, version: int) -> None:
        """The version that holds, from the feed."""
        if self._on_version is None:
            self._held_version = version
        else:
            self._on_version(version)


class ChangeFeed:
    """See the module.

    Args:
        redis_url: Where.
        store: Knows the versions.

    Attributes:
        is_connected: Whether changes come as they are made.
    """

    def __init__(self, redis_url: str, store: SessionStore) -> None:
        self._redis = make_reader(redis_url, "repartee-changes", block_s=SILENT_S)
        self._store = store
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._pubsub: PubSub | None = None
        self._was_cut = False
        self.is_connected = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._run(), name="change-feed")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._redis.aclose()

    async def follow(self, subscription: Subscription, session_id: str) -> None:
        """Listen to a conversation: every change from now on comes.

        Args:
            subscription: A fresh one; `leave` ends it, also after a failure.
            session_id: Which conversation.

        Raises:
            Unavailable: Redis failed.
        """
        listeners = self._subscriptions.setdefault(session_id, set())
        subscription.join(session_id, listeners, lambda: self.is_connected)
        confirmed = self._confirmed.get(session_id)
        if confirmed is None:
            confirmed = asyncio.get_running_loop().create_future()
            self._confirmed[session_id] = confirmed
            await self._send("SUBSCRIBE", keys.changes(session_id))
        with redis_errors("subscribe"):
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await asyncio.shield(confirmed)

    async def leave(self, subscription: Subscription) -> None:
        """Listen no more; may be repeated."""
        session_id = subscription.session_id
        if session_id is None:
            return
        listeners = self._subscriptions.get(session_id, set())
        listeners.discard(subscription)
        if listeners or session_id not in self._confirmed:
            return
        self._subscriptions.pop(session_id, None)
        self._confirmed.pop(session_id).cancel()
        # A connection that is lost has forgotten the channel by itself.
        await self._send("UNSUBSCRIBE", keys.changes(session_id))

    async def _send(self, *command: str) -> None:
        """Send on the connection there is; without one, the next subscribes to all.

        The reply is the reader's. redis-py's own way would connect again where the connection
        is lost, as the reader does, and of two that do, one waits at a socket of the other's.
        """
        connection = self._pubsub.connection if self._pubsub is not None else None
        if connection is None or not connection.is_connected:
            return
        try:
            await connection.send_command(*command, check_health=False)
        except (RedisError, OSError) as error:
            logger.debug("%s put off: %s", command[0], error)

    async def _run(self) -> None:
        delay_s = RETRY_FIRST_S
        is_first, is_down = True, False
        while True:
            pubsub = self._redis.pubsub()
            try:
                await self._connect(pubsub)
                delay_s, is_down = RETRY_FIRST_S, False
                if not is_first:
                    await self._check_versions()
                is_first, self.is_connected = False, True
                await self._read_with_pings(pubsub)
            except (RedisError, OSError, TimeoutError) as error:
                if not is_down:
                    logger.warning("change feed: %s; reconnecting", error or type(error).__name__)
                is_down = True
            finally:
                self._pubsub, self.is_connected = None, False
                if pubsub.connection is not None:
                    pubsub.connection.deregister_connect_callback(self._note_cut)
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MAX_S)

    async def _connect(self, pubsub: PubSub) -> None:
        """A fresh connection that listens to everything that is wanted."""
        self._was_cut = False
        await pubsub.subscribe(_OWN_CHANNEL)
        if pubsub.connection is not None:
            pubsub.connection.register_connect_callback(self._note_cut)
        # From here on a new listener subscribes by itself.
        self._pubsub = pubsub
        wanted = set(self._confirmed)
        names = [keys.changes(session_id) for session_id in wanted]
        for start in range(0, len(names), _AT_ONCE):
            await pubsub.subscribe(*names[start : start + _AT_ONCE])
        missing = wanted
        while missing:
            session_id = await self._read(pubsub)
            missing.discard(session_id or "")
            missing &= set(self._confirmed)

    async def _note_cut(self, connection: object) -> None:
        """redis-py connects again by itself, and tells nobody."""
        self._was_cut = True

    async def _read_with_pings(self, pubsub: PubSub) -> None:
        pings = asyncio.create_task(self._ping())
        try:
            while True:
                await self._read(pubsub)
        finally:
            pings.cancel()
            await asyncio.gather(pings, return_exceptions=True)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await self._send("PING")

    async def _read(self, pubsub: PubSub) -> str | None:
        """Take one message; the conversation that it confirms, if it does.

        Raises:
            RedisError: The connection was lost, even if it is back already.
        """
        async with asyncio.timeout(SILENT_S):
            message = await pubsub.get_message(timeout=None)
        if self._was_cut:
            raise RedisConnectionError("the connection was lost")
        if message is None or message["type"] not in ("message", "subscribe"):
            return None
        session_id = _session_of(message["channel"].decode())
        if message["type"] == "message":
            self._dispatch(session_id, message["data"])
            return None
        confirmed = self._confirmed.get(session_id)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)
        return session_id

    def _dispatch(self, session_id: str, data: bytes) -> None:
        try:
            change = read_change(data)
        except ValueError as error:
            logger.warning("unreadable change of %s passed over: %s", session_id, error)
            return
        for subscription in tuple(self._subscriptions.get(session_id, ())):
            subscription.take(change)

    async def _check_versions(self) -> None:
        """Tell every listener which version holds, after some may have been missed."""
        session_ids = list(self._subscriptions)
        for start in range(0, len(session_ids), _AT_ONCE):
            versions = await self._store.versions(session_ids[start : start + _AT_ONCE])
            for session_id, version in versions.items():
                for subscription in tuple(self._subscriptions.get(session_id, ())):
                    subscription.take_version(version)


def _session_of(channel: str) -> str:
    """Inverse of `keys.changes`."""
    return channel.partition("{")[2].rpartition("}")[0]
