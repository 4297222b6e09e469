"""`SessionStore`: conversations in Redis, each change atomic.

A conversation is bounded (`keys.MAX_ITEMS`, `keys.MAX_ITEM_BYTES`), lives
`keys.SESSION_TTL_S` after its last use, and has at most one running response. Should
the gateway that followed the response die, whoever next loads the conversation, or
begins another response in it, writes the answer from the response's log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import make_client, redis_errors
from app.routing.log import ResponseLog
from app.sessions import keys
from app.sessions.index import SessionIndex
from app.sessions.reader import SessionReader, active_of
from app.sessions.records import ActiveResponse, AddedItem, Item, Session
from app.sessions.refusals import no_session, refuse
from app.sessions.scripts import Scripts
from app.sessions.stored import ResponseStore
from app.sessions.titles import default_title
from app.sessions.unseen import unseen_answer
from engine.contract import Conflict, InvalidRequest

logger = logging.getLogger(__name__)

# Attempts of a read-change-write that another writer came between.
_REPLACE_TRIES = 5


class SessionStore:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis_url: Where.
        ttl_s: A conversation's lifetime after its last use, in seconds.
        empty_ttl_s: That of one without items.
        redis: A pooled client to share; made (and closed) here by default.

    Attributes:
        index: Each tenant's list.
        responses: Those of the Responses API.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        ttl_s: int = keys.SESSION_TTL_S,
        empty_ttl_s: int = keys.EMPTY_TTL_S,
        redis: Redis | None = None,
    ) -> None:
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, "repartee-sessions")
        self._empty_ttl_s = empty_ttl_s
        self._scripts = Scripts(self._redis, ttl_s, empty_ttl_s)
        self._reader = SessionReader(self._redis, ttl_s, empty_ttl_s)
        self._log = ResponseLog(self._redis)
        self.index = SessionIndex(self._redis, ttl_s)
        self.responses = ResponseStore(self._redis)

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
        """
        now = time.time()
        meta = keys.of(session_id)[0]
        body = orjson.dumps(settings)
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
        if session.active is not None and await self._reconcile(session_id, session.active):
            session = await self._reader.read(session_id)
        return session

    async def update_settings(
        self,
        session_id: str,
        settings: Mapping[str, Any],
        *,
        expected_version: int | None = None,
        origin: str = "",
    ) -> int:
        """Replace the settings; the new version.

        Raises:
            NotFound: no such conversation.
            Conflict: the version isn't the expected one any more.
        """
        reply = await self._run(
            "update_settings",
            session_id,
            orjson.dumps(settings),
            _text(expected_version),
            origin=origin,
        )
        return int(reply[1])

    async def add_item(
        self,
        session_id: str,
        item: Item,
        *,
        after: str | None = None,
        event_id: str | None = None,
        expected_version: int | None = None,
        origin: str = "",
    ) -> AddedItem:
        """Put an item in.

        Args:
            session_id: Where.
            item: What; its id must be new, or the same item's.
            after: The item before it; `root` for the front, None for the end.
            event_id: The client's id of the send: a repeated one adds nothing.
            expected_version: Refuse if the conversation has changed since.
            origin: Who adds it, as listeners are told.

        Raises:
            NotFound: no such conversation, or no such item as `after`.
            InvalidRequest: the conversation is full, or the id another item's.
            Conflict: the version isn't the expected one any more.
        """
        if not item.created_at:
            item = replace(item, created_at=time.time())
        try:
            body = orjson.dumps(item.to_wire())
        except TypeError as error:
            raise InvalidRequest(
                "item.content must be valid Unicode, without halves of surrogate pairs.",
                param="item.content",
            ) from error
        reply = await self._run(
            "add_item",
            session_id,
            item.item_id,
            body,
            after or "",
            event_id or "",
            keys.MAX_ITEMS,
            keys.MAX_ITEM_BYTES,
            keys.MAX_SENDS,
            _text(expected_version),
            default_title(item.text) if item.role == "user" else "",
            item_id=item.item_id,
            after=after,
            origin=origin,
        )
        outcome, version, previous, item_id, *more = reply
        if outcome != "ok":
            return AddedItem(item_id, previous or None, int(version), created=False)
        num_items, tenant, title = more
        if num_items == 1:
            await self.index.note(tenant, session_id)
        return AddedItem(item_id, previous or None, int(version), True, title or None)

    async def size(self, session_id: str) -> tuple[int, int]:
        """Items of a conversation and their bytes as stored, without reading them.

        Raises:
            NotFound: no such conversation.
        """
        meta_key, order_key, *_ = keys.of(session_id)
        with redis_errors("session size"):
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.llen(order_key)
                pipe.hget(meta_key, "bytes")
                num_items, num_bytes = await pipe.execute()
        if num_bytes is None:
            raise no_session(session_id)
        return int(num_items), int(num_bytes)

    async def get_item(self, session_id: str, item_id: str) -> Item:
        """One item.

        Raises:
            NotFound: no such conversation or item.
        """
        return Item.from_wire(orjson.loads(await self._reader.item_body(session_id, item_id)))

    async def delete_item(self, session_id: str, item_id: str, *, origin: str = "") -> int:
        """Take an item out; the new version.

        Raises:
            NotFound: no such conversation or item.
        """
        reply = await self._run("delete_item", session_id, item_id, item_id=item_id, origin=origin)
        return int(reply[1])

    async def truncate(
        self, session_id: str, item_id: str, num_chars: int, *, origin: str = ""
    ) -> tuple[Item, int | None]:
        """Cut an assistant's item to its first `num_chars` characters.

        Returns:
            The item, and the new version; None if it was as short before.

        Raises:
            NotFound: no such conversation or item.
            InvalidRequest: the item isn't an assistant's.
        """
        for _ in range(_REPLACE_TRIES):
            body = await self._reader.item_body(session_id, item_id)
            item = Item.from_wire(orjson.loads(body))
            if item.role != "assistant":
                raise InvalidRequest(
                    f"Only an assistant's item can be truncated; {item_id!r:.100} is a "
                    f"{item.role}'s.",
                    param="item_id",
                )
            if len(item.text) <= num_chars:
                return item, None
            item = replace(item, text=item.text[:num_chars], status="incomplete", reason=None)
            reply = await self._run(
                "replace_item",
                session_id,
                item_id,
                orjson.dumps(item.to_wire()),
                body,
                num_chars,
                item_id=item_id,
                origin=origin,
                may_be_stale=True,
            )
            if reply[0] == "ok":
                return item, int(reply[1])
        raise Conflict(f"The item {item_id!r:.100} keeps changing.", code="version_conflict")

    async def truncate_after(
        self, session_id: str, item_id: str | None, *, origin: str = ""
    ) -> tuple[list[str], int]:
        """Take out all that comes after an item, as long as no response runs.

        Args:
            session_id: Where.
            item_id: The last item that stays; None takes out everything.
            origin: Who does it, as listeners are told.

        Returns:
            The ids of what was taken out, and the new version.

        Raises:
            NotFound: no such conversation or item.
            Conflict: a response is running.
        """
        reply = await self._when_idle(
            "truncate_after", session_id, item_id or "root", item_id=item_id, origin=origin
        )
        return [str(part) for part in reply[2:]], int(reply[1])

    async def begin_response(
        self,
        session_id: str,
        response_id: str,
        *,
        item_id: str,
        deadline_at: float,
        event_id: str | None = None,
        answers: str | None = None,
        asked: Mapping[str, Any] | None = None,
        origin: str = "",
    ) -> str | None:
        """Make a response the one that may write to the conversation.

        Args:
            session_id: Where.
            response_id: Which; repeating the call for the same one changes nothing.
            item_id: The item that the answer will become.
            deadline_at: Unix seconds; a response past it no longer blocks others.
            event_id: The client's id of the request: repeated after its answer, with
                nothing added since, it begins nothing.
            answers: The item that it is to answer, without which nothing begins; None
                takes the conversation as it is.
            asked: What it is asked to be: whoever else shows it, shows that.
            origin: Who begins it, as listeners are told.

        Returns:
            The item that the answer follows; None in an empty conversation.

        Raises:
            NotFound: no such conversation, or no such item to answer.
            Conflict: another response is running.
            InvalidRequest: the request was answered before.
        """
        reply = await self._when_idle(
            "begin_response",
            session_id,
            response_id,
            item_id,
            deadline_at,
            keys.DEADLINE_GRACE_S,
            event_id or "",
            answers or "",
            orjson.dumps(asked or {}),
            item_id=answers,
            origin=origin,
        )
        return reply[2] or None

    async def finish_response(
        self, session_id: str, response_id: str, item: Item | None, *, status: str | None = None
    ) -> bool:
        """End the running response and keep its answer at its place.

        Args:
            session_id: Where.
            response_id: Which.
            item: The answer; None keeps nothing.
            status: The item's status, if other than its own.

        Returns:
            False if it wasn't running any more: it has been ended before, or the
            conversation is gone. Nothing was changed then.
        """
        body: str | bytes = ""
        if item is not None:
            item = replace(
                item,
                status=status or item.status,
                created_at=item.created_at or time.time(),
                response_id=response_id,
            )
            body = orjson.dumps(item.to_wire())
        item_id = item.item_id if item is not None else ""
        with redis_errors("finish_response"):
            reply = await self._scripts.run(
                "finish_response", session_id, response_id, item_id, body
            )
        if reply[0] != "ok":
            return False
        await self.index.note(reply[2], session_id)
        return True

    async def active_response(self, session_id: str) -> ActiveResponse | None:
        """The running response, if any.

        Raises:
            NotFound: no such conversation.
        """
        names = "active active_item active_after active_until active_since active_asked"
        fields = names.split()
        with redis_errors("active response"):
            reply: list[Any] = await self._redis.hmget(
                keys.of(session_id)[0], ("created_at", *fields)
            )
        exists, *values = reply
        if exists is None:
            raise no_session(session_id)
        if values[0] is None:
            return None
        active = active_of(
            {name.encode(): value for name, value in zip(fields, values, strict=True)}
        )
        if active is not None and await self._reconcile(session_id, active):
            return None
        return active

    async def rename(self, session_id: str, title: str, *, tenant: str, origin: str = "") -> None:
        """Give a conversation a title.

        Raises:
            NotFound: the tenant has no such conversation.
        """
        await self._run("rename", session_id, tenant, title, origin=origin)

    async def delete(self, session_id: str, *, tenant: str, origin: str = "") -> str | None:
        """Forget a conversation, and the logs of its answers.

        Returns:
            The response that was running, which nobody has cancelled yet.

        Raises:
            NotFound: the tenant has no such conversation.
        """
        session = await self.load(session_id, tenant=tenant)
        reply = await self._run("delete_session", session_id, tenant, origin=origin)
        made = [item.response_id for item in session.items if item.response_id is not None]
        with redis_errors("session delete"):
            await self._log.forget(made)
        await self.index.drop(tenant, [session_id])
        return reply[1] or None

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

    async def _reconcile(self, session_id: str, active: ActiveResponse) -> bool:
        """End a running response whose log has ended, whose time is over, or that nobody
        knows.

        Returns:
            Whether the conversation has changed.
        """
        now = time.time()
        over = now > active.deadline_at + keys.DEADLINE_GRACE_S
        with redis_errors("session reconcile"):
            if not over and now > active.began_at + keys.SUBMIT_GRACE_S:
                over = not await self._log.has_trace(active.response_id)
            ended = await unseen_answer(self._log, active, is_over=over)
        if ended is None:
            return False
        logger.info("response %s of %s ended unseen", active.response_id, session_id)
        return await self.finish_response(session_id, active.response_id, ended.item)

    async def _when_idle(
        self,
        script: str,
        session_id: str,
        *args: str | bytes | float,
        item_id: str | None,
        origin: str,
    ) -> list[Any]:
        """Run a script that a running response refuses.

        Raises:
            Conflict: one is running.
        """

        async def attempt() -> list[Any]:
            return await self._run(
                script, session_id, *args, item_id=item_id, origin=origin, may_be_busy=True
            )

        reply = await attempt()
        if reply[0] == "busy":
            active = (await self._reader.read(session_id)).active
            if active is None or await self._reconcile(session_id, active):
                reply = await attempt()
        if reply[0] == "busy":
            raise Conflict(
                f"The conversation already has an active response: {reply[1]}. "
                "Wait until it is done, or cancel it."
            )
        return reply

    async def _run(
        self,
        script: str,
        session_id: str,
        *args: str | bytes | float,
        item_id: str | None = None,
        after: str | None = None,
        origin: str = "",
        may_be_busy: bool = False,
        may_be_stale: bool = False,
    ) -> list[Any]:
        """Run a script; its refusals become errors."""
        with redis_errors(script):
            reply = await self._scripts.run(script, session_id, *args, origin=origin)
        outcome = reply[0]
        allowed = {"ok", "known"}
        allowed |= {"busy"} if may_be_busy else set()
        allowed |= {"stale"} if may_be_stale else set()
        if outcome not in allowed:
            refuse(reply, session_id, item_id, after)
        return reply


def _text(version: int | None) -> str:
    return "" if version is None else str(version)
