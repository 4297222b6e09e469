"""Budgets in Redis: each request is charged to all that it falls under, or to none.

| key | type | holds |
|---|---|---|
| `rp:limit:{<tenant>}:<budget>:req` | string | when the minute's requests are all there again |
| `rp:limit:{<tenant>}:<budget>:tok` | string | the same for tokens |
| `rp:limit:{<tenant>}:<budget>:run` | sorted set | responses under way, by the end of their lease |
| `rp:limit:{<tenant>}:<budget>:con` | sorted set | open sockets, likewise |
| `rp:charge:{<rid>}` | string | a response's `Charge` as JSON, as long as its lease |

Tokens are charged as foreseen and put right at the answer's end. A response's lease ends
with its deadline, a socket's some seconds after its gateway's last word, so a gateway
that dies leaves nothing behind for long. Whoever else follows a response to its end settles
its charge, if its own gateway does not; and so does whoever would be refused for an
answer that has ended (`app/limits/orphans.py`).

While Redis cannot be asked, these limits let everybody through: without Redis no answer
can begin anyway, and a socket that is open should stay so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import orjson
from redis.asyncio import Redis

from app.auth.principal import Principal
from app.limits.charge import BUSY_RETRY_MS, Charge, RateLimited, charge_key
from app.limits.connections import ConnectionPlaces
from app.limits.orphans import Orphans
from app.limits.policy import Budget, LimitPolicy
from app.limits.scripts import LimitScripts
from app.limits.state import RateLimit, Standing
from app.redis_client import make_client

# Leases outlive the response's deadline by this, as its terminal event may be late.
LEASE_GRACE_S = 10.0
CLOSE_TIMEOUT_S = 1.0
MAX_CLOSED = 10_000
# Whoever answers the request of this context learns from it where the caller stands.
standing: ContextVar[list[Standing] | None] = ContextVar("standing", default=None)


class Limiter:
    """See the module.

    Args:
        redis_url: Where.
        policy: The limits as they stand now.
        response_lease_s: Longest that a response runs.
        redis: A pooled client to share; made (and closed) here by default.

    Attributes:
        connections: Places for sockets.
    """

    def __init__(
        self,
        redis_url: str,
        policy: Callable[[], LimitPolicy],
        *,
        response_lease_s: float,
        redis: Redis | None = None,
    ) -> None:
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, "repartee-limits")
        self._policy = policy
        self._lease_ms = int((response_lease_s + LEASE_GRACE_S) * 1000)
        self._scripts = LimitScripts(self._redis)
        self._orphans = Orphans(self._redis, self._scripts, self._lease_ms)
        self.connections = ConnectionPlaces(self._redis, self._scripts, policy)
        # Until when requests of a budget are refused, as far as known, and under which policy.
        self._closed: dict[str, tuple[float, RateLimited]] = {}
        self._closed_by = policy()
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let what is under way end, and close the client, if it was made here."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._owns_redis:
            await self._redis.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check(self, principal: Principal) -> None:
        """Refuse what would be refused, without asking Redis, as far as that is known.

        Raises:
            RateLimited: the requests are used up, and not there again yet.
        """
        now = time.monotonic()
        policy = self._policy()
        if policy is not self._closed_by:
            self._closed.clear()
            self._closed_by = policy
        for budget in policy.budgets(principal):
            closed = self._closed.get(budget.name)
            if closed is not None and closed[0] > now:
                until, error = closed
                raise RateLimited(
                    error.message, max(1, math.ceil((until - now) * 1000)), error.standing
                )

    async def take(self, principal: Principal, response_id: str, tokens: int) -> Charge:
        """Charge a response.

        Args:
            principal: Whose.
            response_id: Which; repeating the call for the same one charges nothing.
            tokens: Of prompt and answer together, as foreseen.

        Raises:
            RateLimited: for any of its budgets; nothing was charged then.
        """
        budgets = self._policy().budgets(principal)
        if not budgets:
            return Charge(response_id, tokens, (), Standing())
        charge = Charge(response_id, tokens, budgets, Standing())
        try:
            reply = await self._ask(budgets, response_id, tokens)
        except asyncio.CancelledError:
            # It may have been charged all the same.
            self._spawn(self.settle(charge, 0))
            raise
        if reply is None:
            return charge
        charge = replace(charge, standing=_standing(budgets, reply[2:]))
        self._note(charge.standing)
        self._refuse(budgets, reply, charge.standing)
        if response_id:
            self._spawn(self._publish(charge))
        return charge

    async def _ask(self, budgets: tuple[Budget, ...], response_id: str, tokens: int) -> Any:
        """The script's reply; None if Redis cannot be asked."""
        keys, args = self._take_args(budgets, response_id, tokens)
        reply = await self._scripts.run("take", keys, args)
        if reply is None or reply[0] != b"responses":
            return reply
        names = [budget.name for budget in budgets]
        ended = await self._orphans.find(names)
        if not ended:
            return reply
        for each in ended:
            await self.settle_for_another(each, None)
        await self._orphans.free(names, ended)
        return await self._scripts.run("take", keys, args)

    async def count(self, principal: Principal) -> Standing:
        """Charge a request that has no answer.

        Raises:
            RateLimited: there are none left.
        """
        return (await self.take(principal, "", 0)).standing

    async def settle(self, charge: Charge, used_tokens: int | None) -> None:
        """A response has ended.

        Args:
            charge: What it was charged.
            used_tokens: What it came to; None if that is not known.
        """
        if not charge.budgets or not charge.response_id:
            return
        used = charge.tokens if used_tokens is None else used_tokens
        keys = [f"{b.name}:{kind}" for b in charge.budgets for kind in ("tok", "run")]
        limits = [b.allowance.tokens_per_min or 0 for b in charge.budgets]
        args = [charge.response_id, charge.tokens, used, *limits]
        await self._scripts.insist("settle", keys, args)
        await self._scripts.ask(lambda: self._redis.unlink(charge_key(charge.response_id)))

    async def settle_for_another(self, response_id: str, used_tokens: int | None) -> None:
        """A response has ended that another gateway charged."""
        data = await self._scripts.ask(lambda: self._redis.get(charge_key(response_id)))
        if data is not None:
            await self.settle(Charge.from_wire(orjson.loads(data)), used_tokens)

    async def _publish(self, charge: Charge) -> None:
        """Let other gateways know what was charged."""
        key, wire = charge_key(charge.response_id), orjson.dumps(charge.to_wire())
        await self._scripts.ask(lambda: self._redis.set(key, wire, px=self._lease_ms))

    def _take_args(
        self, budgets: tuple[Budget, ...], response_id: str, tokens: int
    ) -> tuple[list[str], list[Any]]:
        keys = [f"{budget.name}:{kind}" for budget in budgets for kind in ("req", "tok", "run")]
        limits = []
        for budget in budgets:
            allowance = budget.allowance
            limits += [allowance.requests_per_min, allowance.tokens_per_min]
            limits.append(allowance.concurrent_responses)
        return keys, [response_id, self._lease_ms, tokens, *(limit or 0 for limit in limits)]

    def _refuse(self, budgets: tuple[Budget, ...], reply: list[Any], where: Standing) -> None:
        """Raise what the script's reply says."""
        what, retry_ms = reply[0].decode(), max(1, reply[1])
        if not what:
            return
        if what == "responses":
            most = min(
                budget.allowance.concurrent_responses
                for budget in budgets
                if budget.allowance.concurrent_responses
            )
            raise RateLimited(f"At most {most} answers may run at once.", BUSY_RETRY_MS, where)
        limit = next(each.limit for each in where.limits if each.name == what)
        error = RateLimited(
            f"Rate limit reached: {limit} {what} a minute. Try again in {retry_ms} ms.",
            retry_ms,
            where,
        )
        if what == "requests":
            self._remember(budgets, error)
        raise error

    def _remember(self, budgets: tuple[Budget, ...], error: RateLimited) -> None:
        """Requests are never given back, so until then every answer is known."""
        # With two budgets it is not known whose requests they were.
        if len(budgets) > 1:
            return
        if len(self._closed) >= MAX_CLOSED:
            self._closed.clear()
        until = time.monotonic() + (error.retry_after_ms or 0) / 1000
        self._closed[budgets[0].name] = (until, error)

    def _note(self, where: Standing) -> None:
        noted = standing.get()
        if noted is not None:
            noted[:] = [where]


def _standing(budgets: tuple[Budget, ...], numbers: list[int]) -> Standing:
    """The script's numbers by name."""
    limits = []
    for index, budget in enumerate(budgets):
        requests, tokens = budget.allowance.requests_per_min, budget.allowance.tokens_per_min
        for offset, (name, limit) in enumerate((("requests", requests), ("tokens", tokens))):
            if limit:
                at = 4 * index + 2 * offset
                limits.append(RateLimit(name, limit, numbers[at], numbers[at + 1]))
    return Standing.of(limits)
