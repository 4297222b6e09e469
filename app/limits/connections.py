"""Places for open sockets in their tenants' budgets, kept by their gateway's word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from redis.asyncio import Redis

from app.auth.principal import Principal
from app.limits.charge import BUSY_RETRY_MS, RateLimited
from app.limits.policy import LimitPolicy
from app.limits.scripts import LimitScripts
from app.limits.state import Standing
from app.protocol.ids import new_id

CONNECTION_LEASE_MS = 60_000
RENEW_S = 15.0
RENEWED_AT_ONCE = 500


class ConnectionPlaces:
    """See the module.

    Args:
        redis: A pooled client.
        scripts: Its scripts.
        policy: The limits as they stand now.
    """

    def __init__(
        self, redis: Redis, scripts: LimitScripts, policy: Callable[[], LimitPolicy]
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._policy = policy
        self._open: dict[str, set[str]] = {}

    @asynccontextmanager
    async def hold(self, principal: Principal) -> AsyncIterator[None]:
        """`take`, and give back at the end of the block."""
        leave = await self.take(principal)
        try:
            yield
        finally:
            await leave()

    async def take(self, principal: Principal) -> Callable[[], Awaitable[None]]:
        """A place for one socket.

        Returns:
            Gives it back; to be called once.

        Raises:
            RateLimited: the tenant has as many as it may.
        """
        policy = self._policy().budgets(principal)
        budgets = [budget for budget in policy if budget.allowance.connections]
        if not budgets:
            return _give_back_nothing
        connection_id = new_id("con_")
        names = [f"{budget.name}:con" for budget in budgets]
        limits = [budget.allowance.connections or 0 for budget in budgets]
        reply = await self._scripts.run(
            "connect", names, [connection_id, CONNECTION_LEASE_MS, *limits]
        )
        if reply:
            raise RateLimited(
                f"At most {limits[reply - 1]} sockets may be open at once.",
                BUSY_RETRY_MS,
                Standing(),
            )
        for name in names:
            self._open.setdefault(name, set()).add(connection_id)
        return partial(self._leave, names, connection_id)

    async def renew_forever(self) -> None:
        """Keep the places of open sockets."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self.renew()

    async def renew(self) -> None:
        """Keep the places of open sockets once."""
        for name, open_ids in list(self._open.items()):
            ids = list(open_ids)
            for start in range(0, len(ids), RENEWED_AT_ONCE):
                part = ids[start : start + RENEWED_AT_ONCE]
                await self._scripts.run("renew", [name], [CONNECTION_LEASE_MS, *part])

    async def _leave(self, names: list[str], connection_id: str) -> None:
        for name in names:
            open_ids = self._open[name]
            open_ids.discard(connection_id)
            if not open_ids:
                del self._open[name]
        for name in names:
            await self._scripts.ask(partial(self._redis.zrem, name, connection_id))


async def _give_back_nothing() -> None:
    """No budget counts this socket."""
