"""What must not be left when everybody has gone: in the gateway, in Redis, in the logs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import redis

from engine.contract import Failed, Finished, event_from_wire

# Renewals, heartbeats and what is just about to end.
_SPARE_TASKS = 12
_SETTLE_S = 60.0
_POLL_S = 0.25
_LINES_SHOWN = 25
_BAD_LINES = re.compile(r"Traceback|\b(?:ERROR|CRITICAL)\b|never retrieved|never awaited")
_GAUGES = ("repartee_responses_running", "repartee_connections", "repartee_pending_bytes")


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """Every metric, summed over its labels."""
    sums: dict[str, float] = {}
    for line in (await http.get("/metrics")).text.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:]+)(?:\{.*\})? (\S+)", line)
        if match is not None:
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    return sums


async def settled(http: httpx.AsyncClient, client: redis.Redis, num_tasks: float) -> list[str]:
    """Wait for the end of what runs; what is still there then."""
    async with asyncio.timeout(3 * _SETTLE_S):
        for _ in range(int(_SETTLE_S / _POLL_S)):
            left = await _left(http, client, num_tasks)
            if not left:
                break
            await asyncio.sleep(_POLL_S)
    return left


async def _left(http: httpx.AsyncClient, client: redis.Redis, num_tasks: float) -> list[str]:
    found = await metrics(http)
    left = [f"{name} is {found[name]:g}" for name in _GAUGES if found.get(name)]
    tasks = found["repartee_asyncio_tasks"]
    if tasks > num_tasks + _SPARE_TASKS:
        left.append(f"{tasks:g} tasks, {num_tasks:g} at first")
    asked, ended = found.get("repartee_requests_total"), found.get("repartee_responses_total")
    if asked != ended:
        left.append(f"{asked} answers asked for, {ended} ended")
    left += [f"{key} is left" for key in client.scan_iter("rp:lease:*", count=1000)]
    for key in client.scan_iter("rp:limit:*", count=1000):
        if key.endswith((":run", ":con")) and client.zcard(key):
            left.append(f"{key} counts {client.zcard(key)}")
    return left


def bad_keys(client: redis.Redis) -> tuple[list[str], int]:
    """Keys without a lifetime and logs without exactly one end; the number of logs."""
    wrong, num_logs = [], 0
    for key in client.scan_iter("*", count=1000):
        if client.ttl(key) == -1:
            wrong.append(f"{key} has no lifetime")
        if key.startswith("rp:log:"):
            num_logs += 1
            wrong += [f"{key}: {each}" for each in _bad_log(client, key)]
    return wrong, num_logs


def _bad_log(client: redis.Redis, key: str) -> list[str]:
    events = [event_from_wire(json.loads(fields["e"])) for _, fields in client.xrange(key)]
    if not events:
        # Its time ran out since its name was read.
        return []
    wrong = []
    if [event.seq for event in events] != list(range(len(events))):
        wrong.append("gaps or doubles")
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    if len(ends) != 1 or events[-1] is not ends[0]:
        wrong.append(f"{len(ends)} ends")
    return wrong


def bad_lines(log: Path) -> list[str]:
    """Lines of a process's log that tell of a fault of its own, with what follows."""
    lines = log.read_text(errors="replace").splitlines()
    return [
        "\n".join(lines[number : number + _LINES_SHOWN])
        for number, line in enumerate(lines)
        if _BAD_LINES.search(line)
    ]
