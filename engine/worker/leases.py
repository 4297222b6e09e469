"""The commands by which a worker keeps its leases and gives them back."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson

from engine.contract import GenerateRequest, keys, lease
from engine.worker.redis_client import Value
from engine.worker.route import Route


def keep(worker_id: str, live: Sequence[tuple[Route, GenerateRequest]]) -> list[tuple[Value, ...]]:
    """Write leases again that Redis may have lost; the first replies are `lease.KEEP`'s."""
    owned = keys.owned(worker_id)
    return [
        *(
            (
                *("EVAL", lease.KEEP, 1, keys.lease(route.request_id), worker_id, route.epoch),
                *(str(request.deadline_at), orjson.dumps(request.to_wire()), keys.OWNED_TTL_S),
            )
            for route, request in live
        ),
        ("SADD", owned, *(route.request_id for route, _ in live)),
        ("EXPIRE", owned, keys.OWNED_TTL_S),
        *_owner(worker_id),
    ]


def release(worker_id: str, routes: Sequence[Route]) -> list[tuple[Value, ...]]:
    """Let anyone take responses over, whose events are written."""
    ids = [route.request_id for route in routes]
    nobody = keys.owned(keys.NOBODY)
    return [
        ("SADD", nobody, *ids),
        ("EXPIRE", nobody, keys.OWNED_TTL_S),
        *_owner(keys.NOBODY),
        *(
            (
                *("EVAL", lease.RELEASE, 1, keys.lease(route.request_id), worker_id, route.epoch),
                *(keys.NOBODY, orjson.dumps(route.listeners)),
            )
            for route in routes
        ),
        ("SREM", keys.owned(worker_id), *ids),
    ]


def _owner(worker_id: str) -> list[tuple[Value, ...]]:
    return [
        ("ZADD", keys.OWNERS, str(time.time()), worker_id),
        ("EXPIRE", keys.OWNERS, keys.OWNED_TTL_S),
    ]
