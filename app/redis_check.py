"""Is there a usable Redis behind a URL? Asked once, before a process starts to serve."""

from __future__ import annotations

import re

import redis

from app.embedded_redis import OLDEST_VERSION
from app.startup_error import StartupError, without_password

CONNECT_TIMEOUT_S = 5.0


def check_redis(url: str) -> str:
    """Connect, authenticate and read the server's version.

    Returns:
        The version.

    Raises:
        StartupError: the server is away, refuses us, or is too old.
    """
    shown = without_password(url)
    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=CONNECT_TIMEOUT_S
        )
        with client:
            version = str(client.info("server")["redis_version"])
    except redis.AuthenticationError as error:
        raise StartupError(f"Redis at {shown} refuses us: {error}.", "Check --redis-url.") from None
    except (redis.RedisError, OSError, ValueError) as error:
        raise StartupError(f"No Redis at {shown}: {error}", "Check --redis-url.") from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_VERSION:
        raise StartupError(f"Redis at {shown} is {version}; 6.2 is the oldest that works.")
    return version
