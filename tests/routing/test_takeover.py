"""Answers that outlive their workers: taken over, whole, with one end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest
import redis as redis_module
from redis.asyncio import Redis

from app.routing import listeners
from app.routing.leases import Leases
from engine.contract import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TakenOver,
    event_from_wire,
    keys,
    lease,
)
from engine.worker import adoption
from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.redis_server import RedisServer
from tests.spine import (
    collect,
    make_request,
    running_client,
    running_worker,
    text_of,
    until,
    worker_process,
)

TEXT = " ".join(str(number) for number in range(300))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead workers are found a second sooner."""
    monkeypatch.setattr(keys, "WORKER_TTL_S", 2)


def script(**fields: Any) -> str:
    return "!json " + json.dumps(fields)


async def read_some(stream: Any, num_events: int) -> list[Event]:
    return [await anext(stream) for _ in range(num_events)]


def log_of(outside: redis_module.Redis, request_id: str) -> list[Event]:
    entries = outside.xrange(keys.log(request_id))
    return [event_from_wire(json.loads(fields["e"])) for _, fields in entries]


def assert_answer(events: list[Event], text: str = TEXT) -> Finished:
    """Accepted once and first, the text, one terminal event, tokens counted once."""
    assert [isinstance(event, Accepted) for event in events] == [True] + [False] * (len(events) - 1)
    assert [isinstance(event, Finished | Failed) for event in events].index(True) == (
        len(events) - 1
    )
    final = events[-1]
    assert isinstance(final, Finished), final
    assert text_of(events) == text
    assert final.usage.completion_tokens == sum(getattr(e, "num_tokens", 0) for e in events)
    return final


async def test_another_worker_goes_on_where_a_killed_one_stopped(
    redis_url: str, redis_server: RedisServer
) -> None:
    options = ("--rate", "100", "--worker-id", "w1", "--max-running", "1")
    with worker_process(redis_url, *options) as process:
        async with (
            running_client(redis_url, "g1") as first,
            running_client(redis_url, "g2") as second,
        ):
            await until(lambda: first.ready() and second.ready())
            stream = await first.submit(make_request(script(text=TEXT)))
            untouched = await first.submit(make_request(script(text=TEXT)))
            assert isinstance(await anext(untouched), Accepted), "it waits its turn"
            await untouched.close()
            other = await second.attach(stream.request_id)
            heads = [await read_some(stream, 5), await read_some(other, 5)]
            killed_at = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            async with running_worker(redis_url, FakeEngine(rate=3000), worker_id="w2"):
                answers = [heads[0] + await collect(stream), heads[1] + await collect(other)]
                assert time.monotonic() - killed_at < 8
                for answer in answers:
                    final = assert_answer(answer)
                    assert final.epoch == 2 and final.reason is FinishReason.STOP
                with redis_server.client() as outside:
                    # Nobody listened to this one; it went on all the same.
                    await until(
                        lambda: isinstance(log_of(outside, untouched.request_id)[-1], Finished)
                    )
                    events = log_of(outside, untouched.request_id)
                    assert [event.seq for event in events] == list(range(len(events)))
                    assert sum(isinstance(event, TakenOver) for event in events) == 1
                    assert_answer([e for e in events if not isinstance(e, TakenOver)])
                    await until(lambda: not outside.smembers(keys.owned("w2")))
                    assert not outside.smembers(keys.owned("w1"))
                    assert not outside.keys("rp:lease:*")
                late = await collect(await second.attach(stream.request_id))
                assert text_of(late) == TEXT


async def test_a_worker_that_never_read_the_request(redis_url: str) -> None:
    with worker_process(redis_url) as process:
        async with running_client(redis_url) as client:
            await until(client.ready)
            os.kill(process.pid, signal.SIGKILL)
            stream = await client.submit(make_request(script(text=TEXT)))
            async with running_worker(redis_url):
                assert_answer(await collect(stream, 8))


