"""Who counts as alive, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest
from redis.asyncio import Redis

from app.redis_client import make_client
from app.routing.directory import FORGET_S, STALL_S, STUCK_S, Status, WorkerDirectory
from engine.contract import ModelCard, WorkerState, keys
from tests.redis_server import RedisServer
from tests.spine import until

CARD = ModelCard("m", 0, 100, 10, 4, "none")


def state(worker_id: str = "w1", **changes: object) -> WorkerState:
    given = WorkerState(worker_id, CARD, 1000.0, 1000.0, 0, 0, 0, 64, 0.0, False, {})
    return replace(given, **changes)  # type: ignore[arg-type]


class Registry:
    """A directory, its clock, and a hand that writes heartbeats."""

    def __init__(self, client: Redis) -> None:
        self.now = 50.0
        self.dead: list[str] = []
        self.client = client
        self.directory = WorkerDirectory(
            client, "g1", on_dead=self.dead.append, clock=lambda: self.now
        )

    async def beat(self, beat: WorkerState) -> None:
        await self.client.set(keys.worker(beat.worker_id), orjson.dumps(beat.to_wire()), ex=60)
        await self.client.zadd(keys.WORKERS, {beat.worker_id: beat.beat_at})

    async def poll(self, advance_s: float = 0.0) -> None:
        self.now += advance_s
        await self.directory.poll()


@pytest.fixture
async def registry(redis_url: str) -> AsyncIterator[Registry]:
    client = make_client(redis_url, "test")
    yield Registry(client)
    await client.aclose()


async def test_a_beating_worker_is_live_whatever_its_clock_says(registry: Registry) -> None:
    for number in range(20):
        beat_at = -1e9 + number
        await registry.beat(state(beat_at=beat_at, last_step_at=beat_at))
        await registry.poll(0.5)
    assert registry.directory.status("w1") is Status.LIVE and registry.dead == []


async def test_a_silent_worker_is_dead_once_and_forgotten_later(registry: Registry) -> None:
    await registry.beat(state())
    await registry.poll()
    await registry.poll(keys.WORKER_TTL_S)
    assert registry.dead == []
    await registry.poll(0.1)
    await registry.poll(1)
    assert registry.dead == ["w1"]
    assert registry.directory.status("w1") is Status.DEAD
    assert registry.directory.states() == []
    await registry.client.delete(keys.worker("w1"), keys.WORKERS)
    await registry.poll(FORGET_S)
    assert registry.directory.changed_at("w1") == 0.0


async def test_a_worker_that_left_takes_nothing_more(registry: Registry) -> None:
    await registry.beat(state())
    await registry.poll()
    await registry.client.delete(keys.worker("w1"))
    await registry.poll(0.5)
    assert registry.directory.status("w1") is Status.SILENT
    assert registry.directory.states() == [] and registry.dead == []


async def test_a_dead_worker_may_come_back(registry: Registry) -> None:
    await registry.beat(state())
    await registry.poll()
    await registry.poll(10)
    await registry.beat(state(beat_at=1010.0, last_step_at=1010.0))
    await registry.poll(0.5)
    assert registry.directory.status("w1") is Status.LIVE
    assert registry.dead == ["w1"]


async def test_draining_and_stalled_workers_are_not_live(registry: Registry) -> None:
    await registry.beat(state(draining=True))
    await registry.beat(state("w2", last_step_at=1000.0 - STALL_S - 0.1))
    await registry.poll()
    assert registry.directory.status("w1") is Status.DRAINING
    assert registry.directory.status("w2") is Status.STALLED
    assert [each.worker_id for each in registry.directory.states()] == ["w1", "w2"]


async def test_a_worker_that_is_frozen_for_long_is_lost(registry: Registry) -> None:
    await registry.beat(state(last_step_at=1000.0 - STALL_S - 0.1))
    await registry.poll()
    assert not registry.directory.is_lost("w1")
    await registry.beat(state(beat_at=1001.0, last_step_at=1000.9 - STUCK_S))
    await registry.poll(0.5)
    assert registry.directory.is_lost("w1")
    assert registry.directory.status("w1") is Status.STALLED
    assert registry.directory.is_lost("never heard of")


async def test_a_worker_that_is_gone_is_dead_at_once(registry: Registry) -> None:
    await registry.beat(state())
    await registry.poll()
    await registry.client.set(keys.worker("w1"), keys.WORKER_GONE)
    await registry.poll(0.5)
    assert registry.dead == ["w1"] and registry.directory.states() == []
    registry.directory.expect("w2")
    await registry.client.set(keys.worker("w2"), keys.WORKER_GONE)
    await registry.poll(0.5)
    assert registry.dead == ["w1", "w2"]


async def test_an_expected_worker_gets_a_lifetime_to_be_heard_of(registry: Registry) -> None:
    await registry.poll()
    registry.directory.expect("w9")
    await registry.poll(keys.WORKER_TTL_S - 0.1)
    assert registry.directory.status("w9") is Status.SILENT
    await registry.poll(0.2)
    assert registry.dead == ["w9"]
    registry.directory.expect("w1")
    await registry.beat(state())
    await registry.poll(1)
    assert registry.directory.status("w1") is Status.LIVE


async def test_nobody_is_judged_for_the_time_that_redis_was_away(own_redis: RedisServer) -> None:
    client = make_client(own_redis.url, "test")
    registry = Registry(client)
    await registry.beat(state())
    loop = asyncio.create_task(registry.directory.run())
    await until(lambda: registry.directory.states())
    own_redis.kill()
    await until(lambda: registry.directory.is_failing)
    registry.now += 60
    own_redis.start()
    await until(lambda: not registry.directory.is_failing)
    assert registry.dead == []
    registry.now += keys.WORKER_TTL_S + 0.1
    await until(lambda: registry.dead == ["w1"])
    loop.cancel()
    await client.aclose()


async def test_an_unreadable_state_harms_no_other(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    await registry.beat(state())
    await registry.client.set(keys.worker("bad"), "{", ex=60)
    await registry.client.zadd(keys.WORKERS, {"bad": 1})
    await registry.poll()
    assert [each.worker_id for each in registry.directory.states()] == ["w1"]
    assert "unreadable state of worker bad" in caplog.text
    await registry.client.set(keys.worker("bad"), b"[]", ex=60)
    await registry.poll()
    assert [each.worker_id for each in registry.directory.states()] == ["w1"]
