"""Whatever is asked in whatever way, and however it ends: all counters say the same.

What they are held against is the log that the workers keep of each response.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis as redis_module

from engine.contract import (
    Delta,
    Event,
    Failed,
    Finished,
    InvalidRequest,
    TakenOver,
    Usage,
    WorkerState,
    event_from_wire,
)
from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.gateway.test_realtime import ask, done, send, user_item
from tests.gateway.test_responses_api import events_after, until_first_delta
from tests.redis_server import RedisServer
from tests.spine import running_worker, until

SLOW = {"num_tokens": 2000, "rate": 100}
REFUSED = {"class": "Overloaded", "message": "full", "retry_after_ms": 5}

Way = Callable[[LiveGateway], Awaitable[int]]


async def leave(call: Awaitable[Any], gateway: LiveGateway) -> None:
    """Begin a call, and hang up once it runs."""
    task = asyncio.ensure_future(call)
    await until(lambda: gateway.gateway.responses.num_running)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def chats(gateway: LiveGateway) -> int:
    for stream in (False, True):
        await gateway.chat(script(num_tokens=11, rate=200), stream=stream)
        await gateway.chat(script(num_tokens=11), stream=stream, max_tokens=5)
        await gateway.chat(script(num_tokens=9), stream=stream, stop=["e"])
    return 6


async def chats_that_fail(gateway: LiveGateway) -> int:
    await gateway.chat(script(fail_after=0))
    await gateway.chat(script(fail_after=4, rate=200), stream=True)
    await gateway.chat(script(refuse=REFUSED))
    await gateway.chat("a " * 9000)
    await gateway.chat(messages=[])
    return 4


async def chats_that_are_left(gateway: LiveGateway) -> int:
    await leave(gateway.chat(script(**SLOW)), gateway)
    await leave(gateway.chat(script(**SLOW), stream=True), gateway)
    await leave(gateway.chat(script(prepare_ms=150, **SLOW)), gateway)
    return 3


async def responses(gateway: LiveGateway) -> int:
    await gateway.http.post("/v1/responses", json={"input": script(num_tokens=8)})
    text = "word " * 40
    resumed = await until_first_delta(gateway, input=script(text=text, rate=200))
    assert (await events_after(gateway, resumed, 5))[-1]["type"] == "response.completed"
    await until_first_delta(gateway, input=script(**SLOW), store=False)
    body = {"input": script(**SLOW), "background": True}
    response_id = (await gateway.http.post("/v1/responses", json=body)).json()["id"]
    await gateway.http.post(f"/v1/responses/{response_id}/cancel")
    return 4


async def sockets(gateway: LiveGateway) -> int:
    async with gateway.socket() as line:
        session_id = (await receive(line))["session"]["id"]
        await ask(line, script(num_tokens=9))
        await done(line)
        await ask(line, script(**SLOW))
        await receive_until(line, "response.output_text.delta")
        await send(line, {"type": "response.cancel"})
        await done(line)
        await ask(line, script(num_tokens=40, rate=100))
        await receive_until(line, "response.output_text.delta")
        aside = {"conversation": "none", "input": [user_item(script(**SLOW))["item"]]}
        await send(line, {"type": "response.create", "response": aside})
        await receive_until(line, "response.created")
        line.transport.abort()
    async with gateway.socket(f"?session_id={session_id}") as line:
        await receive_until(line, "repartee.response.resumed")
        await done(line)
    return 4


WAYS: tuple[Way, ...] = (chats, chats_that_fail, chats_that_are_left, responses, sockets)


def logs(outside: redis_module.Redis) -> list[list[Event]]:
    """Every response's events."""
    return [
        [event_from_wire(json.loads(fields["e"])) for _, fields in outside.xrange(name)]
        for name in outside.scan_iter("rp:log:*")
    ]


def outcome(event: Event) -> str:
    """As the gateways name it."""
    if isinstance(event, Failed):
        return "rejected" if isinstance(event.error, InvalidRequest) else "failed"
    assert isinstance(event, Finished)
    return {"stop": "completed"}.get(event.reason, event.reason.value)


async def total(gateways: list[LiveGateway], name: str, **labels: str) -> float:
    return sum([await gateway.metric(name, **labels) for gateway in gateways])


@pytest.mark.parametrize("seed", range(2))
async def test_met_01_met_02_all_counters_say_what_the_logs_say(
    redis_url: str, redis_server: RedisServer, seed: int
) -> None:
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(running_gateway(redis_url, worker=False))
            for _ in range(2)
        ]
        old = Worker(FakeEngine(rate=100), redis_url, grace_s=0.1)
        leaving = asyncio.create_task(old.run())
        await until(lambda: all(g.gateway.responses.engine.ready() for g in gateways))
        moved = [
            asyncio.create_task(gateways[n % 2].chat(script(num_tokens=150), stream=n > 1))
            for n in range(4)
        ]
        await until(lambda: old.state().num_running == 4)
        new = await stack.enter_async_context(running_worker(redis_url))
        await until(lambda: all(len(g.gateway.responses.engine.workers()) == 2 for g in gateways))
        old.stop()
        num_asked = len(moved)
        for way in rng.sample(WAYS, len(WAYS)):
            num_asked += await way(rng.choice(gateways))
        await leaving
        assert all(answer.status_code == 200 for answer in await asyncio.gather(*moved))
        for gateway in gateways:
            await until(lambda gateway=gateway: gateway.gateway.responses.num_running == 0)
        with redis_server.client() as outside:
            told = logs(outside)
        await assert_equal(gateways, [old.state(), new.state()], told, num_asked)


async def assert_equal(
    gateways: list[LiveGateway],
    workers: list[WorkerState],
    told: list[list[Event]],
    num_asked: int,
) -> None:
    ends = [events[-1] for events in told]
    outcomes = Counter(map(outcome, ends))
    assert set(outcomes) == {"completed", "length", "cancelled", "failed", "rejected"}
    assert sum(any(isinstance(event, TakenOver) for event in events) for events in told) == 4

    assert await total(gateways, "repartee_requests_total") == num_asked == len(told)
    assert await total(gateways, "repartee_responses_running") == 0
    for name, number in outcomes.items():
        assert await total(gateways, "repartee_responses_total", outcome=name) == number, name
    with_tokens = sum(
        any(isinstance(event, Delta) and event.num_tokens for event in events) for events in told
    )
    assert await total(gateways, "repartee_time_to_first_token_seconds_count") == with_tokens
    ran = sum(isinstance(end, Finished) and end.queued_ms is not None for end in ends)
    assert await total(gateways, "repartee_queue_seconds_count") == ran > 0

    def counted(name: str) -> float:
        return sum(worker.metrics[name] for worker in workers)

    usages: list[Usage] = [
        end.usage for end in ends if isinstance(end, Finished | Failed) and end.usage is not None
    ]
    for kind in ("prompt", "cached", "completion"):
        tokens = sum(getattr(usage, f"{kind}_tokens") for usage in usages)
        assert await total(gateways, "repartee_tokens_total", kind=kind) == tokens
        assert counted(f"repartee_{kind}_tokens_total") == tokens
    by_worker = {
        name: counted(f'repartee_worker_responses_total{{outcome="{name}"}}')
        for name in ("stop", "length", "cancelled", "failed")
    }
    assert by_worker == {
        "stop": outcomes["completed"],
        "length": outcomes["length"],
        "cancelled": outcomes["cancelled"],
        "failed": outcomes["failed"] + outcomes["rejected"],
    }