async def test_a_frozen_process_is_refused_when_it_wakes(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Whoever woke up and whoever took over never both reach a listener."""
    with worker_process(redis_url, "--rate", "100", "--worker-id", "w1") as process:
        async with (
            running_client(redis_url, "g1") as client,
            running_client(redis_url, "g2") as other,
        ):
            await until(lambda: client.ready() and other.ready())
            stream = await client.submit(make_request(script(text=TEXT)))
            copy = await other.attach(stream.request_id)
            head = await read_some(stream, 5)
            os.kill(process.pid, signal.SIGSTOP)
            async with running_worker(redis_url, FakeEngine(rate=60), worker_id="w2"):
                head += await read_some(stream, 30)
                os.kill(process.pid, signal.SIGCONT)
                for _ in range(3):
                    await until(lambda: len(client.workers()) == 2)
                assert_answer(head + await collect(stream))
                assert_answer(await collect(copy))
                metrics = 'repartee_worker_responses_total{outcome="lost"}'
                await until(
                    lambda: any(
                        state.worker_id == "w1" and state.metrics[metrics] == 1
                        for state in client.workers()
                    )
                )
                with redis_server.client() as outside:
                    epochs = [event.epoch for event in log_of(outside, stream.request_id)]
                    assert epochs == sorted(epochs) and epochs[-1] == 2


async def test_a_worker_that_says_it_is_gone_is_followed_at_once(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "WORKER_TTL_S", 600)
    with worker_process(redis_url, "--rate", "100", "--worker-id", "w1") as process:
        async with running_client(redis_url) as client:
            await until(client.ready)
            stream = await client.submit(make_request(script(text=TEXT)))
            head = await read_some(stream, 5)
            process.kill()
            process.wait()
            with redis_server.client() as outside:
                outside.set(keys.worker("w1"), keys.WORKER_GONE, ex=60)
            async with running_worker(redis_url, FakeEngine(rate=3000)):
                assert_answer(head + await collect(stream, 5))


async def test_what_outlives_the_grace_goes_on_elsewhere(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A worker is drained in the middle of answers; nobody waits for its heartbeat to lapse."""
    options = ("--rate", "100", "--grace", "0.3", "--worker-id", "w1")
    with worker_process(redis_url, *options) as process:
        async with (
            running_client(redis_url, "g1") as client,
            running_client(redis_url, "g2") as other,
        ):
            await until(lambda: client.ready() and other.ready())
            streams = [await client.submit(make_request(script(text=TEXT))) for _ in range(4)]
            copy = await other.attach(streams[0].request_id)
            heads = [await read_some(stream, 5) for stream in streams]
            async with running_worker(redis_url, FakeEngine(rate=3000), worker_id="w2"):
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 5) == 0
                for head, stream in zip(heads, streams, strict=True):
                    assert_answer(head + await collect(stream))
                assert_answer(await collect(copy))
                with redis_server.client() as outside:
                    assert not outside.smembers(keys.owned(keys.NOBODY))


async def test_what_reaches_a_draining_worker_is_passed_on(redis_url: str) -> None:
    class Slow(FakeEngine):
        """Keeps its worker from ending."""

    async with running_client(redis_url) as client:
        draining = Worker(Slow(rate=20), redis_url, grace_s=60, worker_id="w1")
        task = asyncio.create_task(draining.run())
        await until(client.ready)
        busy = await client.submit(make_request(script(text="a b c", delay_ms=60_000)))
        await anext(busy)
        draining.stop()
        stream = await client.submit(make_request(script(text=TEXT)))
        async with running_worker(redis_url, worker_id="w2"):
            assert_answer(await collect(stream))
            draining.stop()
            await task
            await client.cancel(busy.request_id)
            assert isinstance((await collect(busy))[-1], Finished)


