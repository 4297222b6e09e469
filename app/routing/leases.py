"""Leases as a gateway sees them: who has a response, and giving it to another worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis.asyncio import Redis

from engine.contract import GenerateRequest, Resume, keys, lease


@dataclass(frozen=True, slots=True)
class Lease:
    """One response's lease.

    Attributes:
        worker_id: Who has it; `keys.NOBODY` while none has.
        request: What was asked for.
        is_cancelled: Nobody wants it any more.
    """

    worker_id: str
    request: GenerateRequest
    is_cancelled: bool


class Leases:
    """Reads leases and moves them; see `engine.contract.lease`. Every method raises
    RedisError if Redis fails.

    Args:
        redis: A pooled client.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._take_over = redis.register_script(lease.TAKE_OVER)
        self._cancel = redis.register_script(lease.CANCEL)

    async def owner(self, request_id: str) -> tuple[str, float] | None:
        """The worker that has a response, and its deadline in Unix seconds."""
        fields: list[Any] = await self._redis.hmget(keys.lease(request_id), ["w", "d"])
        worker_id, deadline_at = fields
        return None if worker_id is None else (worker_id.decode(), float(deadline_at))

    async def read(self, request_id: str) -> Lease | None:
        """The lease; None for a response that has ended or never was."""
        fields: list[Any] = await self._redis.hmget(keys.lease(request_id), ["w", "r", "c"])
        worker_id, request, cancelled = fields
        if worker_id is None or request is None:
            return None
        wire = orjson.loads(request)
        return Lease(worker_id.decode(), GenerateRequest.from_wire(wire), cancelled is not None)

    async def owners(self) -> list[str]:
        """Workers that were given responses lately."""
        now = time.time()
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(keys.OWNERS, "-inf", now - keys.OWNED_TTL_S)
            pipe.zrange(keys.OWNERS, 0, -1)
            _, members = await pipe.execute()
        return [member.decode() for member in members]

    async def owned(self, worker_ids: Sequence[str]) -> list[list[str]]:
        """The responses on record as each worker's, those that have ended since among them."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for worker_id in worker_ids:
                pipe.smembers(keys.owned(worker_id))
            replies = await pipe.execute() if worker_ids else []
        return [sorted(member.decode() for member in reply) for reply in replies]

    async def disown(self, request_id: str, worker_id: str) -> None:
        """Take a response off a worker's record."""
        await self._redis.srem(keys.owned(worker_id), request_id)

    async def cancel(self, request_id: str) -> str | None:
        """Note that a response is not wanted any more.

        Returns:
            The worker that has it; None if it has ended or never was.
        """
        worker_id = await self._cancel(keys=[keys.lease(request_id)])
        return None if worker_id is None else worker_id.decode()

    async def take_over(self, request_id: str, from_worker: str, to_worker: str) -> tuple[str, str]:
        """Give a response to another worker; of several gateways that try, one does it.

        Returns:
            The script's outcome and the worker that has the response then.
        """
        died = int(from_worker != keys.NOBODY)
        outcome, worker_id = await self._take_over(
            keys=[keys.lease(request_id), keys.log(request_id)],
            args=[
                *(from_worker, to_worker, died, request_id, lease.MAX_DEATHS, keys.LOG_TTL_S),
                lease.MAX_ALL_DEATHS,
            ],
        )
        return outcome.decode(), worker_id.decode()

    async def tell(self, request_id: str, from_worker: str, to_worker: str) -> None:
        """Put a response that was taken over on its worker's record, and tell the worker.

        The old record goes last, so that whoever is cut off here is followed by another.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            record(pipe, to_worker, request_id)
            pipe.xadd(
                keys.inbox(to_worker),
                {"c": orjson.dumps(Resume(request_id).to_wire())},
                maxlen=keys.INBOX_MAXLEN,
                approximate=True,
            )
            pipe.expire(keys.inbox(to_worker), keys.INBOX_TTL_S)
            pipe.srem(keys.owned(from_worker), request_id)
            await pipe.execute()


def record(pipe: Any, worker_id: str, request_id: str) -> None:
    """Put a response on a worker's record, as a part of a pipeline."""
    pipe.zadd(keys.OWNERS, {worker_id: time.time()})
    pipe.expire(keys.OWNERS, keys.OWNED_TTL_S)
    pipe.sadd(keys.owned(worker_id), request_id)
    pipe.expire(keys.owned(worker_id), keys.OWNED_TTL_S)
