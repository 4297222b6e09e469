"""Places of answers that have ended without anybody's giving their place back.

A gateway that dies leaves the places of its answers taken, until their deadline. Here they
are found when somebody is refused for them: an answer that was taken some time ago and
has no lease has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis

from app.limits.scripts import LimitScripts
from engine.contract import keys

# Between an answer's charge and its lease; younger ones are left alone.
LEASE_WAIT_S = 15.0
# Between two looks of a gateway at one budget, and how many answers each looks at.
LOOK_EVERY_S = 1.0
MAX_LOOKED_AT = 1000
MAX_BUDGETS = 10_000


class Orphans:
    """See the module.

    Args:
        redis: A pooled client.
        scripts: Asks it.
        lease_ms: For how long an answer's place is taken.
    """

    def __init__(self, redis: Redis, scripts: LimitScripts, lease_ms: int) -> None:
        self._redis = redis
        self._scripts = scripts
        self._lease_ms = lease_ms
        self._looked_at: dict[str, float] = {}

    async def find(self, budgets: Sequence[str]) -> list[str]:
        """Answers that hold a place in these budgets and have ended, some at a time."""
        found: set[str] = set()
        for name in budgets:
            if self._is_due(name):
                found.update(await self._scripts.ask(partial(self._ended, name)) or ())
        return sorted(found)

    async def free(self, budgets: Sequence[str], response_ids: Sequence[str]) -> None:
        """Take out what nothing but its place is left of."""
        for name in budgets:
            await self._scripts.ask(partial(self._redis.zrem, f"{name}:run", *response_ids))

    def _is_due(self, name: str) -> bool:
        now = time.monotonic()
        if now - self._looked_at.get(name, -LOOK_EVERY_S) < LOOK_EVERY_S:
            return False
        if len(self._looked_at) >= MAX_BUDGETS:
            self._looked_at.clear()
        self._looked_at[name] = now
        return True

    async def _ended(self, name: str) -> list[str]:
        # The scores are by Redis's clock.
        seconds, microseconds = await self._redis.time()
        before_ms = seconds * 1000 + microseconds / 1000 + self._lease_ms - LEASE_WAIT_S * 1000
        members: Any = await self._redis.zrangebyscore(
            f"{name}:run", "-inf", before_ms, start=0, num=MAX_LOOKED_AT
        )
        response_ids = [member.decode() for member in members]
        if not response_ids:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for response_id in response_ids:
                pipe.exists(keys.lease(response_id))
            leased = await pipe.execute()
        return [rid for rid, has_lease in zip(response_ids, leased, strict=True) if not has_lease]
