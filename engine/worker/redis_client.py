"""One pipelined Redis connection that the worker controls itself.

redis-py's client reconnects and retries behind the caller's back. The worker must
know of every lost connection, since what was in flight may or may not have been
applied and Redis may have come back without its data. So it holds connections,
not a client: a lost one is an exception, and the next call connects again.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

CONNECT_TIMEOUT_S = 2.0

# What a server says while it can't serve: a passing state, as a lost connection is.
_PASSING_ERRORS = (ClusterDownError, OutOfMemoryError, ReadOnlyError)
# Older servers put a script's own error behind words of theirs.
_PASSING = re.compile(r"^(MISCONF|NOREPLICAS|BUSY)\b|-(MISCONF|NOREPLICAS|OOM|READONLY)\b")

Value = bytes | str | int


class RedisDownError(Exception):
    """Redis can't be reached or can't serve right now; the command may have been applied."""


def pack(command: Sequence[Value]) -> bytes:
    """One command in the Redis protocol, as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(command)]
    for value in command:
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, int):
            value = b"%d" % value
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


class RedisLine:
    """A single connection that sends many commands in one write.

    Not for concurrent use: each owner has its own line.

    Args:
        url: `redis://`, `rediss://` or `unix://`, credentials and database included.
        name: Shown by CLIENT LIST.
    """

    def __init__(self, url: str, name: str) -> None:
        self._connection: AbstractConnection = ConnectionPool.from_url(
            url,
            protocol=2,
            client_name=name,
            driver_info=None,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        ).make_connection()

    async def execute(
        self, commands: Sequence[Sequence[Value]], timeout_s: float = 5.0
    ) -> list[Any]:
        """Send `commands` in one write and read every reply.

        Args:
            commands: At least one.
            timeout_s: For all of it, connecting included.

        Returns:
            One reply per command; a refused command's reply is its `ResponseError`.

        Raises:
            RedisDownError: the connection failed, timed out, or the server can't serve.
        """
        connection = self._connection
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send_packed_command(
                    b"".join(map(pack, commands)), check_health=False
                )
                replies = [await self._read(connection) for _ in commands]
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            raise RedisDownError(f"Redis is not reachable: {str(error) or 'timed out'}") from error
        except BaseException:
            # Replies not read would answer the next call's commands.
            await connection.disconnect(nowait=True)
            raise
        for reply in replies:
            if isinstance(reply, _PASSING_ERRORS) or (
                isinstance(reply, ResponseError) and _PASSING.search(str(reply))
            ):
                # The name may lead to another server by now.
                await connection.disconnect(nowait=True)
                raise RedisDownError(f"Redis can't serve: {reply}")
        return replies

    @staticmethod
    async def _read(connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response(
                timeout=math.inf, disconnect_on_error=False, disable_decoding=True
            )
        except ResponseError as error:
            return error

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.disconnect(nowait=True)
