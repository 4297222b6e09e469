"""Answers while Redis is slow, full, read-only, or can't write its file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_module

from app.routing import EngineClient, listeners
from engine.contract import (
    DeadlineExceeded,
    Failed,
    Finished,
    SamplingParams,
    Unavailable,
    keys,
)
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
)

TEXT = " ".join(str(number) for number in range(300))


def script(**fields: Any) -> str:
    return "!json " + json.dumps(fields)


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """No memory for anything more."""
    with server.client() as outside:
        outside.config_set("maxmemory", 1)
        try:
            yield
        finally:
            outside.config_set("maxmemory", 0)


@contextmanager
def read_only(server: RedisServer) -> Iterator[None]:
    """A replica, as a former master is after a failover."""
    with server.client() as outside:
        outside.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            outside.replicaof("no", "one")


@contextmanager
def full_disk(server: RedisServer) -> Iterator[None]:
    """Its append-only file can't grow."""
    most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, most[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, most)


@pytest.mark.parametrize(
    ("refusing", "said"),
    [(full, "maxmemory"), (read_only, "read only|READONLY"), (full_disk, "MISCONF")],
    ids=["full", "read-only", "full disk"],
)
async def test_writes_are_refused_for_a_while(
    own_redis: RedisServer, refusing: Callable[[RedisServer], Any], said: str
) -> None:
    """Answers wait in the worker's memory, readiness says why, and all goes on afterwards."""
    async with (
        running_worker(own_redis.url, FakeEngine(rate=150)),
        running_client(own_redis.url) as client,
    ):
        await until(client.ready)
        streams = [await client.submit(make_request(script(text=TEXT))) for _ in range(3)]
        heads = [[await anext(stream) for _ in range(10)] for stream in streams]
        with refusing(own_redis):
            await until(lambda: client.health()["redis"]["refuses_writes"])
            assert_matches(client, said)
            assert not client.ready()
            with pytest.raises(Unavailable) as caught:
                await client.submit(make_request())
            assert caught.value.code == "redis_unavailable" and caught.value.retry_after_ms
            await asyncio.sleep(1.0)
        for head, stream in zip(heads, streams, strict=True):
            answer = head + await collect(stream)
            assert text_of(answer) == TEXT and isinstance(answer[-1], Finished)
        await until(client.ready)
        assert client.health()["redis"]["refuses_writes"] is None
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


def assert_matches(client: EngineClient, said: str) -> None:
    refusal = client.health()["redis"]["refuses_writes"]
    assert any(word in refusal for word in said.split("|")), refusal


