"""A response's log: reading it, and ending it when its worker has died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from engine.contract import (
    Cursor,
    Event,
    Failed,
    Finished,
    ReparteeError,
    event_from_wire,
    keys,
)

# Events read at once: a long backlog comes in bounded parts.
READ_COUNT = 500


class ResponseLog:
    """Reads and, for dead workers, ends logs.

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

    async def end(self, request_id: str, error: ReparteeError) -> Finished | Failed:
        """End the log with `error` under the next epoch, unless it has ended.

        Of several gateways that try, Redis lets one through; all get the same event.

        Raises:
            RedisError: Redis failed.
        """
        while True:
            last = await self.last(request_id)
            if isinstance(last, Finished | Failed):
                return last
            # A worker that wrote nothing may yet wake up and write under epoch 1.
            epoch, seq = (last.epoch + 1, last.seq + 1) if last else (2, 0)
            failed = Failed(request_id, epoch, seq, error)
            try:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.xadd(
                        keys.log(request_id),
                        {"e": orjson.dumps(failed.to_wire())},
                        id=keys.log_entry_id(epoch, seq),
                    )
                    pipe.expire(keys.log(request_id), keys.LOG_TTL_S)
                    await pipe.execute()
            except ResponseError as refusal:
                if "equal or smaller" not in str(refusal):
                    raise
                continue
            return failed
