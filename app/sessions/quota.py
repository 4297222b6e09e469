"""What each owner has stored, and the most that it may be.

| key | type | holds |
|---|---|---|
| `rp:stored:{<tenant>}` | hash | a tenant's conversations and stored responses |
| `rp:stored:{<tenant>}:<digest>` | hash | those of one of its subjects |

Fields: `bytes` and `count` (conversations with items) in all, and each id with
`<bytes>:<version>:<1 if it is in the count>:<until when something reserved is written>`.
The keys of a tenant share a slot, so that one script looks at all of its bounds and takes
from all or from none. What is added is reserved before it is written. Every other change
is noted afterwards with the size of the whole conversation, the later version before the
earlier. What has lapsed, and what was reserved in vain, is found when there would be no
room without it, or when the record is shown.

An answer that is running is always kept, whatever its owner has stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis.asyncio import Redis

from app.redis_client import redis_errors
from app.sessions import keys
from engine.contract import InvalidRequest, ReparteeError

logger = logging.getLogger(__name__)

# What a conversation counts besides its texts and settings: the rest of its keys.
SESSION_BYTES = 1024
# Within so many seconds what was reserved is written.
RESERVED_S = 10
# Between two looks of this process for what has lapsed of one record.
LOOK_EVERY_S = 10.0
MAX_LOOKED_AT = 10_000
_SCAN_COUNT = 500
_NAMES = ("reserve", "note", "correct")


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """The most that may be stored; 0 for no limit.

    Attributes:
        conversations: With at least one message.
        stored_bytes: Of conversations and stored responses.
    """

    conversations: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StorageScope:
    """One record and its limits.

    Attributes:
        key: The record's.
        limits: At least one of them.
        whose: For an error: `tenant` or `subject`.
    """

    key: str
    limits: StorageLimits
    whose: str


@dataclass(frozen=True, slots=True)
class StoredSize:
    """What a conversation takes: settings and items as stored."""

    owner: str
    num_bytes: int
    num_items: int


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What of an owner's own limits is used.

    Attributes:
        limits: Those.
        conversations: With at least one message.
        stored_bytes: Of conversations and stored responses.
    """

    limits: StorageLimits
    conversations: int
    stored_bytes: int


ScopesOf = Callable[[str], Sequence[StorageScope]]


def no_scopes(owner: str) -> Sequence[StorageScope]:
    """Nobody is bounded."""
    return ()


class Reservation:
    """Room that was taken for something about to be written."""

    def __init__(self) -> None:
        self.is_kept = False

    def keep(self) -> None:
        """It was written."""
        self.is_kept = True


