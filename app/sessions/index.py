"""Each tenant's list of conversations, newest first, with a search.

A list is a sorted set of session ids, scored by the time of the last turn. What it shows
is read from the conversations themselves; an entry whose conversation has lapsed is
taken out by whoever meets it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import redis_errors
from app.sessions import keys
from app.sessions.reader import title_of
from app.sessions.records import Item, Match, SessionSummary
from engine.contract import InvalidRequest

# Entries looked at in one call, and bytes of items read in it: a longer search goes on
# from where this one stopped.
MAX_LOOKED_AT = 1000
MAX_SEARCHED_BYTES = 4 * 1024 * 1024
_BATCH = 50
_EXCERPT_CHARS = 40
_META = ("tenant", "name", "title", "settings", "created_at", "updated_at", "bytes", "active")
_PLACE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)~([!-~]{1,128})")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a list: after this entry."""

    score: float
    session_id: str

    def to_text(self) -> str:
        """As a client may give it back."""
        return f"{self.score!r}~{self.session_id}"

    @classmethod
    def of_text(cls, text: str, param: str) -> Place:
        """Inverse of `to_text`.

        Raises:
            InvalidRequest: it is none.
        """
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"{param} must be the next_after of an earlier page, got {text[:40]!r}.",
                param=param,
            )
        return cls(float(match[1]), match[2])


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list; `next` is where to go on, None at the list's end."""

    sessions: tuple[SessionSummary, ...]
    next: Place | None


