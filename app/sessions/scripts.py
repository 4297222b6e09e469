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
    "delete_session",
    "finish_response",
    "read_turns",
    "rename",
    "replace_item",
    "truncate_after",
    "update_settings",
)


class Scripts:
    """The scripts of one client.

    Args:
        redis: A pooled client.
        ttl_s: A conversation's lifetime after its last use.
        empty_ttl_s: That of one without items.
    """

    def __init__(self, redis: Redis, ttl_s: int, empty_ttl_s: int) -> None:
        self._lifetimes_s = (ttl_s, empty_ttl_s)
        folder = resources.files(__package__) / "lua"
        common, whole = ((folder / name).read_text() for name in ("common.lua", "whole.lua"))
        self._scripts = {}
        for name in _NAMES:
            before = common if name == "delete_session" else common + whole
            script = before + (folder / f"{name}.lua").read_text()
            self._scripts[name] = redis.register_script(script)

    async def run(
        self, name: str, session_id: str, *args: str | bytes | float, origin: str = ""
    ) -> list[Any]:
        """Run a script on a conversation.

        Args:
            name: Of `lua/`.
            session_id: Which conversation.
            args: The script's own.
            origin: Who changes it, as listeners are told.

        Returns:
            What it returned: a word for the outcome, then details, text decoded.

        Raises:
            RedisError: Redis failed.
        """
        reply = await self._scripts[name](
            keys=keys.of(session_id), args=[*self._lifetimes_s, time.time(), origin, *args]
        )
        return [part.decode() if isinstance(part, bytes) else part for part in reply]
