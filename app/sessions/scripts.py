"""The Lua in `lua/`, loaded and run.

Every script is written for Redis 6.2, Valkey and Redis Cluster: all keys are declared
and share a slot, and nothing newer is called. Running one twice does what running it
once does, so a call whose answer was lost may be repeated.
"""

from __future__ import annotations

import time
from importlib import resources
from typing import Any

from redis.asyncio import Redis

from app.sessions import keys

_NAMES = (
    "add_item",
    "begin_response",
    "delete_item",
    "finish_response",
    "replace_item",
    "update_settings",
)


class Scripts:
    """The scripts of one client.

    Args:
        redis: A pooled client.
        ttl_s: A conversation's lifetime after its last use.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._ttl_s = ttl_s
        folder = resources.files(__package__) / "lua"
        common = (folder / "common.lua").read_text()
        self._scripts = {
            name: redis.register_script(common + (folder / f"{name}.lua").read_text())
            for name in _NAMES
        }

    async def run(self, name: str, session_id: str, *args: str | bytes | float) -> list[Any]:
        """Run a script on a conversation.

        Returns:
            What it returned: a word for the outcome, then details, text decoded.

        Raises:
            RedisError: Redis failed.
        """
        reply = await self._scripts[name](
            keys=keys.of(session_id), args=[self._ttl_s, time.time(), *args]
        )
        return [part.decode() if isinstance(part, bytes) else part for part in reply]
