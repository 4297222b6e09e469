"""The limits' Lua in `lua/`, and a way to ask Redis that never holds anybody up for long.

Every script is written for Redis 6.2, Valkey and Redis Cluster: all keys are declared
and share a slot, and nothing newer is called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

# Commands at once; further ones wait their turn, which is no failure of Redis.
MAX_ASKING = 16
# Longest that one may take, and how long nothing is asked after one has failed.
ASK_TIMEOUT_S = 3.0
DOWN_S = 1.0
# Attempts of what should not be lost, `2 * DOWN_S` apart.
INSIST_TRIES = 4
_NAMES = ("take", "settle", "connect", "renew")


class LimitScripts:
    """See the module.

    Args:
        redis: A pooled client.
    """

    def __init__(self, redis: Redis) -> None:
        folder = resources.files(__package__) / "lua"
        common = (folder / "common.lua").read_text()
        self._scripts = {
            name: redis.register_script(common + (folder / f"{name}.lua").read_text())
            for name in _NAMES
        }
        self._turns = asyncio.Semaphore(MAX_ASKING)
        self._ask_again_at = 0.0
        self._is_down = False

    async def run(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script; None if Redis cannot be asked."""
        return await self.ask(lambda: self._scripts[name](keys=keys, args=args))

    async def insist(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script whose result nobody waits for, more than once if need be."""
        for number in range(INSIST_TRIES):
            if number:
                await asyncio.sleep(2 * DOWN_S)
            reply = await self.run(name, keys, args)
            if reply is not None:
                return reply
        return None

    async def ask(self, asking: Callable[[], Awaitable[Any]]) -> Any:
        """Redis's reply; None if it cannot be asked."""
        async with self._turns:
            if time.monotonic() < self._ask_again_at:
                return None
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    reply = await asking()
            except (RedisError, OSError, TimeoutError) as error:
                self._ask_again_at = time.monotonic() + DOWN_S
                self._complain(error)
                return None
        self._is_down = False
        return reply

    def _complain(self, error: Exception) -> None:
        """Say once that the limits do not hold."""
        if not self._is_down:
            reason = str(error) or type(error).__name__
            logger.warning("limits are not enforced: Redis failed: %s", reason)
        self._is_down = True
