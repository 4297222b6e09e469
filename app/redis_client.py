"""How the gateway's Redis clients are made, and how their failures are told.

Two kinds: a pool for short commands, bounded in size and in waiting, and a single
connection for a blocking reader. redis-py's defaults don't fit either: its socket
timeout of 5 s breaks longer blocking reads, and its pool raises at once when full.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import RedisError

from engine.contract import Unavailable

logger = logging.getLogger(__name__)

# Connections of one pool, and how long a command may wait for a free one.
POOL_SIZE = 32
POOL_WAIT_S = 2.0

CONNECT_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 3.0

# A command whose connection broke is sent once more: what we send is idempotent.
RETRIES = 1
RETRY_WAIT_S = 0.05

RETRY_AFTER_MS = 1000


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
    pool = BlockingConnectionPool.from_url(
        url,
        protocol=2,
        client_name=name,
        max_connections=max_connections,
        timeout=wait_s,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(ConstantBackoff(RETRY_WAIT_S), RETRIES),
    )
    return Redis.from_pool(pool)


def make_reader(url: str, name: str, *, block_s: float) -> Redis:
    """A client for one reader that blocks up to `block_s` seconds in each command.

    Never retries by itself: its owner must know that the connection was lost.
    """
    return Redis.from_url(
        url,
        protocol=2,
        client_name=name,
        single_connection_client=True,
        socket_timeout=block_s + COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


@contextmanager
def redis_errors(doing: str) -> Iterator[None]:
    """Turn a failure of Redis into `Unavailable`; the detail is logged.

    Raises:
        Unavailable: Redis failed.
    """
    try:
        yield
    except (RedisError, OSError) as error:
        logger.warning("%s: Redis failed: %s", doing, error or type(error).__name__)
        raise Unavailable(
            "The conversation store is not reachable.",
            code="redis_unavailable",
            retry_after_ms=RETRY_AFTER_MS,
        ) from error