class SessionIndex:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis: A pooled client.
        ttl_s: A conversation's lifetime.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s

    async def note(self, tenant: str, session_id: str) -> None:
        """A conversation had a turn: it is the list's first now."""
        name = keys.listed(tenant)
        with redis_errors("session list"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.zadd(name, {session_id: round(time.time(), 6)})
                pipe.zremrangebyrank(name, 0, -keys.MAX_LISTED - 1)
                # An open socket may keep a conversation for longer than its lifetime.
                pipe.expire(name, 2 * self._ttl_s)
                await pipe.execute()

    async def drop(self, tenant: str, session_ids: Sequence[str]) -> None:
        """Take entries out."""
        if session_ids:
            with redis_errors("session list"):
                await self._redis.zrem(keys.listed(tenant), *session_ids)

    async def page(
        self, tenant: str, *, limit: int, after: Place | None = None, query: str = ""
    ) -> Page:
        """Conversations in the order of their last turns, newest first.

        Args:
            tenant: Whose.
            limit: At most so many, at least one.
            after: Go on after this place.
            query: Words that the title or an item's text must hold, in any case; a
                search that has read MAX_SEARCHED_BYTES stops, and says where to go on.
        """
        search = _Search(query)
        found: list[SessionSummary] = []
        looked_at = 0
        while looked_at < MAX_LOOKED_AT:
            entries = await self._entries(tenant, after, _BATCH)
            known = await self._summaries(tenant, [place.session_id for place in entries])
            seen, matches = await self._matching(entries, known, search, limit - len(found))
            for place in entries[:seen]:
                if place.session_id in matches:
                    found.append(matches[place.session_id])
                after = place
                if len(found) == limit:
                    return Page(tuple(found), after if await self._goes_on(tenant, after) else None)
            if seen < len(entries):
                return Page(tuple(found), after)
            if len(entries) < _BATCH:
                return Page(tuple(found), None)
            looked_at += len(entries)
        return Page(tuple(found), after)

    async def _goes_on(self, tenant: str, after: Place) -> bool:
        return bool(await self._entries(tenant, after, 1))

    async def _entries(self, tenant: str, after: Place | None, limit: int) -> list[Place]:
        name = keys.listed(tenant)
        highest: float | str = "+inf" if after is None else after.score
        start = 0
        entries: list[Place] = []
        with redis_errors("session list"):
            while len(entries) < limit:
                reply: Any = await self._redis.zrevrangebyscore(
                    name, highest, "-inf", start=start, num=limit, withscores=True
                )
                places = [Place(float(score), member.decode()) for member, score in reply]
                entries += [each for each in places if after is None or _is_after(each, after)]
                if len(places) < limit:
                    break
                start += limit
        return entries[:limit]

    async def _summaries(
        self, tenant: str, session_ids: Sequence[str]
    ) -> dict[str, tuple[SessionSummary, int]]:
        """What there is of these, with the bytes of their items; the lapsed are dropped."""
        if not session_ids:
            return {}
        with redis_errors("session list"):
            async with self._redis.pipeline(transaction=False) as pipe:
                for session_id in session_ids:
                    meta_key, order_key, *_ = keys.of(session_id)
                    pipe.hmget(meta_key, _META)
                    pipe.llen(order_key)
                replies = await pipe.execute()
        found: dict[str, tuple[SessionSummary, int]] = {}
        for session_id, values, num_items in zip(
            session_ids, replies[::2], replies[1::2], strict=True
        ):
            owner, name, title, settings, created_at, updated_at, num_bytes, active = values
            if owner is None or owner.decode() != tenant:
                continue
            summary = SessionSummary(
                session_id=session_id,
                title=title_of(name, title),
                settings=orjson.loads(settings),
                num_items=num_items,
                is_running=active is not None,
                created_at=float(created_at),
                updated_at=float(updated_at),
            )
            found[session_id] = summary, int(num_bytes)
        await self.drop(tenant, [each for each in session_ids if each not in found])
        return found

    async def _matching(
        self,
        entries: Sequence[Place],
        known: Mapping[str, tuple[SessionSummary, int]],
        search: _Search,
        limit: int,
    ) -> tuple[int, dict[str, SessionSummary]]:
        """Those of some entries that a search finds, read in one round trip.

        Returns:
            How many of the entries were looked at, and what was found among them, by id.
        """
        found: dict[str, SessionSummary] = {}
        to_read: list[SessionSummary] = []
        seen = 0
        for place in entries:
            summary, num_bytes = known.get(place.session_id, (None, 0))
            if summary is not None and search.is_in(summary.title or ""):
                found[place.session_id] = summary
            elif summary is not None:
                if not search.may_read(num_bytes):
                    break
                search.read_bytes += num_bytes
                to_read.append(summary)
            seen += 1
            if len(found) == limit:
                break
        if not to_read:
            return seen, found
        bodies = await self._bodies([summary.session_id for summary in to_read])
        # Folding megabytes of text must not hold up everybody's answers.
        matches = await asyncio.to_thread(lambda: [search.find(each) for each in bodies])
        for summary, match in zip(to_read, matches, strict=True):
            if match is not None:
                found[summary.session_id] = replace(summary, match=match)
        return seen, found

    async def _bodies(self, session_ids: Sequence[str]) -> list[list[bytes]]:
        """Each conversation's items as they are stored, in order."""
        with redis_errors("session search"):
            async with self._redis.pipeline(transaction=False) as pipe:
                for session_id in session_ids:
                    _, order_key, items_key, *_ = keys.of(session_id)
                    pipe.lrange(order_key, 0, -1)
                    pipe.hgetall(items_key)
                replies = await pipe.execute()
        return [
            [bodies[item_id] for item_id in order if item_id in bodies]
            for order, bodies in zip(replies[::2], replies[1::2], strict=True)
        ]


class _Search:
    """One call's words, and what it has read for them."""

    def __init__(self, query: str) -> None:
        self._words = query.casefold()
        self.read_bytes = 0

    def may_read(self, num_bytes: int) -> bool:
        """Whether so many bytes more are within bounds; the first are, always."""
        is_first = self.read_bytes == 0
        return not self._words or is_first or self.read_bytes + num_bytes <= MAX_SEARCHED_BYTES

    def is_in(self, text: str) -> bool:
        """Whether a text holds the words."""
        return self._words in text.casefold()

    def find(self, bodies: Sequence[bytes]) -> Match | None:
        """The first of these items that holds the words."""
        for body in bodies:
            item = Item.from_wire(orjson.loads(body))
            at = item.text.casefold().find(self._words)
            if at >= 0:
                # Folding may lengthen a text a little, so that the place is about right.
                start = max(0, min(at, len(item.text)) - _EXCERPT_CHARS)
                end = at + len(self._words) + _EXCERPT_CHARS
                return Match(item.item_id, " ".join(item.text[start:end].split()))
        return None


def _is_after(place: Place, other: Place) -> bool:
    return (place.score, place.session_id) < (other.score, other.session_id)
