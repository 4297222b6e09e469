"""Answers while Redis, connections and workers fail."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest
import redis as redis_module

from app import redis_client
from app.routing import EngineClient
from app.routing import inbox as gateway_inbox
from engine.contract import Finished, Unavailable, keys
from engine.worker import inbox as worker_inbox
from tests.fakes.engine import FakeEngine
from tests.redis_server import RedisServer
from tests.spine import (
    assert_whole,
    collect,
    make_request,
    running_client,
    running_worker,
    text_of,
    until,
    worker_process,
)

TEXT = " ".join(str(number) for number in range(400))


def script(**fields: Any) -> str:
    return "!json " + json.dumps(fields)


async def read_some(stream: Any, num_events: int) -> list[Any]:
    return [await anext(stream) for _ in range(num_events)]


@pytest.mark.parametrize("kept", [True, False], ids=["with its data", "empty"])
async def test_redis_dies_and_returns_in_the_middle_of_answers(
    own_redis: RedisServer, forgetful_redis: RedisServer, kept: bool
) -> None:
    server = own_redis if kept else forgetful_redis
    async with (
        running_worker(server.url),
        running_client(server.url, "g1") as client,
        running_client(server.url, "g2") as other,
    ):
        await until(lambda: client.ready() and other.ready())
        content = script(text=TEXT, rate=300)
        streams = [await client.submit(make_request(content)) for _ in range(5)]
        heads = [await read_some(stream, 20) for stream in streams]
        server.kill()
        await asyncio.sleep(0.3)
        assert other.workers(), "nobody is judged while Redis is away"
        server.start()
        answers = [
            head + await collect(stream) for head, stream in zip(heads, streams, strict=True)
        ]
        for answer in answers:
            assert_whole(answer)
            assert text_of(answer) == TEXT and isinstance(answer[-1], Finished)
        # The log was made whole as well, and cancel works from the other gateway.
        again = await collect(await other.attach(streams[0].request_id))
        assert again == answers[0]
        await until(lambda: client.ready() and other.ready())
        stream = await client.submit(make_request(script(text="word ", repeat=2000, rate=50)))
        await read_some(stream, 3)
        await other.cancel(stream.request_id)
        assert isinstance((await collect(stream, 5))[-1], Finished)
        with server.client() as outside:
            assert all(outside.ttl(name) > 0 for name in outside.scan_iter("*"))


async def test_an_answer_that_ends_while_redis_is_away_still_arrives(
    forgetful_redis: RedisServer,
) -> None:
    async with running_worker(forgetful_redis.url), running_client(forgetful_redis.url) as client:
        await until(client.ready)
        stream = await client.submit(make_request(script(text=TEXT, rate=2000)))
        head = await read_some(stream, 5)
        forgetful_redis.kill()
        await asyncio.sleep(1.0)
        forgetful_redis.start()
        answer = head + await collect(stream)
        assert_whole(answer)
        assert text_of(answer) == TEXT


async def test_while_redis_is_away_calls_fail_in_bounded_time(own_redis: RedisServer) -> None:
    async with running_worker(own_redis.url), running_client(own_redis.url) as client:
        await until(client.ready)
        own_redis.kill()
        started = time.monotonic()
        for call in (client.submit(make_request()), client.attach("r"), client.cancel("r")):
            with pytest.raises(Unavailable):
                await call
        assert time.monotonic() - started < 5
        await until(lambda: not client.ready(), 6)
        own_redis.start()
        await until(client.ready)
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_connections_are_killed_all_the_time(
    redis_url: str, redis_server: RedisServer
) -> None:
    async def kill(outside: redis_module.Redis) -> None:
        while True:
            for connection in await asyncio.to_thread(outside.client_list):
                if connection["name"].startswith("repartee-"):
                    # All connections of a Unix socket have one address.
                    await asyncio.to_thread(outside.client_kill_filter, _id=connection["id"])
            await asyncio.sleep(0.05)

    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        with redis_server.client() as outside:
            killer = asyncio.create_task(kill(outside))
            answers = []
            for _ in range(6):
                try:
                    streams = [
                        await client.submit(make_request(script(text=TEXT, rate=2000)))
                        for _ in range(3)
                    ]
                except Unavailable:
                    # Its submit was cut twice: refused clearly, and cancelled.
                    continue
                answers += [await collect(stream) for stream in streams]
            killer.cancel()
        assert answers
        for answer in answers:
            assert_whole(answer)
            assert text_of(answer) == TEXT
        await until(lambda: client.ready() and client.workers()[0].num_running == 0)


async def test_a_stuck_engine_is_not_ready_and_gets_nothing(redis_url: str) -> None:
    content = script(text="a b c d", freeze_after=2, freeze_ms=5000)
    with worker_process(redis_url):
        async with running_client(redis_url) as client:
            await until(client.ready)
            stream = await client.submit(make_request(content))
            frozen_at = time.monotonic()
            await until(lambda: not client.ready(), 6)
            assert time.monotonic() - frozen_at < 5
            assert client.health()["workers"][0]["status"] == "stalled"
            with pytest.raises(Unavailable):
                await client.submit(make_request())
            assert isinstance((await collect(stream, 10))[-1], Finished)
            await until(client.ready)


async def test_a_draining_worker_finishes_and_leaves(redis_url: str) -> None:
    with worker_process(redis_url, "--rate", "200") as process:
        async with running_client(redis_url) as client:
            await until(client.ready)
            streams = [await client.submit(make_request(script(text=TEXT))) for _ in range(10)]
            await anext(streams[0])
            process.send_signal(signal.SIGTERM)
            await until(lambda: not client.ready(), 3)
            assert [state["status"] for state in client.health()["workers"]] == ["draining"]
            with pytest.raises(Unavailable) as caught:
                await client.submit(make_request())
            assert caught.value.retry_after_ms
            for stream in streams:
                assert isinstance((await collect(stream))[-1], Finished)
            assert await asyncio.to_thread(process.wait, 5) == 0
            await until(lambda: not client.workers())


async def test_clients_that_vanish_leave_nothing_behind(redis_url: str) -> None:
    """A gateway dies with answers under way, five times; then one request is served."""
    engine = FakeEngine(rate=2000, max_running=50)
    async with running_worker(redis_url, engine):
        for number in range(5):
            lost = EngineClient(redis_url, f"lost{number}")
            await lost.start()
            await until(lost.ready)
            content = script(text="word ", repeat=20)
            await asyncio.gather(*(lost.submit(make_request(content)) for _ in range(40)))
            # Cut off, as a killed process is: nothing is cancelled.
            await lost.close()
        async with running_client(redis_url, "g") as client:
            await until(client.ready)
            events = await collect(await client.submit(make_request()))
            assert isinstance(events[-1], Finished)
            await until(lambda: client.workers()[0].num_running == 0)
            state = client.workers()[0]
            assert state.num_waiting == state.used_blocks == 0


async def test_a_quiet_reader_stays_connected(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than block time and command timeout together, without reconnecting."""
    monkeypatch.setattr(redis_client, "COMMAND_TIMEOUT_S", 0.5)
    monkeypatch.setattr(gateway_inbox, "BLOCK_MS", 500)
    monkeypatch.setattr(worker_inbox, "BLOCK_MS", 500)

    def readers(outside: redis_module.Redis) -> set[str]:
        return {
            connection["id"]
            for connection in outside.client_list()
            if connection["name"].endswith("-reader") or "worker" in connection["name"]
        }

    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        await collect(await client.submit(make_request()))
        with redis_server.client() as outside:
            before = readers(outside)
            await asyncio.sleep(2.5)
            assert readers(outside) == before
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_unknown_cancels_and_broken_commands_leave_no_trace(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with (
        running_worker(redis_url, worker_id="w1") as worker,
        running_client(redis_url) as client,
    ):
        await until(client.ready)
        mistyped = {**make_request().to_wire(), "deadline_at": "soon"}
        bodies = [
            "",
            "null",
            "[]",
            "{",
            '{"t":"no.such"}',
            '{"t":"cancel"}',
            '{"t":"submit"}',
            '{"t":"submit","request":{"id":"x"}}',
            '{"t":"cancel","id":5}',
            '{"t":"cancel","id":["x"]}',
            '{"t":"listen","id":{},"gateway":[]}',
            json.dumps({"t": "submit", "request": {"id": ["x"], "model": "m"}}),
            json.dumps({"t": "submit", "request": mistyped}),
            "\ud83d".encode("utf-8", "surrogatepass"),
        ]
        with redis_server.client() as outside:
            for body in bodies:
                outside.xadd(keys.inbox("w1"), {"c": body})
            outside.xadd(keys.inbox("w1"), {"other": "field"})
            live = await client.submit(make_request(script(text=TEXT, rate=1000)))
            pipe = outside.pipeline(transaction=False)
            for number in range(10_000):
                body = json.dumps({"t": "cancel", "id": f"r{number}"})
                pipe.xadd(keys.inbox("w1"), {"c": body})
            await asyncio.to_thread(pipe.execute)
            answer = await collect(live)
            assert text_of(answer) == TEXT and isinstance(answer[-1], Finished)
            await until(lambda: client.workers()[0].metrics["repartee_cancels_total"] == 10_002)
            assert client.workers()[0].metrics["repartee_unreadable_commands_total"] == 13
            assert worker._publisher.num_live == 0
            assert worker._requests.is_idle and not worker._tasks
            assert not any("r9999" in name for name in outside.scan_iter("*"))
