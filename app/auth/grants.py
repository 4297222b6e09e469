"""Client secrets and tickets: short-lived credentials for browsers, kept in Redis.

| key | type | holds |
|---|---|---|
| `rp:secret:<hash>` | string | the principal as JSON; good for any number of sockets |
| `rp:ticket:<hash>` | string | the same; taken away by the first use |

Only hashes are stored, and Redis forgets each at its end. Neither outlives the
credential that it was asked for with, nor do the sockets that it opens.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from dataclasses import dataclass, field, replace

import orjson
from redis.asyncio import Redis

from app.auth.principal import Principal
from app.redis_client import make_client, redis_errors

SECRET_PREFIX = "ek_"
TICKET_PREFIX = "tk_"
TICKET_TTL_S = 30


@dataclass(frozen=True, slots=True)
class Grant:
    """One that was made; its value is shown once and not kept.

    Attributes:
        value: The secret.
        expires_at: Unix seconds, whole.
    """

    value: str = field(repr=False)
    expires_at: int


class GrantStore:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis_url: Where.
        redis: A pooled client to share; made (and closed) here by default.
    """

    def __init__(self, redis_url: str, *, redis: Redis | None = None) -> None:
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, "repartee-grants")

    async def close(self) -> None:
        """Close the client, if it was made here."""
        if self._owns_redis:
            await self._redis.aclose()

    async def make_secret(self, principal: Principal, ttl_s: int) -> Grant:
        """A client secret that stands for `principal`."""
        return await self._make("secret", SECRET_PREFIX, principal, ttl_s)

    async def make_ticket(self, principal: Principal) -> Grant:
        """A ticket that stands for `principal`."""
        return await self._make("ticket", TICKET_PREFIX, principal, TICKET_TTL_S)

    async def find_secret(self, value: str) -> Principal | None:
        """Whom a client secret stands for."""
        with redis_errors("client secret"):
            return _read(await self._redis.get(_key("secret", value)))

    async def redeem_ticket(self, value: str) -> Principal | None:
        """Whom a ticket stands for, to the first who asks."""
        # Sent again after its answer was lost, GETDEL finds nothing: in doubt it is spent.
        with redis_errors("ticket"):
            return _read(await self._redis.getdel(_key("ticket", value)))

    async def _make(self, kind: str, prefix: str, principal: Principal, ttl_s: int) -> Grant:
        now = time.time()
        if principal.expires_at is not None:
            ttl_s = min(ttl_s, max(1, math.ceil(principal.expires_at - now)))
        value = prefix + secrets.token_urlsafe(32)
        wire = orjson.dumps(replace(principal, is_ephemeral=True).to_wire())
        with redis_errors(kind):
            await self._redis.set(_key(kind, value), wire, ex=ttl_s)
        return Grant(value, math.floor(now + ttl_s))


def _key(kind: str, value: str) -> str:
    """Values are long and random, so a slow hash would add nothing."""
    return f"rp:{kind}:{hashlib.sha256(value.encode()).hexdigest()}"


def _read(data: bytes | str | None) -> Principal | None:
    return None if data is None else Principal.from_wire(orjson.loads(data))
