"""A response's log: reading it, and ending it when nobody can go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from engine.contract import (
    Accepted,
    Cursor,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    ReparteeError,
    Usage,
    event_from_wire,
    keys,
)

# Events read at once: a long backlog comes in bounded parts.
READ_COUNT = 500


class ResponseLog:
    """Reads logs, and ends those of responses without a worker.

    Args:
        redis: A pooled client.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def read(self, request_id: str, after: Cursor) -> list[Event]:
        """At most READ_COUNT events after the cursor.

        Raises:
            RedisError: Redis failed.
        """
        return (await self.read_many([(request_id, after)]))[0]

    async def read_many(self, wanted: Sequence[tuple[str, Cursor]]) -> list[list[Event]]:
        """At most READ_COUNT events after each cursor, in one round trip.

        Raises:
            RedisError: Redis failed.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id, after in wanted:
                start = f"({keys.log_entry_id(*after)}"
                pipe.xrange(keys.log(request_id), start, "+", READ_COUNT)
            replies = await pipe.execute()
        return [
            [event_from_wire(orjson.loads(fields[b"e"])) for _, fields in entries]
            for entries in replies
        ]

    async def last(self, request_id: str) -> Event | None:
        """The last event; None for a log that is gone or never was.

        Raises:
            RedisError: Redis failed.
        """
        entries: Any = await self._redis.xrevrange(keys.log(request_id), count=1)
        return event_from_wire(orjson.loads(entries[0][1][b"e"])) if entries else None

    async def has_trace(self, request_id: str) -> bool:
        """Whether anything is known of a response: its events, or who has it.

        Raises:
            RedisError: Redis failed.
        """
        found: Any = await self._redis.exists(keys.log(request_id), keys.lease(request_id))
        return bool(found)

    async def forget(self, request_ids: Sequence[str]) -> None:
        """Drop the logs of responses that have ended.

        Raises:
            RedisError: Redis failed.
        """
        if not request_ids:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id in request_ids:
                pipe.unlink(keys.log(request_id))
            await pipe.execute()

    async def read_all(self, request_id: str) -> list[Event]:
        """Every event.

        Raises:
            RedisError: Redis failed.
        """
        events: list[Event] = []
        cursor = Cursor(0, 0)
        while part := await self.read(request_id, cursor):
            events += part
            cursor = Cursor(part[-1].epoch, part[-1].seq)
        return events

    async def end(
        self, request_id: str, outcome: ReparteeError | FinishReason
    ) -> Finished | Failed:
        """End the log under the next epoch, unless it has ended, and its lease with it.

        Of several gateways that try, Redis lets one through; all get the same event.

        Raises:
            RedisError: Redis failed.
        """
        log, lease = keys.log(request_id), keys.lease(request_id)
        while True:
            events = await self.read_all(request_id)
            last = events[-1] if events else None
            if isinstance(last, Finished | Failed):
                return last
            leased: Any = await self._redis.hget(lease, "e")
            # A worker that wrote nothing may yet wake up and write under its epoch.
            epoch = max(last.epoch if last else 1, int(leased or 1)) + 1
            final = _final(request_id, Cursor(epoch, last.seq + 1 if last else 0), outcome, events)
            try:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.xadd(
                        log,
                        {"e": orjson.dumps(final.to_wire())},
                        id=keys.log_entry_id(epoch, final.seq),
                    )
                    pipe.expire(log, keys.LOG_TTL_S)
                    pipe.delete(lease)
                    await pipe.execute()
            except ResponseError as refusal:
                if "equal or smaller" not in str(refusal):
                    raise
                continue
            return final


def _final(
    request_id: str,
    place: Cursor,
    outcome: ReparteeError | FinishReason,
    events: Sequence[Event],
) -> Finished | Failed:
    """A terminal event that counts what the log holds."""
    accepted = sum(event.prompt_tokens for event in events if isinstance(event, Accepted))
    num_tokens = sum(event.num_tokens for event in events if isinstance(event, Delta))
    usage = Usage(accepted, num_tokens)
    if isinstance(outcome, FinishReason):
        return Finished(request_id, *place, reason=outcome, usage=usage)
    return Failed(request_id, *place, error=outcome, usage=usage if accepted else None)