async def test_a_blocked_redis_costs_time_and_nothing_else(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Nobody is taken for dead because Redis answers late."""
    async with (
        running_worker(redis_url, FakeEngine(rate=150)),
        running_client(redis_url) as client,
    ):
        await until(client.ready)
        stream = await client.submit(make_request(script(text=TEXT)))
        head = [await anext(stream) for _ in range(5)]
        with redis_server.client() as outside:
            for blocked_ms in (700, 2500):
                outside.client_pause(blocked_ms)
                await asyncio.sleep(blocked_ms / 1000)
        answer = head + await collect(stream)
        assert_whole(answer)
        assert text_of(answer) == TEXT
        assert {event.epoch for event in answer} == {1}


async def test_a_redis_that_is_busy_with_a_script_is_waited_for(own_redis: RedisServer) -> None:
    """It answers everything else with BUSY meanwhile."""
    async with (
        running_worker(own_redis.url, FakeEngine(rate=150)),
        running_client(own_redis.url) as client,
    ):
        await until(client.ready)
        stream = await client.submit(make_request(script(text=TEXT)))
        head = [await anext(stream) for _ in range(5)]
        with own_redis.client() as outside, own_redis.client() as killer:
            outside.config_set("lua-time-limit", 50)
            blocking = asyncio.create_task(asyncio.to_thread(_block_by_script, outside))
            await until(lambda: _is_busy(killer))
            with pytest.raises(Unavailable) as caught:
                await client.submit(make_request())
            assert caught.value.code == "redis_unavailable" and caught.value.retry_after_ms
            await asyncio.sleep(1.0)
            killer.script_kill()
            await blocking
        answer = head + await collect(stream)
        assert_whole(answer)
        assert text_of(answer) == TEXT
        await until(client.ready)


def _block_by_script(outside: redis_module.Redis) -> None:
    with contextlib.suppress(redis_module.ResponseError):
        outside.eval("while true do end", 0)


def _is_busy(outside: redis_module.Redis) -> bool:
    try:
        outside.ping()
    except redis_module.ResponseError as error:
        return "BUSY" in str(error)
    return False


async def test_a_redis_that_loads_is_waited_for(own_redis: RedisServer) -> None:
    with own_redis.client() as outside:
        pipe = outside.pipeline(transaction=False)
        for number in range(3000):
            pipe.set(f"other{number}", "x" * 100)
        pipe.execute()
        outside.bgrewriteaof()
        await until(lambda: not outside.info("persistence")["aof_rewrite_in_progress"])
    async with (
        running_worker(own_redis.url, FakeEngine(rate=150)),
        running_client(own_redis.url) as client,
    ):
        await until(client.ready)
        stream = await client.submit(make_request(script(text=TEXT)))
        head = [await anext(stream) for _ in range(5)]
        own_redis.kill()
        # Half a millisecond for each key.
        own_redis.options = ("--key-load-delay", "500")
        own_redis.options += ("--loading-process-events-interval-bytes", "1024")
        starting = asyncio.create_task(asyncio.to_thread(own_redis.start))
        with own_redis.client() as outside:
            await until(lambda: _is_loading(outside))
        answer = head + await collect(stream)
        assert_whole(answer)
        assert text_of(answer) == TEXT
        await starting


def _is_loading(outside: redis_module.Redis) -> bool:
    try:
        outside.ping()
    except redis_module.BusyLoadingError:
        return True
    except redis_module.ConnectionError:
        return False
    return False


async def test_nothing_hangs_when_redis_never_returns(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "LAST_GRACE_S", 0.5)
    async with running_worker(own_redis.url), running_client(own_redis.url) as client:
        await until(client.ready)
        request = make_request(script(text=TEXT, rate=20), deadline_at=time.time() + 2)
        stream = await client.submit(request)
        head = [await anext(stream) for _ in range(3)]
        own_redis.kill()
        answer = head + await collect(stream, 8)
        assert_whole(answer)
        final = answer[-1]
        assert isinstance(final, Failed) and isinstance(final.error, DeadlineExceeded)
        own_redis.start()


async def test_the_walls_clock_may_be_set(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    async with (
        running_worker(redis_url, FakeEngine(rate=150)),
        running_client(redis_url) as client,
    ):
        await until(client.ready)
        stream = await client.submit(
            make_request(script(text=TEXT), sampling=SamplingParams(seed=1))
        )
        head = [await anext(stream) for _ in range(5)]
        for step_s in (7200.0, -7200.0):
            monkeypatch.setattr(time, "time", lambda step_s=step_s: real() + step_s)
            head += [await anext(stream) for _ in range(10)]
        answer = head + await collect(stream)
        assert_whole(answer)
        assert text_of(answer) == TEXT
        await until(lambda: client.workers() and client.ready())


async def test_leases_that_redis_lost_are_written_again(forgetful_redis: RedisServer) -> None:
    """After a Redis without its data, a worker's death is survived as before."""
    async with running_client(forgetful_redis.url) as client:
        async with running_worker(forgetful_redis.url, FakeEngine(rate=60), grace_s=0):
            await until(client.ready)
            stream = await client.submit(make_request(script(text=TEXT)))
            head = [await anext(stream) for _ in range(5)]
            forgetful_redis.kill()
            forgetful_redis.start()
            with forgetful_redis.client() as outside:
                await until(lambda: outside.exists(keys.lease(stream.request_id)))
        async with running_worker(forgetful_redis.url):
            answer = head + await collect(stream)
            assert text_of(answer) == TEXT and isinstance(answer[-1], Finished)
