"""A token bucket that makes a fast sender wait."""

from __future__ import annotations

import asyncio
import time
from weakref import WeakValueDictionary

# Events after which a sender lets others run, even within its rate.
YIELD_EVERY = 16


class Throttle:
    """Lets `rate` events a second through for long, and a burst of two seconds' worth.

    Args:
        rate: Events a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = 2 * rate
        self._left = self._burst
        self._filled_at = time.monotonic()
        self._count = 0

    async def wait(self) -> None:
        """Take one event's turn, after waiting for it if need be."""
        self._count += 1
        if self._count % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._rate)
        self._filled_at = now
        self._left -= 1
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)


class TenantThrottles:
    """One throttle for all sockets of a tenant, as long as there are any.

    Args:
        rate: Events a second of each tenant.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._throttles: WeakValueDictionary[str, Throttle] = WeakValueDictionary()

    def of(self, tenant: str) -> Throttle:
        """The tenant's; whoever uses it holds on to it."""
        throttle = self._throttles.get(tenant)
        if throttle is None:
            throttle = self._throttles[tenant] = Throttle(self._rate)
        return throttle