@pytest.mark.parametrize("grace_s", [0.0, 60.0], ids=["leaves at once", "stays"])
async def test_what_a_worker_gives_away_is_not_given_back_to_it(
    redis_url: str,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    grace_s: float,
) -> None:
    """A gateway has heard nothing of its leaving yet, and likes it for what it holds."""
    async with running_client(redis_url) as client:
        leaving = Worker(FakeEngine(rate=50), redis_url, grace_s=grace_s, worker_id="w1")
        task = asyncio.create_task(leaving.run())
        await until(client.ready)
        stream = await client.submit(make_request(script(text=TEXT), conversation_id="c"))
        head = await read_some(stream, 3)
        async with running_worker(redis_url, FakeEngine(rate=3000), worker_id="w2"):
            await until(lambda: len(client.workers()) == 2)
            # Nobody beats or asks by itself from here on.
            monkeypatch.setattr(keys, "WORKER_BEAT_S", 60.0)
            leaving.stop()
            if grace_s:
                stream = await client.submit(make_request(script(text=TEXT), conversation_id="c"))
                head = []
            assert_answer(head + await collect(stream, 5))
            with redis_server.client() as outside:
                events = log_of(outside, stream.request_id)
            assert sum(isinstance(event, TakenOver) for event in events) == 1
            leaving.stop()
            await task


async def test_with_no_worker_left_it_waits_until_its_deadline(
    redis_url: str, redis_server: RedisServer
) -> None:
    with worker_process(redis_url, "--rate", "50") as process:
        async with running_client(redis_url) as client:
            await until(client.ready)
            request = make_request(script(text=TEXT), deadline_at=time.time() + 5)
            stream = await client.submit(request)
            head = await read_some(stream, 5)
            os.kill(process.pid, signal.SIGKILL)
            answer = head + await collect(stream, 10)
            assert time.time() > request.deadline_at
            final = answer[-1]
            assert isinstance(final, Failed) and final.error.code == "no_worker"
            assert final.error.retryable and final.error.retry_after_ms
            assert final.usage is not None and final.usage.prompt_tokens
            with redis_server.client() as outside:
                assert not outside.keys("rp:lease:*")


