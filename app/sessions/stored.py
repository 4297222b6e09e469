"""`ResponseStore`: responses of the Responses API, to be read, continued and resumed.

| key | type | holds |
|---|---|---|
| `rp:rsp:{<rid>}` | hash | tenant, head, input and links as JSON; `end` once it has ended |
| `rp:rsp:list:{<tenant>}` | sorted set | the tenant's, by time; the oldest beyond MAX_STORED go |

A response and those that it continues are a chain. Each names all before it, so that a
chain is read in one round trip, and reading it renews the lifetime of all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import redis_errors
from app.routing.log import ResponseLog
from app.sessions import keys
from app.sessions.quota import StorageQuota
from app.sessions.unseen import ended_log
from engine.contract import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    InvalidRequest,
    NotFound,
    Unavailable,
    event_from_wire,
)

RESPONSE_TTL_S = 7 * 24 * 3600
MAX_STORED = 10_000
# Responses of one chain.
MAX_CHAIN = 500
_FIELDS = ("tenant", "head", "input", "links", "end")


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How a response ended.

    Attributes:
        event: Its terminal event.
        text: The whole answer.
        ended_at: Unix seconds.
        lengths: Of the pieces in which the text came, in characters: some readers skip
            what they have seen by counting pieces, so it is shown again as it came.
    """

    event: Finished | Failed
    text: str
    ended_at: float
    lengths: tuple[int, ...] = ()

    def events(self, response_id: str) -> list[Event]:
        """What led to it."""
        events: list[Event] = [Accepted(response_id, 1, 0, 0)]
        start = 0
        for seq, length in enumerate(self.lengths, 1):
            text = self.text[start : start + length]
            events.append(Delta(response_id, 1, seq, text, 0))
            start += length
        return [*events, self.event]

    @classmethod
    def of_events(cls, response_id: str, events: Sequence[Event], ended_at: float) -> ResponseEnd:
        """The end of a response that said this; without a last word, it was lost."""
        pieces = [event.text for event in events if isinstance(event, Delta) and event.text]
        last = events[-1] if events else None
        if not isinstance(last, Finished | Failed):
            epoch, seq = (last.epoch, last.seq + 1) if last is not None else (1, 1)
            lost = Unavailable("The answer's end was lost.", code="answer_lost")
            last = Failed(response_id, epoch, seq, lost)
        return cls(last, "".join(pieces), ended_at, tuple(len(piece) for piece in pieces))

    def to_json(self) -> bytes:
        """For the store."""
        wire = [self.event.to_wire(), self.text, self.ended_at, self.lengths]
        return orjson.dumps(wire)

    @classmethod
    def of_json(cls, data: bytes) -> ResponseEnd:
        """Inverse of `to_json`."""
        wire, text, ended_at, lengths = orjson.loads(data)
        event = event_from_wire(wire)
        if not isinstance(event, Finished | Failed):
            raise TypeError(f"{type(event).__name__} ends nothing")
        return cls(event, text, ended_at, tuple(lengths))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it is kept.

    Attributes:
        response_id: Its id, and its log's.
        tenant: Whose: `Principal.owner`.
        head: What every answer shows of it, as the edge made it.
        input: Its own turns, as the edge made them.
        chain: The id under which the engine knows the whole chain.
        before: The stored responses that it continues, first to last.
        loose: Turns before all of these, of responses that were not stored, as the edge
            made them.
        deadline_at: Unix seconds; past it, it runs no more.
        is_warm_up: It has no output by intent.
        end: None while it runs.
    """

    response_id: str
    tenant: str
    head: Mapping[str, Any]
    input: Sequence[Any]
    chain: str
    before: tuple[str, ...]
    deadline_at: float
    loose: Sequence[Any] = ()
    is_warm_up: bool = False
    end: ResponseEnd | None = None


class ResponseStore:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis: A pooled client.
        quota: What owners may store.
        ttl_s: A response's lifetime after its last use, in seconds.
    """

    def __init__(self, redis: Redis, quota: StorageQuota, *, ttl_s: int = RESPONSE_TTL_S) -> None:
        self._redis = redis
        self._quota = quota
        self._ttl_s = ttl_s
        self._log = ResponseLog(self._redis)
        script = resources.files(__package__) / "lua" / "end_stored.lua"
        self._end = self._redis.register_script(script.read_text())

    async def create(self, response: StoredResponse) -> None:
        """Keep a response that begins, or that has been made; `trim` once it is taken.

        Raises:
            InvalidRequest: its owner's quota is full.
        """
        links = (
            *(response.chain, response.before, response.loose),
            *(response.deadline_at, response.is_warm_up),
        )
        values: dict[str, str | bytes] = {
            "tenant": response.tenant,
            "head": orjson.dumps(response.head),
            "input": orjson.dumps(response.input),
            "links": orjson.dumps(links),
        }
        if response.end is not None:
            values["end"] = response.end.to_json()
        name = keys.stored_response(response.response_id)
        num_bytes = sum(len(value) for value in values.values())
        await self._quota.take(response.tenant, response.response_id, num_bytes)
        with redis_errors("response create"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(name, mapping=values)  # type: ignore[arg-type]
                pipe.expire(name, self._ttl_s)
                await pipe.execute()
            await self._list(response)

    async def _list(self, response: StoredResponse) -> None:
        name = _listed(response.tenant)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zadd(name, {response.response_id: time.time()})
            pipe.expire(name, self._ttl_s)
            await pipe.execute()

    async def trim(self, tenant: str) -> None:
        """Let a tenant's oldest go beyond MAX_STORED.

        Not part of `create`: one that is refused afterwards must not cost an older one.
        """
        name = _listed(tenant)
        with redis_errors("response list"):
            count = await self._redis.zcard(name)
            if count > MAX_STORED:
                oldest: Any = await self._redis.zpopmin(name, count - MAX_STORED)
                await self._unlink(tenant, [member.decode() for member, _ in oldest])

    async def _unlink(self, tenant: str, response_ids: Sequence[str]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for response_id in response_ids:
                pipe.unlink(keys.stored_response(response_id))
            await pipe.execute()
        await self._quota.drop(tenant, response_ids)

    async def load(self, response_id: str, tenant: str) -> StoredResponse:
        """One response, with its end if it has ended by now.

        Raises:
            NotFound: there is none, it has expired, or it's another tenant's.
        """
        (response,) = await self._read([response_id])
        if response is None or response.tenant != tenant:
            raise no_response(response_id)
        if response.end is not None:
            return response
        return replace(response, end=await self._settle(response))

    async def chain(self, response: StoredResponse) -> list[StoredResponse]:
        """All that a response continues, and itself, first to last.

        Raises:
            InvalidRequest: there are too many.
            NotFound: one is gone.
        """
        if len(response.before) >= MAX_CHAIN:
            raise InvalidRequest(
                f"At most {MAX_CHAIN} responses may follow each other; "
                "send the turns as input instead.",
                code="chain_too_long",
                param="previous_response_id",
            )
        found = await self._read(response.before)
        for response_id, each in zip(response.before, found, strict=True):
            if each is None or each.tenant != response.tenant:
                raise no_response(response_id)
        return [*(each for each in found if each is not None), response]

    async def finish(self, response_id: str, end: ResponseEnd) -> None:
        """Keep how a response ended; the first to say so is believed."""
        with redis_errors("response end"):
            reply: Any = await self._end(
                keys=[keys.stored_response(response_id)], args=[end.to_json(), self._ttl_s]
            )
        if reply[0]:
            await self._quota.note_bytes(reply[0].decode(), response_id, reply[1])

    async def delete(self, response_id: str, tenant: str) -> None:
        """Forget a response and its log.

        Raises:
            NotFound: the tenant has no such response.
        """
        with redis_errors("response delete"):
            owner: Any = await self._redis.hget(keys.stored_response(response_id), "tenant")
            if owner is None or owner.decode() != tenant:
                raise no_response(response_id)
            await self._unlink(tenant, [response_id])
            await self._redis.zrem(_listed(tenant), response_id)

    async def forget_log(self, response_id: str) -> None:
        """Drop the log of a response that has ended."""
        with redis_errors("response delete"):
            await self._log.forget([response_id])

    async def _read(self, response_ids: Sequence[str]) -> list[StoredResponse | None]:
        with redis_errors("response read"):
            async with self._redis.pipeline(transaction=False) as pipe:
                for response_id in response_ids:
                    name = keys.stored_response(response_id)
                    pipe.hmget(name, _FIELDS)
                    pipe.expire(name, self._ttl_s)
                replies = await pipe.execute()
        return [
            _of_fields(rid, values) for rid, values in zip(response_ids, replies[::2], strict=True)
        ]

    async def _settle(self, response: StoredResponse) -> ResponseEnd | None:
        """The end of a response that nobody has written, if its log or the time says so."""
        now = time.time()
        over = now > response.deadline_at + keys.DEADLINE_GRACE_S
        with redis_errors("response settle"):
            events = await ended_log(self._log, response.response_id, is_over=over)
        if events is None:
            return None
        end = ResponseEnd.of_events(response.response_id, events, now)
        await self.finish(response.response_id, end)
        return end


def no_response(response_id: str) -> NotFound:
    """There is no such response, or not for this tenant."""
    return NotFound(
        f"Response with id {response_id!r:.140} not found.",
        code="response_not_found",
        param="response_id",
    )


def _of_fields(response_id: str, values: Sequence[bytes | None]) -> StoredResponse | None:
    tenant, head, own_input, links, end = values
    if tenant is None or head is None or own_input is None or links is None:
        return None
    chain, before, loose, deadline_at, is_warm_up = orjson.loads(links)
    return StoredResponse(
        response_id=response_id,
        tenant=tenant.decode(),
        head=orjson.loads(head),
        input=orjson.loads(own_input),
        chain=chain,
        before=tuple(before),
        loose=tuple(loose),
        deadline_at=deadline_at,
        is_warm_up=is_warm_up,
        end=None if end is None else ResponseEnd.of_json(end),
    )


def _listed(tenant: str) -> str:
    return f"rp:rsp:list:{{{tenant}}}"