class StorageQuota:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis: A pooled client.
        scopes_of: The records that an owner's things count in, now, its own first.
        ttl_s: Longest lifetime of what is stored.
    """

    def __init__(self, redis: Redis, scopes_of: ScopesOf = no_scopes, ttl_s: int = 0) -> None:
        self._redis = redis
        self._scopes_of = scopes_of
        self._ttl_s = 2 * (ttl_s or keys.SESSION_TTL_S)
        folder = resources.files(__package__) / "lua" / "quota"
        common = (folder / "common.lua").read_text()
        self._scripts = {
            name: redis.register_script(common + (folder / f"{name}.lua").read_text())
            for name in _NAMES
        }
        self._looked_at: dict[str, float] = {}

    async def open(self, owner: str, session_id: str, num_bytes: int) -> None:
        """Count a conversation that is about to begin; once, however often it is said.

        A sixteenth beyond the limit is free for these, so that whoever has no room left can
        still open the page and delete something.

        Raises:
            InvalidRequest: there is no room.
        """
        await self._reserve(owner, session_id, "open", SESSION_BYTES + num_bytes)

    async def take(self, owner: str, stored_id: str, num_bytes: int) -> None:
        """Count so many bytes more.

        Raises:
            InvalidRequest: there is no room.
        """
        await self._reserve(owner, stored_id, "more", num_bytes)

    @asynccontextmanager
    async def reserved(
        self, owner: str, session_id: str, num_bytes: int, *, is_item: bool = False
    ) -> AsyncIterator[Reservation]:
        """Take room for what is about to be written; it is given back unless it was.

        Args:
            owner: Whose.
            session_id: Where.
            num_bytes: How much.
            is_item: It is an item, perhaps the conversation's first.

        Raises:
            InvalidRequest: there is no room.
        """
        await self._reserve(owner, session_id, "item" if is_item else "more", num_bytes)
        reservation = Reservation()
        try:
            yield reservation
        finally:
            if not reservation.is_kept:
                await self._give_back(owner, session_id, num_bytes, is_item)

    async def _give_back(self, owner: str, session_id: str, num_bytes: int, is_item: bool) -> None:
        scopes = self._scopes_of(owner)
        if not scopes:
            return
        try:
            with redis_errors("quota"):
                is_empty = is_item and not await self._redis.exists(keys.of(session_id)[1])
                kind = "empty" if is_empty else "back"
                await self._run_reserve(scopes, session_id, kind, -num_bytes)
        except ReparteeError as error:
            # The conversation's next change puts it right.
            logger.info("%d bytes of %s stay reserved: %s", num_bytes, session_id, error)

    async def note(self, stored_id: str, size: StoredSize, version: int) -> None:
        """Something takes so much now."""
        await self._note(
            size.owner, stored_id, SESSION_BYTES + size.num_bytes, version, size.num_items > 0
        )

    async def note_bytes(self, owner: str, stored_id: str, num_bytes: int) -> None:
        """Something that is no conversation takes so many bytes now."""
        await self._note(owner, stored_id, num_bytes, 1, False)

    async def drop(self, owner: str, stored_ids: Sequence[str]) -> None:
        """These are gone."""
        for stored_id in stored_ids:
            await self._note(owner, stored_id, -1, 0, False)

    async def _note(
        self, owner: str, stored_id: str, num_bytes: int, version: int, is_counted: bool
    ) -> None:
        scopes = self._scopes_of(owner)
        if not scopes:
            return
        with redis_errors("quota"):
            await self._scripts["note"](
                keys=[scope.key for scope in scopes],
                args=[self._ttl_s, stored_id, num_bytes, version, int(is_counted)],
            )

    async def use(self, owner: str) -> StorageUse | None:
        """What is used of an owner's own limits; None without any."""
        scopes = self._scopes_of(owner)
        if not scopes:
            return None
        await self._forget_lapsed(scopes[0].key)
        with redis_errors("quota"):
            values: Any = await self._redis.hmget(scopes[0].key, ("count", "bytes"))
        return StorageUse(scopes[0].limits, int(values[0] or 0), int(values[1] or 0))

    async def _reserve(self, owner: str, stored_id: str, kind: str, num_bytes: int) -> None:
        scopes = self._scopes_of(owner)
        if not scopes:
            return
        with redis_errors("quota"):
            refusal = await self._run_reserve(scopes, stored_id, kind, num_bytes)
            if refusal is not None and await self._forget_lapsed(scopes[refusal[1]].key):
                refusal = await self._run_reserve(scopes, stored_id, kind, num_bytes)
        if refusal is not None:
            what, place, value = refusal
            raise storage_full(scopes[place], what, value)

    async def _run_reserve(
        self, scopes: Sequence[StorageScope], stored_id: str, kind: str, num_bytes: int
    ) -> tuple[str, int, int] | None:
        """None if there was room; else what is full, in which scope, what it would come to."""
        limits = [n for s in scopes for n in (s.limits.conversations, s.limits.stored_bytes)]
        reply: Any = await self._scripts["reserve"](
            keys=[scope.key for scope in scopes],
            args=[self._ttl_s, stored_id, kind, num_bytes, RESERVED_S, *limits],
        )
        what, place, value = reply
        return None if what == b"ok" else (what.decode(), place - 1, value)

    async def _forget_lapsed(self, key: str) -> bool:
        """Put a record right; whether that was done just now."""
        now = time.monotonic()
        if now - self._looked_at.get(key, -LOOK_EVERY_S) < LOOK_EVERY_S:
            return False
        if len(self._looked_at) >= MAX_LOOKED_AT:
            self._looked_at.clear()
        self._looked_at[key] = now
        with redis_errors("quota"):
            cursor = -1
            while cursor != 0:
                reply: Any = await self._redis.hscan(key, max(cursor, 0), count=_SCAN_COUNT)
                cursor, fields = int(reply[0]), reply[1]
                await self._correct(key, fields)
        return True

    async def _correct(self, key: str, fields: dict[bytes, bytes]) -> None:
        entries = {name.decode(): value for name, value in fields.items() if b":" in value}
        if not entries:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for stored_id in entries:
                meta, order, *_ = keys.of(stored_id)
                pipe.hmget(meta, ("bytes", "version"))
                pipe.hstrlen(meta, "settings")
                pipe.llen(order)
                pipe.exists(keys.stored_response(stored_id))
            replies = await pipe.execute()
        args: list[str | bytes | int] = [self._ttl_s]
        for index, (stored_id, value) in enumerate(entries.items()):
            found = replies[4 * index : 4 * index + 4]
            (num_bytes, version), settings, num_items, is_response = found
            if num_bytes is not None:
                size = SESSION_BYTES + int(num_bytes) + settings
                new: list[str | bytes | int] = [size, int(version), int(num_items > 0)]
            elif is_response:
                continue
            else:
                new = ["", 0, 0]
            args += [stored_id, value, *new]
        if len(args) > 1:
            await self._scripts["correct"](keys=[key], args=args)


def storage_full(scope: StorageScope, what: str, value: int) -> InvalidRequest:
    """There is no room for what was to be stored.

    Args:
        scope: Where not.
        what: `conversations` or `stored_bytes`.
        value: What it would have come to.
    """
    if what == "conversations":
        bound = f"{scope.limits.conversations} conversations"
        would = f"this one would be number {value}"
    else:
        bound = f"{scope.limits.stored_bytes} stored bytes"
        would = f"with this there would be {value}"
    return InvalidRequest(
        f"This {scope.whose} may have at most {bound}, {would}. Delete old conversations first.",
        code="storage_full",
    )
