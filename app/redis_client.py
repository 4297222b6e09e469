"""How the gateway's Redis clients are made, and how their failures are told.

Two kinds: a pool for short commands, bounded in size and in waiting, and a single
connection for a blocking reader, bare or with redis-py's client around it. redis-py's
defaults don't fit either: its socket timeout of 5 s breaks longer blocking reads, its
pool raises at once when full, and its blocking pool may lose a wake-up when a caller is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import Histogram
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from engine.contract import Unavailable

logger = logging.getLogger(__name__)

# Connections of one pool, and how long a command may wait for a free one.
POOL_SIZE = 16
POOL_WAIT_S = 3.0

CONNECT_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 3.0

# A command whose connection broke is sent once more: what we send is idempotent.
RETRIES = 1
RETRY_WAIT_S = 0.05

RETRY_AFTER_MS = 1000

# Of this process, whichever client; a gateway's metrics show it. Whoever blocks isn't in it.
round_trips = Histogram(
    "repartee_redis_seconds",
    "A command or pipeline in Redis, from its connection to its answer, retries included.",
    buckets=(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0),
    registry=None,
)


class _FairPool(ConnectionPool):
    """A bounded pool whose callers wait in order, and not for ever.

    Args:
        wait_s: How long a caller may wait for a free connection.
    """

    def __init__(self, *, wait_s: float, max_connections: int, **options: Any) -> None:
        super().__init__(max_connections=max_connections, **options)
        self._wait_s = wait_s
        self._slots = asyncio.Semaphore(max_connections)
        self._taken_at: dict[AbstractConnection, float] = {}

    async def get_connection(
        self, command_name: Any = None, *keys: Any, **options: Any
    ) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise RedisConnectionError(
                f"no connection became free within {self._wait_s:g} s"
            ) from error
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        self._taken_at[connection] = time.monotonic()
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        taken_at = self._taken_at.pop(connection, None)
        if taken_at is not None:
            round_trips.observe(time.monotonic() - taken_at)
        try:
            await super().release(connection)
        finally:
            self._slots.release()


class _CancelSafe(AbstractConnection):
    """Sends under `asyncio.timeout`, and leaves a server that was made read-only.

    redis-py sends under `asyncio.wait_for`, which in Python 3.11 forgets a
    cancellation that comes as the send completes: the cancelled task would go on. It
    also stays with a former master, where the name may lead to the new one by now.
    """

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError:
            await self.disconnect(nowait=True)
            raise

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        limit_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit_s):
                await super().send_packed_command(command, check_health)
        except TimeoutError as error:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("timed out writing to Redis") from error
        finally:
            self.socket_timeout = limit_s


def _make_cancel_safe(pool: ConnectionPool) -> None:
    kind = pool.connection_class
    pool.connection_class = type(f"CancelSafe{kind.__name__}", (_CancelSafe, kind), {})


def make_client(
    url: str, name: str, *, max_connections: int = POOL_SIZE, wait_s: float = POOL_WAIT_S
) -> Redis:
    """A client for short commands.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        name: Shown by CLIENT LIST.
        max_connections: At most so many commands at once; others wait.
        wait_s: At most so long.
    """
    pool = _FairPool.from_url(
        url,
        protocol=2,
        client_name=name,
        driver_info=None,
        max_connections=max_connections,
        wait_s=wait_s,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(ConstantBackoff(RETRY_WAIT_S), RETRIES),
    )
    _make_cancel_safe(pool)
    return Redis.from_pool(pool)


def make_reader(url: str, name: str, *, block_s: float) -> Redis:
    """A client for one reader that blocks up to `block_s` seconds in each command.

    Never retries by itself: its owner must know that the connection was lost.
    """
    return Redis.from_pool(_reader_pool(url, name, block_s))


class RedisLine:
    """One connection for a reader that blocks, its replies given as they are read.

    A client's own way of a reply takes longer than all that is in it. Never retries by itself;
    a lost connection is an exception, and the next call connects again. Not for
    concurrent use.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        name: Shown by CLIENT LIST.
        block_s: How long a command may block.
    """

    def __init__(self, url: str, name: str, *, block_s: float) -> None:
        pool = _reader_pool(url, name, block_s)
        self._connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]

    async def execute(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """Send commands in one write; their replies.

        Raises:
            RedisError: the connection failed, or a command was refused.
            OSError: likewise.
        """
        connection = self._connection
        try:
            packed = connection.pack_commands(commands)
            await connection.send_packed_command(packed, check_health=False)
            return [await connection.read_response(disable_decoding=True) for _ in commands]
        except BaseException:
            # Replies not read would answer the next call's commands.
            await connection.disconnect(nowait=True)
            raise

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.disconnect(nowait=True)


def _reader_pool(url: str, name: str, block_s: float) -> ConnectionPool:
    pool = ConnectionPool.from_url(
        url,
        protocol=2,
        client_name=name,
        driver_info=None,
        socket_timeout=block_s + COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        max_connections=1,
    )
    _make_cancel_safe(pool)
    return pool


@contextmanager
def redis_errors(doing: str) -> Iterator[None]:
    """Turn a failure of Redis into `Unavailable`; the detail is logged.

    Raises:
        Unavailable: Redis failed.
    """
    try:
        yield
    except (RedisError, OSError) as error:
        logger.warning("%s: Redis failed: %s", doing, str(error) or type(error).__name__)
        raise Unavailable(
            "The conversation store is not reachable.",
            code="redis_unavailable",
            retry_after_ms=RETRY_AFTER_MS,
        ) from error
