"""Reading a conversation, and letting it live on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import redis_errors
from app.sessions import keys
from app.sessions.records import ActiveResponse, Item, Session
from app.sessions.refusals import no_item, no_session

# A lifetime is renewed once this part of it is over.
_RENEW_AFTER = 0.02
# Conversations whose lifetime is renewed in one round trip.
_KEEP_AT_ONCE = 500


class SessionReader:
    """See the module.

    Args:
        redis: A pooled client.
        ttl_s: A conversation's lifetime after its last use, in seconds.
        empty_ttl_s: That of one without items.
    """

    def __init__(self, redis: Redis, ttl_s: int, empty_ttl_s: int) -> None:
        self._redis = redis
        script = resources.files(__package__) / "lua" / "read.lua"
        self._script = redis.register_script(script.read_text())
        self._ttl_s = ttl_s
        self._empty_ttl_s = empty_ttl_s

    async def read(self, session_id: str) -> Session:
        """The whole conversation as it is stored; counts as a use.

        Raises:
            NotFound: there is none.
            Unavailable: Redis failed.
        """
        meta_key, order_key, items_key, *_ = keys.of(session_id)
        with redis_errors("session load"):
            reply: Any = await self._script(keys=[meta_key, order_key, items_key])
            meta, order, bodies, left_s = _dict(reply[0]), reply[1], _dict(reply[2]), reply[3]
            if not _is_whole(meta, order, bodies):
                raise no_session(session_id)
            await self._renew([(session_id, len(order), left_s)])
        return Session(
            session_id=session_id,
            version=int(meta[b"version"]),
            tenant=meta[b"tenant"].decode(),
            settings=orjson.loads(meta[b"settings"]),
            items=tuple(Item.from_wire(orjson.loads(bodies[item_id])) for item_id in order),
            active=active_of(meta),
            created_at=float(meta[b"created_at"]),
            updated_at=float(meta[b"updated_at"]),
            title=title_of(meta.get(b"name"), meta.get(b"title")),
        )

    async def item_body(self, session_id: str, item_id: str) -> bytes:
        """One item as it is stored.

        Raises:
            NotFound: no such conversation or item.
            Unavailable: Redis failed.
        """
        meta_key, _, items_key, *_ = keys.of(session_id)
        with redis_errors("item read"):
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.exists(meta_key)
                pipe.hget(items_key, item_id)
                exists, body = await pipe.execute()
        if not exists:
            raise no_session(session_id)
        if body is None:
            raise no_item(item_id)
        return bytes(body)

    async def keep(self, session_ids: Sequence[str]) -> None:
        """Renew the lifetime of conversations in use; those that are gone stay so.

        Raises:
            Unavailable: Redis failed.
        """
        for start in range(0, len(session_ids), _KEEP_AT_ONCE):
            chosen = session_ids[start : start + _KEEP_AT_ONCE]
            with redis_errors("session keep"):
                async with self._redis.pipeline(transaction=False) as pipe:
                    for session_id in chosen:
                        meta_key, order_key, *_ = keys.of(session_id)
                        pipe.llen(order_key)
                        pipe.ttl(meta_key)
                    replies = await pipe.execute()
                lengths, left_s = replies[::2], replies[1::2]
                await self._renew(list(zip(chosen, lengths, left_s, strict=True)))

    async def _renew(self, sessions: Sequence[tuple[str, int, int]]) -> None:
        """Set lifetimes anew where some is over: (id, number of items, seconds left)."""
        due = []
        for session_id, num_items, left_s in sessions:
            ttl_s = self._ttl_s if num_items else self._empty_ttl_s
            if 0 <= left_s < ttl_s * (1 - _RENEW_AFTER):
                due.append((session_id, ttl_s))
        if not due:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for session_id, ttl_s in due:
                for name in keys.of(session_id):
                    pipe.expire(name, ttl_s)
            await pipe.execute()


def _is_whole(
    meta: Mapping[bytes, bytes], order: Sequence[bytes], bodies: Mapping[bytes, bytes]
) -> bool:
    """Whether a conversation has all its keys; see `lua/whole.lua`."""
    return bool(meta) and len(order) == len(bodies) and (bool(order) or meta[b"bytes"] == b"0")


def _dict(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A hash as scripts return it."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def active_of(meta: Mapping[bytes, bytes | None]) -> ActiveResponse | None:
    """The running response in a conversation's hash."""
    active = meta.get(b"active")
    if active is None:
        return None
    return ActiveResponse(
        response_id=active.decode(),
        item_id=(meta[b"active_item"] or b"").decode(),
        previous_item_id=(meta[b"active_after"] or b"").decode() or None,
        deadline_at=float(meta[b"active_until"] or 0),
        asked=orjson.loads(meta.get(b"active_asked") or b"{}"),
        began_at=float(meta.get(b"active_since") or 0),
    )


def title_of(name: bytes | None, title: bytes | None) -> str | None:
    """The title to show: the one that a person gave goes first."""
    shown = name or title
    return shown.decode() if shown else None
