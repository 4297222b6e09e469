"""Every gateway's state, told to all of them through Redis, and read for the page.

| key | type | holds |
|---|---|---|
| `rp:ops` | sorted set | gateway ids, scored by the time of their last word |
| `rp:ops:<gid>` | string | one gateway's state as JSON; lives a few seconds |

Histograms are told as counts since the start, so that a page may take the difference of
any two of its readings and make percentiles of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import Counter, Gauge, Histogram
from redis.exceptions import RedisError

from app.gateway.metrics import GatewayMetrics
from app.redis_client import make_client, redis_errors

logger = logging.getLogger(__name__)

BEAT_S = 1.0
STATE_TTL_S = 5
GATEWAYS = "rp:ops"
GATEWAYS_TTL_S = 60


def state_key(gateway_id: str) -> str:
    """Where one gateway's state is."""
    return f"{GATEWAYS}:{gateway_id}"


class OpsBoard:
    """See the module.

    Args:
        redis_url: Where the states are.
        gateway_id: This gateway's.
        metrics: What is told of it.
        is_draining: Whether it is stopping.
    """

    def __init__(
        self,
        redis_url: str,
        gateway_id: str,
        metrics: GatewayMetrics,
        is_draining: Callable[[], bool],
    ) -> None:
        self._redis = make_client(redis_url, f"repartee-ops-{gateway_id}", max_connections=4)
        self._gateway_id = gateway_id
        self._metrics = metrics
        self._is_draining = is_draining
        self._started_at = time.time()

    async def run(self) -> None:
        """Tell this gateway's state for ever; what a failing Redis misses is not made up for."""
        while True:
            try:
                await self.tell()
            except (RedisError, OSError) as error:
                logger.debug("state not told: %s", error)
            await asyncio.sleep(BEAT_S)

    async def tell(self) -> None:
        """Write this gateway's state once.

        Raises:
            RedisError: it may not have been written.
        """
        state = orjson.dumps(self.state())
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(state_key(self._gateway_id), state, ex=STATE_TTL_S)
            pipe.zadd(GATEWAYS, {self._gateway_id: time.time()})
            pipe.zremrangebyscore(GATEWAYS, "-inf", time.time() - GATEWAYS_TTL_S)
            pipe.expire(GATEWAYS, GATEWAYS_TTL_S)
            await pipe.execute()

    def state(self) -> dict[str, Any]:
        """This gateway, now."""
        metrics = self._metrics
        return {
            "id": self._gateway_id,
            "started_at": self._started_at,
            "draining": self._is_draining(),
            "connections": _total(metrics.connections),
            "pending_bytes": _total(metrics.pending_bytes),
            "merged_deltas": _total(metrics.merged_deltas),
            "slow_closes": _total(metrics.slow_closes),
            "running": _by(metrics.running, "tier"),
            "outcomes": _by(metrics.responses, "outcome"),
            "tokens": _by(metrics.tokens, "kind"),
            "first_token": _buckets(metrics.first_token),
            "chunk_gap": _buckets(metrics.chunk_gap),
            "queue": _buckets(metrics.queue_time),
        }

    async def read(self) -> list[dict[str, Any]]:
        """Every gateway's last state, by id.

        Raises:
            Unavailable: Redis failed.
        """
        with redis_errors("operator's view"):
            listed: Any = await self._redis.zrange(GATEWAYS, 0, -1)
            names = sorted(name.decode() for name in listed)
            if not names:
                return []
            bodies = await self._redis.mget([state_key(name) for name in names])
        return [orjson.loads(body) for body in bodies if body is not None]

    async def close(self) -> None:
        """Take this gateway off the board."""
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.delete(state_key(self._gateway_id))
                pipe.zrem(GATEWAYS, self._gateway_id)
                await pipe.execute()
        except (RedisError, OSError) as error:
            logger.debug("the board is left to expire: %s", error)
        await self._redis.aclose()


def _samples(metric: Counter | Gauge | Histogram) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of what a metric holds."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def _total(metric: Counter | Gauge) -> float:
    return sum(value for _, _, value in _samples(metric))


def _by(metric: Counter | Gauge, label: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for _, labels, value in _samples(metric):
        sums[labels[label]] += value
    return dict(sums)


def _buckets(metric: Histogram) -> dict[str, dict[str, float]]:
    """By tier: the count at or below each bound, in seconds, since the start."""
    tiers: dict[str, dict[str, float]] = {}
    for name, labels, value in _samples(metric):
        if name.endswith("_bucket"):
            counts = tiers.setdefault(labels["tier"], {})
            counts[labels["le"]] = counts.get(labels["le"], 0.0) + value
    return tiers
