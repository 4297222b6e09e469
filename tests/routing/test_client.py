"""A request's way to a worker and back, over a real Redis."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
import redis as redis_module

from engine.contract import (
    Accepted,
    ContextLengthExceeded,
    Cursor,
    DeadlineExceeded,
    Delta,
    EngineFault,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    NotFound,
    Overloaded,
    SamplingParams,
    Submit,
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

LONG = "!json " + json.dumps({"text": "word ", "repeat": 2000, "rate": 100})


def script(**fields: Any) -> str:
    """A message that tells the fake engine what to do."""
    return "!json " + json.dumps(fields)


async def test_an_answer_arrives_whole(any_redis_url: str) -> None:
    text = "Hello, wörld: 日本語 🐕.\n" * 40
    content = "!text " + base64.b64encode(text.encode()).decode()
    async with running_worker(any_redis_url), running_client(any_redis_url) as client:
        await until(client.ready)
        events = await collect(await client.submit(make_request(content)))
    assert isinstance(events[0], Accepted)
    assert_whole(events)
    assert text_of(events) == text
    final = events[-1]
    assert isinstance(final, Finished) and final.reason is FinishReason.STOP
    assert final.usage.completion_tokens == sum(getattr(e, "num_tokens", 0) for e in events)


async def test_many_answers_at_once_are_not_mixed(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)

        async def ask(number: int) -> tuple[str, str]:
            text = f"<{number}> " * 50
            content = "!text " + base64.b64encode(text.encode()).decode()
            return text, text_of(await collect(await client.submit(make_request(content))))

        for wanted, got in await asyncio.gather(*(ask(number) for number in range(50))):
            assert got == wanted


async def test_sampling_reaches_the_engine(redis_url: str) -> None:
    content = script(text="one two three END four")
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        stopped = await client.submit(
            make_request(content, sampling=SamplingParams(stop=(" END",)))
        )
        assert text_of(await collect(stopped)) == "one two three"
        cut = await client.submit(make_request(content, sampling=SamplingParams(max_tokens=2)))
        final = (await collect(cut))[-1]
        assert isinstance(final, Finished) and final.reason is FinishReason.LENGTH
        assert final.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (
            script(refuse={"class": "InvalidRequest", "message": "no"}),
            InvalidRequest,
            "invalid_value",
        ),
        ("word " * 9000, ContextLengthExceeded, "context_length_exceeded"),
        (script(text="a b c d", fail_after=2), EngineFault, "engine_fault"),
        (script(text="a b c d", fault_after=2), EngineFault, "engine_fault"),
    ],
)
async def test_a_failing_request_fails_alone(
    redis_url: str, content: str, kind: type, code: str
) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        events = await collect(await client.submit(make_request(content)))
        assert_whole(events)
        final = events[-1]
        assert isinstance(final, Failed) and type(final.error) is kind
        assert final.error.code == code
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_half_a_surrogate_pair_is_refused_before_it_is_sent(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        with pytest.raises(InvalidRequest) as caught:
            await client.submit(make_request("x\ud83d"))
        assert caught.value.param == "messages"
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_a_request_past_its_deadline_ends(redis_url: str) -> None:
    content = script(text="a b c d", stall_after=2)
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        request = make_request(content, deadline_at=time.time() + 0.3)
        final = (await collect(await client.submit(request)))[-1]
        assert isinstance(final, Failed) and isinstance(final.error, DeadlineExceeded)
        late = make_request(deadline_at=time.time() - 1)
        final = (await collect(await client.submit(late)))[-1]
        assert isinstance(final, Failed) and isinstance(final.error, DeadlineExceeded)
        await until(lambda: client.workers()[0].num_running == 0)


async def test_models_and_their_absence(redis_url: str) -> None:
    async with running_client(redis_url) as client:
        assert client.cards() == [] and not client.ready()
        for model in (None, "repartee-fake"):
            with pytest.raises(Unavailable):
                client.card(model)
        with pytest.raises(Unavailable):
            await client.submit(make_request())
        async with running_worker(redis_url), running_worker(redis_url, FakeEngine("another")):
            await until(lambda: len(client.cards()) == 2)
            assert client.card(None).id == "another"
            assert client.card("repartee-fake").context_window == 8192
            with pytest.raises(NotFound, match="'nope' does not exist"):
                client.card("nope")
            await collect(await client.submit(make_request()))
            with pytest.raises(Unavailable):
                await client.submit(make_request(model="nope"))
        await until(lambda: not client.cards())
        with pytest.raises(Unavailable):
            client.card("another")


async def test_a_full_queue_is_refused_and_recovers(redis_url: str) -> None:
    engine = FakeEngine(max_running=1)
    async with (
        running_worker(redis_url, engine),
        running_client(redis_url, max_waiting=5) as client,
    ):
        await until(client.ready)
        streams = [await client.submit(make_request(LONG)) for _ in range(5)]
        with pytest.raises(Overloaded) as caught:
            await client.submit(make_request())
        assert caught.value.retry_after_ms
        for stream in streams:
            await client.cancel(stream.request_id)
            await collect(stream)

        async def accepted() -> bool:
            try:
                return bool(await collect(await client.submit(make_request())))
            except Overloaded:
                return False

        await until(accepted)


async def test_a_burst_spreads_over_equal_workers(redis_url: str) -> None:
    async with (
        running_worker(redis_url, FakeEngine(), worker_id="w1"),
        running_worker(redis_url, FakeEngine(), worker_id="w2"),
        running_client(redis_url) as client,
    ):
        await until(lambda: len(client.workers()) == 2)
        streams = [await client.submit(make_request(LONG)) for _ in range(20)]
        by_worker = [stream.worker_id for stream in streams]
        assert by_worker.count("w1") == by_worker.count("w2") == 10
        for stream in streams:
            await client.cancel(stream.request_id)
            await collect(stream)


async def test_a_listener_that_reads_late_loses_nothing(redis_url: str) -> None:
    content = script(text="word ", repeat=2000)
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        stream = await client.submit(make_request(content))
        await until(lambda: stream.is_ended)
        events = stream.drain_pending()
        assert text_of(events) == "word " * 2000
        assert sum(event.num_tokens for event in events if isinstance(event, Delta)) == 4000
        assert isinstance(events[-1], Finished)
        assert await collect(stream) == []


async def test_closing_a_stream_does_not_cancel(redis_url: str) -> None:
    content = script(text="word ", repeat=50, rate=500)
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        stream = await client.submit(make_request(content))
        await anext(stream)
        await stream.close()
        assert await collect(stream) == []
        events = await collect(await client.attach(stream.request_id))
        assert_whole(events)
        assert text_of(events) == "word " * 50


async def test_attaching_at_any_moment_gives_no_gap_and_no_double(redis_url: str) -> None:
    text = " ".join(str(number) for number in range(300))
    content = script(text=text, rate=1500)
    async with (
        running_worker(redis_url),
        running_client(redis_url, "g1") as first,
        running_client(redis_url, "g2") as second,
    ):
        await until(lambda: first.ready() and second.ready())
        stream = await first.submit(make_request(content))
        whole = asyncio.create_task(collect(stream))
        readers: list[asyncio.Task[list[Any]]] = []
        for number in range(20):
            client = (first, second)[number % 2]
            readers.append(asyncio.create_task(collect(await client.attach(stream.request_id))))
            await asyncio.sleep(0.03)
        expected = await whole
        assert text_of(expected) == text
        for reader in readers:
            assert await reader == expected
        late = await second.attach(stream.request_id)
        assert await collect(late) == expected


async def test_resuming_after_a_cursor(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        request = make_request(script(text="word ", repeat=40))
        expected = await collect(await client.submit(request))
        for place in range(len(expected)):
            cursor = Cursor(expected[place].epoch, expected[place].seq)
            rest = await collect(await client.attach(request.request_id, cursor))
            assert rest == expected[place + 1 :]


async def test_attaching_to_nothing(redis_url: str) -> None:
    async with running_client(redis_url) as client:
        with pytest.raises(NotFound) as caught:
            await client.attach("resp_never")
        assert caught.value.code == "response_not_found"


async def test_cancel_in_the_middle_and_from_another_gateway(redis_url: str) -> None:
    async with (
        running_worker(redis_url),
        running_client(redis_url, "g1") as first,
        running_client(redis_url, "g2") as second,
    ):
        await until(lambda: first.ready() and second.ready())
        for canceller in (first, second):
            stream = await first.submit(make_request(LONG))
            while not isinstance(await anext(stream), Delta):
                pass
            await canceller.cancel(stream.request_id)
            final = (await collect(stream, 2))[-1]
            assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED
            assert 0 < final.usage.completion_tokens < 2000
        await until(lambda: first.workers()[0].used_blocks == 0)


async def test_cancel_before_the_first_token(redis_url: str) -> None:
    """While it is tokenised, while it waits, and at once after the submit."""
    engine = FakeEngine(max_running=1)
    async with running_worker(redis_url, engine), running_client(redis_url) as client:
        await until(client.ready)
        running = await client.submit(make_request(LONG))
        assert isinstance(await anext(running), Accepted)
        preparing = await client.submit(make_request(script(text="a b", prepare_ms=300)))
        waiting = await client.submit(make_request(script(text="a b")))
        assert isinstance(await anext(waiting), Accepted)
        for stream in (preparing, waiting):
            started = time.monotonic()
            await client.cancel(stream.request_id)
            events = await collect(stream)
            final = events[-1]
            assert isinstance(final, Finished) and final.reason is FinishReason.CANCELLED
            assert final.usage.completion_tokens == 0 and text_of(events) == ""
            assert time.monotonic() - started < 0.29
        await client.cancel(running.request_id)
        await collect(running)
        await until(lambda: client.workers()[0].num_waiting == 0)
        assert isinstance((await collect(await client.submit(make_request())))[-1], Finished)


async def test_cancel_again_afterwards_and_of_nothing(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        stream = await client.submit(make_request())
        await collect(stream)
        for _ in range(3):
            await client.cancel(stream.request_id)
        await client.cancel("resp_never")
        events = await collect(await client.attach(stream.request_id))
        assert sum(isinstance(event, Finished | Failed) for event in events) == 1


async def test_a_resend_right_after_a_cancel_is_served(redis_url: str) -> None:
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        for _ in range(50):
            stream = await client.submit(make_request(LONG))
            await client.cancel(stream.request_id)
            resent = await client.submit(make_request())
            assert isinstance((await collect(stream))[-1], Finished)
            final = (await collect(resent))[-1]
            assert isinstance(final, Finished) and final.reason is FinishReason.STOP


async def test_a_command_sent_twice_makes_one_answer(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with (
        running_worker(redis_url, worker_id="w1"),
        running_client(redis_url, "g1") as client,
    ):
        await until(client.ready)
        request = make_request(script(text="word ", repeat=30, rate=500))
        stream = await client.submit(request)
        with redis_server.client() as outside:
            for _ in range(5):
                body = json.dumps(Submit(request).to_wire())
                outside.xadd(keys.inbox("w1"), {"c": body})
        events = await collect(stream)
        assert_whole(events)
        assert text_of(events) == "word " * 30
        await until(lambda: client.workers()[0].metrics["repartee_submits_total"] == 1)


async def test_nothing_is_left_without_a_lifetime(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with (
        running_worker(redis_url),
        running_client(redis_url, "g1") as first,
        running_client(redis_url, "g2") as second,
    ):
        await until(lambda: first.ready() and second.ready())
        stream = await first.submit(make_request(LONG))
        other = await second.attach(stream.request_id)
        await anext(other)
        await second.cancel(stream.request_id)
        await collect(stream)
        for content in (script(fail_after=1, text="a b"), "hi"):
            await collect(await first.submit(make_request(content)))
        with redis_server.client() as outside:
            assert_all_expire(outside)
            inbox = outside.xlen(keys.inbox(first.workers()[0].worker_id))
            assert inbox <= 6
    with redis_server.client() as outside:
        assert_all_expire(outside)
        kinds = {name.split(":")[1] for name in outside.keys("*")}
        assert kinds <= {"log", "gw", "workers", "worker", "owners", "probe"}


def assert_all_expire(outside: redis_module.Redis) -> None:
    for name in outside.scan_iter("*"):
        assert outside.ttl(name) > 0, name


async def test_read_entries_are_trimmed(redis_url: str, redis_server: RedisServer) -> None:
    async with (
        running_worker(redis_url, worker_id="w1"),
        running_client(redis_url, "g1") as client,
    ):
        await until(client.ready)
        for _ in range(30):
            await collect(await client.submit(make_request("x" * 10_000)))
        with redis_server.client() as outside:
            await until(lambda: outside.xlen(keys.inbox("w1")) <= 1)
            await until(lambda: outside.xlen(keys.gateway("g1")) <= 1)
