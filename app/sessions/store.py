"""`SessionStore`: conversations in Redis, each change atomic.

A conversation is bounded (`keys.MAX_ITEMS`, `keys.MAX_ITEM_BYTES`), lives
`keys.SESSION_TTL_S` after its last use, and has at most one running response.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import make_client, redis_errors
from app.sessions import keys
from app.sessions.index import SessionIndex
from app.sessions.items import SessionItems, version_text
from app.sessions.quota import ScopesOf, StorageQuota, no_scopes
from app.sessions.reader import SessionReader
from app.sessions.records import Session, StoredTurns, TurnBound
from app.sessions.refusals import no_session, refuse
from app.sessions.running import RunningResponses
from app.sessions.scripts import Scripts
from app.sessions.stored import ResponseStore
from app.sessions.writer import SessionWriter
from engine.contract import Conflict


class SessionStore:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis_url: Where.
        ttl_s: A conversation's lifetime after its last use, in seconds.
        empty_ttl_s: That of one without items.
        redis: A pooled client to share; made (and closed) here by default.
        scopes_of: What bounds an owner's storage, now; nothing by default.

    Attributes:
        items: What is said in conversations.
        running: The response that may write to each.
        index: Each tenant's list.
        quota: What owners have stored, and may.
        responses: Those of the Responses API.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        ttl_s: int = keys.SESSION_TTL_S,
        empty_ttl_s: int = keys.EMPTY_TTL_S,
        redis: Redis | None = None,
        scopes_of: ScopesOf = no_scopes,
    ) -> None:
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, "repartee-sessions")
        self._empty_ttl_s = empty_ttl_s
        self._scripts = Scripts(self._redis, ttl_s, empty_ttl_s)
        self._reader = SessionReader(self._redis, ttl_s, empty_ttl_s)
        self.quota = StorageQuota(self._redis, scopes_of, ttl_s)
        self._writer = SessionWriter(self._scripts, self.quota)
        self.index = SessionIndex(self._redis, ttl_s)
        self.running = RunningResponses(self._redis, self._reader, self._writer, self.index)
        self.items = SessionItems(self._reader, self._writer, self.running, self.index, self.quota)
        self.responses = ResponseStore(self._redis, self.quota)

    async def close(self) -> None:
        """Close the client, if it was made here."""
        if self._owns_redis:
            await self._redis.aclose()

    async def create(
        self, session_id: str, settings: Mapping[str, Any], *, tenant: str = ""
    ) -> Session:
        """Begin a conversation. The same call repeated gives the same conversation.

        Raises:
            Conflict: the id is another conversation's.
            InvalidRequest: its owner's quota is full.
        """
        now = time.time()
        meta = keys.of(session_id)[0]
        body = orjson.dumps(settings)
        await self.quota.open(tenant, session_id, len(body))
        with redis_errors("session create"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hsetnx(meta, "created_at", str(now))
                for name, value in (
                    ("version", "1"),
                    ("tenant", tenant),
                    ("settings", body),
                    ("updated_at", str(now)),
                    ("bytes", "0"),
                ):
                    pipe.hsetnx(meta, name, value)
                pipe.expire(meta, self._empty_ttl_s)
                await pipe.execute()
        session = await self.load(session_id)
        if session.tenant != tenant or orjson.dumps(session.settings) != body:
            raise Conflict(
                f"The session {session_id!r:.100} exists already.", code="session_exists"
            )
        return session

    async def load(self, session_id: str, *, tenant: str | None = None) -> Session:
        """The whole conversation.

        Args:
            session_id: Which.
            tenant: Whose it must be; None doesn't ask.

        Raises:
            NotFound: there is none, it has expired, or it's another tenant's.
        """
        session = await self._reader.read(session_id)
        if tenant is not None and session.tenant != tenant:
            raise no_session(session_id)
        if session.active is not None and await self.running.reconcile(session_id, session.active):
            session = await self._reader.read(session_id)
        return session

    async def turns(self, session_id: str, bound: TurnBound) -> StoredTurns:
        """What was said in it, if that is within a bound.

        Raises:
            NotFound: no such conversation.
        """
        with redis_errors("session turns"):
            word, *rest = await self._scripts.run(
                "read_turns", session_id, bound.text_bytes, bound.item_bytes
            )
        if word != "ok":
            refuse([word, *rest], session_id, None, None)
        return StoredTurns.of_reply(rest)

    async def update_settings(
        self,
        session_id: str,
        settings: Mapping[str, Any],
        *,
        tenant: str = "",
        expected_version: int | None = None,
        origin: str = "",
    ) -> int:
        """Replace the settings; the new version.

        Args:
            session_id: Where.
            settings: What is to hold.
            tenant: Whose the conversation is.
            expected_version: Refuse if the conversation has changed since.
            origin: Who changes them, as listeners are told.

        Raises:
            NotFound: no such conversation.
            Conflict: the version isn't the expected one any more.
            InvalidRequest: the owner's quota is full.
        """
        body = orjson.dumps(settings)
        # Those of before go: what it takes then is noted.
        async with self.quota.reserved(tenant, session_id, len(body)) as reservation:
            reply = await self._writer.run(
                "update_settings", session_id, body, version_text(expected_version), origin=origin
            )
            reservation.keep()
        return reply.version

    async def rename(self, session_id: str, title: str, *, tenant: str, origin: str = "") -> None:
        """Give a conversation a title.

        Raises:
            NotFound: the tenant has no such conversation.
        """
        await self._writer.run("rename", session_id, tenant, title, origin=origin)

    async def delete(self, session_id: str, *, tenant: str, origin: str = "") -> str | None:
        """Forget a conversation, and the logs of its answers.

        Returns:
            The response that was running, which nobody has cancelled yet.

        Raises:
            NotFound: the tenant has no such conversation.
        """
        session = await self.load(session_id, tenant=tenant)
        reply = await self._writer.run(
            "delete_session", session_id, tenant, origin=origin, is_noted=False
        )
        await self.quota.drop(tenant, [session_id])
        made = [item.response_id for item in session.items if item.response_id is not None]
        await self.running.forget_logs(made)
        await self.index.drop(tenant, [session_id])
        return str(reply.rest[0]) or None

    async def versions(self, session_ids: Sequence[str]) -> dict[str, int]:
        """Versions of those that there are.

        Raises:
            RedisError: Redis failed.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for session_id in session_ids:
                pipe.hget(keys.of(session_id)[0], "version")
            replies = await pipe.execute()
        found = zip(session_ids, replies, strict=True)
        return {session_id: int(version) for session_id, version in found if version is not None}

    async def keep(self, session_ids: Sequence[str]) -> None:
        """Renew the lifetime of conversations that are open somewhere."""
        await self._reader.keep(session_ids)
