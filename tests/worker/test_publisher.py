"""Events into logs and gateways' streams, over lines that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis as redis_module

from engine.contract import (
    Accepted,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    Usage,
    keys,
)
from engine.worker import batch as batch_module
from engine.worker import publisher as publisher_module
from engine.worker.publisher import Publisher
from engine.worker.redis_client import RedisDownError, RedisLine
from tests.redis_server import RedisServer
from tests.spine import until


def answer(request_id: str, num_deltas: int, epoch: int = 1) -> list[Event]:
    return [
        Accepted(request_id, epoch, 0, 3),
        *(Delta(request_id, epoch, seq, f"{seq} ", 1) for seq in range(1, num_deltas + 1)),
        Finished(request_id, epoch, num_deltas + 1, FinishReason.STOP, Usage(3, num_deltas, 2)),
    ]


class Flaky(RedisLine):
    """Loses connections as told: before a write is applied, or after it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "flaky")
        self.plan: list[str] = []
        self.num_writes = 0

    async def execute(self, commands: Any, timeout_s: float = 5.0) -> list[Any]:
        fate = self.plan.pop(0) if self.plan and commands[0][0] == "XADD" else ""
        if fate == "before":
            raise RedisDownError("cut")
        if fate == "half":
            await super().execute(commands[: len(commands) // 2], timeout_s)
            raise RedisDownError("cut")
        self.num_writes += commands[0][0] == "XADD"
        replies = await super().execute(commands, timeout_s)
        if fate == "after":
            raise RedisDownError("cut")
        return replies


class Harness:
    def __init__(self, server: RedisServer) -> None:
        self.line = Flaky(server.url)
        self.lost: list[str] = []
        self.full: list[bool] = []
        self.publisher = Publisher(
            self.line, "w1", on_lost=self.lost.append, on_full=self.full.append
        )
        self.outside: redis_module.Redis = server.client()

    def log(self, request_id: str) -> list[tuple[str, dict[str, Any]]]:
        entries = self.outside.xrange(keys.log(request_id))
        return [(entry_id, json.loads(fields["e"])) for entry_id, fields in entries]

    def heard(self, gateway_id: str) -> list[dict[str, Any]]:
        entries = self.outside.xrange(keys.gateway(gateway_id))
        return [event for _, fields in entries for event in json.loads(fields["b"])]

    async def settled(self) -> None:
        async with asyncio.timeout(5):
            await self.publisher.wait_settled()


@pytest.fixture
async def harness(redis_url: str, redis_server: RedisServer) -> AsyncIterator[Harness]:
    harness = Harness(redis_server)
    task = asyncio.create_task(harness.publisher.run())
    yield harness
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await harness.line.close()
    harness.outside.close()


async def test_two_pipelines_take_all_that_gathered(harness: Harness) -> None:
    events = {f"r{n}": answer(f"r{n}", 5) for n in range(10)}
    for request_id in events:
        assert harness.publisher.open(request_id, 1, ["g1"])
    for step in zip(*events.values(), strict=True):
        harness.publisher.offer(list(step))
    await harness.settled()
    for request_id, expected in events.items():
        assert [wire for _, wire in harness.log(request_id)] == [e.to_wire() for e in expected]
        assert harness.log(request_id)[3][0] == "1-3"
        assert keys.LOOSE_LOG_TTL_S < harness.outside.ttl(keys.log(request_id)) <= keys.LOG_TTL_S
    assert len(harness.heard("g1")) == 70 and harness.outside.xlen(keys.gateway("g1")) == 1
    assert harness.outside.ttl(keys.gateway("g1")) > 0
    assert harness.line.num_writes == 2


async def test_new_events_gather_between_two_writes(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "GATHER_S", 1.0)
    first, *others = answer("r1", 6)
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer([first])
    await harness.settled()
    for event in others:
        harness.publisher.offer([event])
        await asyncio.sleep(0.01)
    assert harness.heard("g1") == [first.to_wire()]
    await harness.settled()
    assert harness.heard("g1") == [event.to_wire() for event in (first, *others)]
    assert harness.outside.xlen(keys.gateway("g1")) == 2 and harness.line.num_writes == 4


async def test_counters_add_up(harness: Harness) -> None:
    for number in range(3):
        harness.publisher.open(f"r{number}", 1, ["g1"])
        harness.publisher.offer(answer(f"r{number}", 4))
    harness.publisher.open("r9", 1, ["g1"])
    harness.publisher.fail("r9", EngineFault("broken"))
    await harness.settled()
    counters = harness.publisher.counters
    assert counters['repartee_worker_responses_total{outcome="stop"}'] == 3
    assert counters['repartee_worker_responses_total{outcome="failed"}'] == 1
    assert counters["repartee_prompt_tokens_total"] == 9
    assert counters["repartee_completion_tokens_total"] == 12
    assert counters["repartee_cached_tokens_total"] == 6
    assert counters["repartee_events_published_total"] == 19
    assert harness.publisher.num_live == harness.publisher.num_unsent_bytes == 0


@pytest.mark.parametrize("fate", ["before", "half", "after"])
async def test_a_lost_write_is_made_good_once(harness: Harness, fate: str) -> None:
    expected = answer("r1", 30)
    harness.publisher.open("r1", 1, ["g1"])
    for start in range(0, len(expected), 4):
        harness.line.plan = [fate]
        harness.publisher.offer(expected[start : start + 4])
        await harness.settled()
    assert [wire for _, wire in harness.log("r1")] == [e.to_wire() for e in expected]
    seen: list[Any] = []
    for wire in harness.heard("g1"):
        if wire not in seen:
            seen.append(wire)
    assert seen == [e.to_wire() for e in expected]
    assert harness.lost == []


async def test_a_log_that_vanished_is_written_again(harness: Harness) -> None:
    expected = answer("r1", 10)
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer(expected[:6])
    await harness.settled()
    harness.outside.flushall()
    harness.publisher.connection_lost()
    harness.publisher.offer(expected[6:])
    await harness.settled()
    assert [wire for _, wire in harness.log("r1")] == [e.to_wire() for e in expected]
    assert harness.outside.ttl(keys.log("r1")) > 0
    # Ended, and still here for a while.
    harness.outside.flushall()
    harness.publisher.connection_lost()
    await until(lambda: len(harness.log("r1")) == len(expected))


async def test_who_lost_the_log_stops_and_writes_nothing_more(harness: Harness) -> None:
    expected = answer("r1", 10)
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer(expected[:4])
    await harness.settled()
    failed = Failed("r1", 2, 4, EngineFault("taken"))
    harness.outside.xadd(keys.log("r1"), {"e": json.dumps(failed.to_wire())}, id="2-4")
    harness.publisher.offer(expected[4:6])
    await until(lambda: harness.lost == ["r1"])
    assert not harness.publisher.is_live("r1")
    harness.publisher.offer(expected[6:])
    harness.publisher.open("r2", 1, ["g1"])
    harness.publisher.offer(answer("r2", 2))
    await harness.settled()
    assert [entry_id for entry_id, _ in harness.log("r1")][-1] == "2-4"
    assert len(harness.log("r2")) == 4
    assert harness.publisher.counters['repartee_worker_responses_total{outcome="lost"}'] == 1


async def test_a_late_listener_is_shown_where_it_stands(harness: Harness) -> None:
    expected = answer("r1", 10)
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.listen("r1", "g2")
    harness.publisher.offer(expected[:4])
    await harness.settled()
    harness.publisher.listen("r1", "g3")
    harness.publisher.listen("unknown", "g3")
    await until(lambda: harness.heard("g3"))
    harness.publisher.offer(expected[4:])
    await harness.settled()
    wires = [event.to_wire() for event in expected]
    assert harness.heard("g1") == harness.heard("g2") == wires
    assert harness.heard("g3") == wires[3:]
    harness.publisher.listen("r1", "g4")
    await until(lambda: harness.heard("g4") == wires[-1:])


async def test_after_its_end_nothing_more_is_said(harness: Harness) -> None:
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer(answer("r1", 2))
    harness.publisher.offer([Delta("r1", 1, 4, "late", 1)])
    harness.publisher.fail("r1", EngineFault("late"))
    harness.publisher.offer([Delta("never", 1, 0, "opened", 1)])
    await harness.settled()
    assert len(harness.log("r1")) == 4
    assert harness.log("never") == []
    assert not harness.publisher.open("r1", 1, ["g1"])


async def test_an_event_that_cannot_be_written_fails_its_response_alone(
    harness: Harness,
) -> None:
    for request_id in ("r1", "r2"):
        harness.publisher.open(request_id, 1, ["g1"])
    harness.publisher.offer(
        [
            Accepted("r1", 1, 0, 3),
            Delta("r1", 1, 1, "half \ud83d", 1),
            *answer("r2", 3),
        ]
    )
    await harness.settled()
    kinds = [wire["t"] for _, wire in harness.log("r1")]
    assert kinds == ["a", "x"] and harness.lost == ["r1"]
    assert len(harness.log("r2")) == 5


async def test_ended_responses_are_let_go(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "RETAIN_S", 0.0)
    for number in range(100):
        harness.publisher.open(f"r{number}", 1, ["g1"])
        harness.publisher.offer(answer(f"r{number}", 2))
    await harness.settled()
    harness.publisher.forget_ended()
    assert harness.publisher.open("r0", 1, ["g1"])


async def test_too_much_unwritten_holds_the_engine(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "MAX_UNSENT_BYTES", 500)
    harness.line.plan = ["before"] * 3
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer(answer("r1", 30))
    assert harness.full == [True]
    await harness.settled()
    assert harness.full == [True, False]


async def test_a_gateways_entries_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "MAX_ENTRY_BYTES", 1000)
    monkeypatch.setattr(publisher_module, "MAX_BATCH_EVENTS", 40)
    expected = answer("r1", 200)
    harness.publisher.open("r1", 1, ["g1"])
    harness.publisher.offer(expected)
    await harness.settled()
    assert harness.heard("g1") == [event.to_wire() for event in expected]
    bodies = [fields["b"] for _, fields in harness.outside.xrange(keys.gateway("g1"))]
    assert max(map(len, bodies)) <= 1002 and len(bodies) > 10


async def test_a_log_that_nobody_takes_up_again_lives_shortly_after_its_end(
    harness: Harness,
) -> None:
    assert harness.publisher.open("r1", 1, ["g1"], end_ttl_s=keys.LOOSE_LOG_TTL_S)
    *most, last = answer("r1", 5)
    harness.publisher.offer(most)
    await harness.settled()
    assert harness.outside.ttl(keys.log("r1")) > keys.LOOSE_LOG_TTL_S
    harness.publisher.offer([last])
    await harness.settled()
    assert 0 < harness.outside.ttl(keys.log("r1")) <= keys.LOOSE_LOG_TTL_S
