"""The worker's life, with an engine that does as told."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from engine.contract import (
    Event,
    Failed,
    Finished,
    InvalidRequest,
    Submit,
    event_from_wire,
    keys,
)
from engine.worker import engine_thread
from engine.worker.__main__ import main
from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.redis_server import RedisServer
from tests.spine import collect, make_request, running_client, running_worker, until


def script(**fields: Any) -> str:
    return "!json " + json.dumps(fields)


def log_of(server: RedisServer, request_id: str) -> list[Event]:
    with server.client() as outside:
        return [
            event_from_wire(json.loads(fields["e"]))
            for _, fields in outside.xrange(keys.log(request_id))
        ]


async def test_a_submit_that_the_contract_refuses_is_answered(
    redis_url: str, redis_server: RedisServer
) -> None:
    wire = Submit(make_request(request_id="r1")).to_wire()
    wire["request"]["sampling"] = {"temperature": 7.0}
    async with running_worker(redis_url, worker_id="w1"):
        with redis_server.client() as outside:
            outside.xadd(keys.inbox("w1"), {"c": json.dumps(wire)})
        await until(lambda: log_of(redis_server, "r1"))
    (event,) = log_of(redis_server, "r1")
    assert isinstance(event, Failed) and isinstance(event.error, InvalidRequest)
    assert event.error.param == "temperature"


async def test_another_models_request_is_refused(redis_url: str, redis_server: RedisServer) -> None:
    async with running_worker(redis_url, worker_id="w1"):
        wire = Submit(make_request(request_id="r1", model="other")).to_wire()
        with redis_server.client() as outside:
            outside.xadd(keys.inbox("w1"), {"c": json.dumps(wire)})
        await until(lambda: log_of(redis_server, "r1"))
    (event,) = log_of(redis_server, "r1")
    assert isinstance(event, Failed) and event.error.code == "model_not_found"


async def test_what_was_sent_while_it_started_is_served(
    redis_url: str, redis_server: RedisServer
) -> None:
    with redis_server.client() as outside:
        wire = Submit(make_request(request_id="r1")).to_wire()
        outside.xadd(keys.inbox("w1"), {"c": json.dumps(wire)})
        outside.expire(keys.inbox("w1"), 60)
    async with running_worker(redis_url, worker_id="w1"):
        await until(lambda: any(isinstance(e, Finished) for e in log_of(redis_server, "r1")))


async def test_a_huge_prompt_holds_up_nobody(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        slow = await client.submit(make_request(script(text="a b", prepare_ms=1500)))
        started = time.monotonic()
        for _ in range(5):
            assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)
        assert time.monotonic() - started < 1.5
        assert isinstance((await collect(slow))[-1], Finished)


async def test_redis_may_come_later_than_the_worker(own_redis: RedisServer) -> None:
    own_redis.kill()
    async with running_worker(own_redis.url), running_client(own_redis.url) as client:
        await asyncio.sleep(0.2)
        assert not client.ready()
        own_redis.start()
        await until(client.ready)
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_a_worker_without_redis_still_stops(tmp_path: Path) -> None:
    worker = Worker(FakeEngine(), f"unix://{tmp_path}/none.sock", grace_s=0)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0.2)
    worker.stop()
    async with asyncio.timeout(8):
        assert await task == 0


async def test_an_engine_that_keeps_failing_ends_the_process(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_thread, "MAX_STEP_FAULTS", 1)
    worker = Worker(FakeEngine(), redis_url)
    task = asyncio.create_task(worker.run())
    async with running_client(redis_url) as client:
        await until(client.ready)
        waiting = await client.submit(make_request(script(text="a b c", delay_ms=60_000)))
        await anext(waiting)
        broken = await client.submit(make_request(script(text="a b c", fault_after=1)))
        for stream in (broken, waiting):
            final = (await collect(stream))[-1]
            assert isinstance(final, Failed) and final.error.code == "engine_fault"
            assert "scripted" not in final.error.message
        async with asyncio.timeout(8):
            assert await task == 1
        await until(lambda: not client.ready())


async def test_a_second_signal_ends_the_grace(redis_url: str, redis_server: RedisServer) -> None:
    worker = Worker(FakeEngine(), redis_url, grace_s=3600)
    task = asyncio.create_task(worker.run())
    async with running_client(redis_url) as client:
        await until(client.ready)
        stream = await client.submit(make_request(script(text="a b c", stall_after=1)))
        await anext(stream)
        worker.stop()
        await until(lambda: not client.ready())
        assert not task.done()
        worker.stop()
        async with asyncio.timeout(8):
            assert await task == 0
        with redis_server.client() as outside:
            assert outside.smembers(keys.owned(keys.NOBODY)) == {stream.request_id}
            assert outside.hget(keys.lease(stream.request_id), "w") == keys.NOBODY


async def test_the_state_adds_up(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        contents = ["hi", script(text="a b", fail_after=1), script(text="a b c d e f g")]
        for content in contents:
            await collect(await client.submit(make_request(content)))
        stream = await client.submit(make_request(script(text="a", delay_ms=60_000)))
        await client.cancel(stream.request_id)
        await collect(stream)
        metrics = await until(
            lambda: (
                client.workers()[0].metrics["repartee_responses_live"] == 0
                and client.workers()[0].metrics["repartee_submits_total"] == 4
                and client.workers()[0].metrics
            )
        )
        outcomes = {name: value for name, value in metrics.items() if "_responses_" in name}
        assert outcomes == {
            'repartee_worker_responses_total{outcome="stop"}': 2,
            'repartee_worker_responses_total{outcome="failed"}': 1,
            'repartee_worker_responses_total{outcome="cancelled"}': 1,
            'repartee_worker_responses_total{outcome="length"}': 0,
            'repartee_worker_responses_total{outcome="lost"}': 0,
            "repartee_responses_live": 0,
        }


def test_what_stops_the_process_before_it_serves_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPARTEE_REDIS_URL", f"unix://{tmp_path}/none.sock")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\x00\x00\x00")
    for path in (tmp_path / "no.gguf", cut):
        assert main(["--model", str(path)]) == 2
        complaint = capsys.readouterr().err
        assert str(path) in complaint and len(complaint.splitlines()) == 1
    with pytest.raises(SystemExit) as caught:
        main(["--model", str(cut), "--modell", "x"])
    assert caught.value.code == 2 and "--modell" in capsys.readouterr().err
    monkeypatch.setenv("REPARTEE_REDIS_URL", "")
    assert main(["--model", str(cut)]) == 2
    assert "REPARTEE_REDIS_URL" in capsys.readouterr().err