async def test_a_response_that_kills_its_workers_is_given_up(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with running_worker(redis_url, FakeEngine(rate=50)), running_client(redis_url) as client:
        await until(client.ready)
        with redis_server.client() as outside:
            outside.zadd(keys.OWNERS, {"dead": time.time()})
            outside.set(keys.worker("dead"), keys.WORKER_GONE)
            stream = await client.submit(make_request(script(text=TEXT, stall_after=9)))
            key = keys.lease(stream.request_id)
            await until(
                lambda: (
                    sum(
                        event.num_tokens
                        for event in log_of(outside, stream.request_id)
                        if isinstance(event, Delta)
                    )
                    == 9
                )
            )

            async def die() -> None:
                # The gateway takes the old record off last.
                await until(lambda: not outside.sismember(keys.owned("dead"), stream.request_id))
                outside.sadd(keys.owned("dead"), stream.request_id)
                outside.hset(key, "w", "dead")

            for deaths in range(1, lease.MAX_DEATHS + 1):
                await die()
                await until(lambda wanted=deaths: outside.hget(key, "n") == str(wanted))
            # Whoever gets further starts the count again.
            last = keys.cursor_from_entry_id(last_id(outside, stream))
            delta = Delta(stream.request_id, last.epoch, last.seq + 1, "", 0)
            place = keys.log_entry_id(last.epoch, last.seq + 1)
            outside.xadd(keys.log(stream.request_id), {"e": orjson.dumps(delta.to_wire())}, place)
            for deaths in range(1, lease.MAX_DEATHS + 1):
                await die()
                await until(lambda wanted=deaths: outside.hget(key, "n") == str(wanted))
            await die()
            final = (await collect(stream))[-1]
            assert isinstance(final, Failed) and final.error.code == "workers_died"
            assert not outside.exists(key)


async def test_cancel_before_during_and_after_a_takeover(
    redis_url: str, redis_server: RedisServer
) -> None:
    with worker_process(redis_url, "--rate", "50") as process:
        async with (
            running_client(redis_url, "g1") as client,
            running_client(redis_url, "g2") as other,
        ):
            await until(lambda: client.ready() and other.ready())
            streams = [await client.submit(make_request(script(text=TEXT))) for _ in range(3)]
            heads = [await read_some(stream, 3) for stream in streams]
            os.kill(process.pid, signal.SIGKILL)
            # Before anybody knows: acknowledged once the worker is found dead.
            await other.cancel(streams[0].request_id)
            final = (heads[0] + await collect(streams[0], 6))[-1]
            assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED
            assert final.usage.prompt_tokens
            # While it waits for a worker: at once.
            await until(lambda: not other.workers())
            await other.cancel(streams[1].request_id)
            final = (heads[1] + await collect(streams[1], 3))[-1]
            assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED
            async with running_worker(redis_url, FakeEngine(rate=20)):
                await read_some(streams[2], 3)
                await other.cancel(streams[2].request_id)
                final = (await collect(streams[2], 3))[-1]
                assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED
                assert final.epoch == 2
            for stream in streams:
                await other.cancel(stream.request_id)
            with redis_server.client() as outside:
                assert not outside.keys("rp:lease:*")


async def test_a_cancel_that_comes_before_the_resume(
    redis_url: str, redis_server: RedisServer
) -> None:
    request = make_request(script(text=TEXT), sampling=SamplingParams(seed=1))
    async with running_worker(redis_url, worker_id="w1"):
        with redis_server.client() as outside:
            give(outside, request, "w1", c="1")
            tell(outside, "w1", {"t": "resume", "id": request.request_id})
            await until(lambda: log_of(outside, request.request_id))
            (final,) = log_of(outside, request.request_id)
            assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED


async def test_a_lost_command_is_made_good_from_the_record(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway died between the lease and the command."""
    monkeypatch.setattr(adoption, "LOOK_S", 0.1)
    request = make_request(script(text=TEXT), sampling=SamplingParams(seed=1))
    async with running_worker(redis_url, worker_id="w1"), running_client(redis_url) as client:
        await until(client.ready)
        with redis_server.client() as outside:
            give(outside, request, "w1")
            outside.sadd(keys.owned("w1"), request.request_id)
            stream = await client.attach(request.request_id)
            assert_answer(await collect(stream))


async def test_an_answer_with_a_hole_in_its_log_ends_clearly(
    redis_url: str, redis_server: RedisServer
) -> None:
    request = make_request(script(text=TEXT), sampling=SamplingParams(seed=1))
    async with running_worker(redis_url, worker_id="w1"):
        with redis_server.client() as outside:
            give(outside, request, "w1", e=2)
            for event in (
                Delta(request.request_id, 1, 4, "lost the beginning", 4),
                TakenOver(request.request_id, 2, 5, "w1"),
            ):
                body = orjson.dumps(event.to_wire())
                outside.xadd(
                    keys.log(request.request_id), {"e": body}, f"{event.epoch}-{event.seq}"
                )
            tell(outside, "w1", {"t": "resume", "id": request.request_id})
            final = await until(
                lambda: (
                    isinstance(log_of(outside, request.request_id)[-1], Failed)
                    and log_of(outside, request.request_id)[-1]
                )
            )
            assert final.error.code == "answer_lost" and (final.epoch, final.seq) == (2, 6)


async def test_stop_strings_and_limits_hold_across_workers(any_redis_url: str) -> None:
    redis_url = any_redis_url
    cases = [
        (SamplingParams(stop=(" 25 26",)), TEXT[: TEXT.index(" 25 26")], FinishReason.STOP),
        (SamplingParams(max_tokens=40), None, FinishReason.LENGTH),
    ]
    for sampling, text, reason in cases:
        request = make_request(script(text=TEXT), sampling=sampling)
        async with running_client(redis_url) as client:
            undisturbed = None
            async with running_worker(redis_url):
                await until(client.ready)
                undisturbed = await collect(
                    await client.submit(replace(request, request_id=f"{request.request_id}_whole"))
                )
            first = Worker(FakeEngine(rate=60), redis_url, grace_s=0)
            task = asyncio.create_task(first.run())
            await until(client.ready)
            stream = await client.submit(request)
            head = await read_some(stream, 4)
            first.stop()
            await task
            async with running_worker(redis_url):
                final = assert_answer(head + await collect(stream), text_of(undisturbed))
                assert final.reason is reason
                assert text is None or text_of(undisturbed) == text


async def test_redis_that_lost_the_end_of_a_log_doubles_nothing(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A crash of Redis may take the last second; who goes on begins before what was shown."""
    with worker_process(redis_url, "--rate", "100", "--worker-id", "w1") as process:
        async with running_client(redis_url) as client:
            await until(client.ready)
            stream = await client.submit(make_request(script(text=TEXT)))
            head = await read_some(stream, 10)
            process.kill()
            process.wait()
            with redis_server.client() as outside:
                await until(
                    lambda: stream.cursor.seq == int(last_id(outside, stream).split("-")[1])
                )
                head += stream.drain_pending()
                body = outside.xrange(keys.log(stream.request_id), "-", "+", 4)
                outside.delete(keys.log(stream.request_id))
                for entry_id, fields in body:
                    outside.xadd(keys.log(stream.request_id), fields, entry_id)
            async with running_worker(redis_url, FakeEngine(rate=3000)):
                assert_text = text_of(head + await collect(stream, 8))
                assert assert_text == TEXT


async def test_an_evicted_log_is_made_good_from_the_workers_memory(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "SILENT_S", 0.3)
    async with (
        running_worker(redis_url, FakeEngine(rate=150)),
        running_client(redis_url, "g1") as client,
        running_client(redis_url, "g2") as other,
    ):
        await until(lambda: client.ready() and other.ready())
        stream = await client.submit(make_request(script(text=TEXT)))
        head = await read_some(stream, 10)
        with redis_server.client() as outside:
            outside.delete(keys.log(stream.request_id))
        late = await other.attach(stream.request_id)
        assert_answer(head + await collect(stream))
        assert_answer(await collect(late))


async def test_of_many_gateways_one_takes_over(any_redis_url: str) -> None:
    async with running_client(any_redis_url) as client:
        leases = [Leases(client._redis) for _ in range(20)]
        with redis_module.Redis.from_url(
            any_redis_url, protocol=2, decode_responses=True
        ) as outside:
            give(outside, make_request(request_id="r1"), "w1")
            outcomes = await asyncio.gather(
                *(each.take_over("r1", "w1", f"n{n}") for n, each in enumerate(leases))
            )
            taken = [worker for outcome, worker in outcomes if outcome == "taken"]
            assert len(taken) == 1
            assert all(worker == taken[0] for _, worker in outcomes)
            assert log_of(outside, "r1") == [TakenOver("r1", 2, 0, taken[0])]
            assert outside.ttl(keys.log("r1")) > 0


def last_id(outside: redis_module.Redis, stream: Any) -> str:
    return str(outside.xrevrange(keys.log(stream.request_id), count=1)[0][0])


def give(
    outside: redis_module.Redis, request: GenerateRequest, worker_id: str, **more: Any
) -> None:
    """A lease, as a gateway would have left it."""
    fields = {"w": worker_id, "e": 1, "d": request.deadline_at, **more}
    fields["r"] = orjson.dumps(request.to_wire())
    outside.hset(keys.lease(request.request_id), mapping=fields)
    outside.expire(keys.lease(request.request_id), 60)


def tell(outside: redis_module.Redis, worker_id: str, command: dict[str, Any]) -> None:
    outside.xadd(keys.inbox(worker_id), {"c": json.dumps(command)})


async def test_a_response_that_kills_each_worker_after_a_word_is_given_up_too(
    redis_url: str,
) -> None:
    async with Redis.from_url(redis_url) as redis:
        leases = Leases(redis)
        await redis.hset(keys.lease("r1"), mapping={"w": "w0", "e": 1, "r": "{}"})
        outcomes = []
        for number in range(lease.MAX_ALL_DEATHS + 1):
            outcome, _ = await leases.take_over("r1", f"w{number}", f"w{number + 1}")
            outcomes.append(outcome)
            epoch = int(await redis.hget(keys.lease("r1"), "e"))
            last = await redis.xrevrange(keys.log("r1"), count=1)
            seq = int(last[0][0].split(b"-")[1]) + 1
            delta = orjson.dumps(Delta("r1", epoch, seq, "word", 1).to_wire())
            await redis.xadd(keys.log("r1"), {"e": delta}, keys.log_entry_id(epoch, seq))
            if outcome == "taken":
                assert await redis.hget(keys.lease("r1"), "n") == b"1"
        assert outcomes == ["taken"] * lease.MAX_ALL_DEATHS + ["spent"]
