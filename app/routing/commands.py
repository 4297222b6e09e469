"""Commands into workers' inboxes."""

from __future__ import annotations

import math
import time

import orjson
from redis.asyncio import Redis

from app.routing.leases import record
from engine.contract import Command, GenerateRequest, Submit, keys, lease


class Commands:
    """Sends commands. Every method raises RedisError if Redis fails.

    Args:
        redis: A pooled client.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def send(self, worker_id: str, command: Command) -> None:
        """Put a command into a worker's inbox."""
        key = keys.inbox(worker_id)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xadd(
                key,
                {"c": orjson.dumps(command.to_wire())},
                maxlen=keys.INBOX_MAXLEN,
                approximate=True,
            )
            pipe.expire(key, keys.INBOX_TTL_S)
            await pipe.execute()

    async def submit(self, worker_id: str, request: GenerateRequest) -> None:
        """Give a worker a new request: the lease, the record, the command. May be repeated.

        Raises:
            TypeError: a text isn't valid Unicode.
        """
        request_id = request.request_id
        body = orjson.dumps(request.to_wire())
        command = orjson.dumps(Submit(request).to_wire())
        left_s = max(0, math.ceil(request.deadline_at - time.time())) + keys.LEASE_MARGIN_S
        key = keys.inbox(worker_id)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.eval(
                *(lease.KEEP, 1, keys.lease(request_id)),
                *(worker_id, str(request.epoch), str(request.deadline_at), body, str(left_s)),
            )
            record(pipe, worker_id, request_id)
            pipe.xadd(key, {"c": command}, maxlen=keys.INBOX_MAXLEN, approximate=True)
            pipe.expire(key, keys.INBOX_TTL_S)
            await pipe.execute()
