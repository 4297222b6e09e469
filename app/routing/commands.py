"""Commands into workers' inboxes, and whose a response is."""

from __future__ import annotations

import math
import time

import orjson
from redis.asyncio import Redis

from engine.contract import Command, Listen, Submit, keys

OWNER_MARGIN_S = 60


class Commands:
    """Sends commands and remembers owners.

    Args:
        redis: A pooled client.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def send(
        self, worker_id: str, command: Command, *, owned_until: float | None = None
    ) -> None:
        """Put a command into a worker's inbox; note whose response it is, if asked to.

        Args:
            worker_id: Whose inbox.
            command: Of a response, if its owner is to be noted.
            owned_until: Unix seconds; None notes nothing.
        """
        key = keys.inbox(worker_id)
        async with self._redis.pipeline(transaction=False) as pipe:
            if owned_until is not None and isinstance(command, Submit | Listen):
                request_id = (
                    command.request.request_id
                    if isinstance(command, Submit)
                    else command.request_id
                )
                owner = orjson.dumps({"w": worker_id, "d": owned_until})
                # Nobody asks whose a response was once its time is over.
                left_s = max(0, math.ceil(owned_until - time.time()))
                pipe.set(keys.owner(request_id), owner, ex=left_s + OWNER_MARGIN_S)
            pipe.xadd(
                key,
                {"c": orjson.dumps(command.to_wire())},
                maxlen=keys.INBOX_MAXLEN,
                approximate=True,
            )
            pipe.expire(key, keys.INBOX_TTL_S)
            await pipe.execute()

    async def owner(self, request_id: str) -> tuple[str, float] | None:
        body = await self._redis.get(keys.owner(request_id))
        if body is None:
            return None
        wire = orjson.loads(body)
        return wire["w"], wire["d"]
