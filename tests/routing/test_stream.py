"""One listener's ordered view of one response."""

from __future__ import annotations

import asyncio
import random

import pytest

from app.routing import stream as stream_module
from app.routing.stream import ResponseStream
from engine.contract import (
    Accepted,
    Cursor,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    TakenOver,
    Unavailable,
    Usage,
)


def answer(num_deltas: int) -> list[Event]:
    deltas = [Delta("r", 1, seq, f"{seq} ", 1) for seq in range(1, num_deltas + 1)]
    usage = Usage(3, num_deltas)
    return [
        Accepted("r", 1, 0, 3),
        *deltas,
        Finished("r", 1, num_deltas + 1, FinishReason.STOP, usage),
    ]


def make_stream(after: Cursor = Cursor(0, 0)) -> tuple[ResponseStream, list[ResponseStream]]:  # noqa: B008
    closed: list[ResponseStream] = []
    stream = ResponseStream(
        "r",
        after=after,
        worker_id="w",
        deadline_at=None,
        on_close=closed.append,
        on_moved=lambda stream: None,
    )
    return stream, closed


async def test_repeats_are_dropped_and_gaps_are_told() -> None:
    events = answer(3)
    stream, closed = make_stream()
    assert stream.take(events[0]) and stream.take(events[0])
    assert not stream.take(events[2]) and stream.has_gap
    for event in events:
        assert stream.take(event)
    assert closed == [stream]
    assert [event async for event in stream] == events


async def test_any_order_with_repairs_gives_the_answer_once() -> None:
    rng = random.Random(7)
    events = answer(40)
    for _ in range(50):
        stream, _ = make_stream()
        feed = rng.choices(events, k=60)
        for event in feed:
            if not stream.take(event):
                # What a reader of the log would bring.
                for missing in events[stream.next_seq : event.seq + 1]:
                    stream.take(missing)
        for event in events:
            stream.take(event)
        assert stream.drain_pending() == events


async def test_it_starts_after_its_cursor() -> None:
    events = answer(5)
    stream, _ = make_stream(Cursor(1, 2))
    for event in events:
        stream.take(event)
    assert stream.drain_pending() == events[3:]


async def test_an_older_lease_is_not_heard() -> None:
    stream, _ = make_stream()
    stream.take(Accepted("r", 1, 0, 3))
    stream.take(TakenOver("r", 2, 1, "w2"))
    stream.take(Delta("r", 2, 2, "new", 1))
    assert stream.take(Delta("r", 1, 3, "old", 1))
    stream.take(Delta("r", 2, 3, "er", 1))
    assert [event.epoch for event in stream.drain_pending()] == [1, 2, 2]
    assert stream.worker_id == "w2"


async def test_a_lease_that_begins_unseen_is_a_gap() -> None:
    stream, _ = make_stream()
    stream.take(Accepted("r", 1, 0, 3))
    assert not stream.take(Delta("r", 2, 1, "of the next lease", 1)) and stream.has_gap
    assert stream.drain_pending() == [Accepted("r", 1, 0, 3)]


async def test_a_lease_from_before_what_was_shown_starts_over() -> None:
    stream, _ = make_stream()
    shown = [Accepted("r", 1, 0, 3), Delta("r", 1, 1, "one ", 1), Delta("r", 1, 2, "two ", 1)]
    for event in shown:
        assert stream.take(event)
    assert not stream.take(TakenOver("r", 2, 2, "w2")) and stream.is_ahead
    stream.start_over()
    kept = [shown[0], shown[1], TakenOver("r", 2, 2, "w2"), Delta("r", 2, 3, "two three ", 2)]
    for event in kept:
        assert stream.take(event)
    assert stream.drain_pending() == [*shown, Delta("r", 2, 3, "three ", 2)]


async def test_pending_deltas_merge_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MERGE_ABOVE", 16)
    events = answer(1000)
    stream, _ = make_stream()
    for event in events:
        stream.take(event)
    pending = stream.drain_pending()
    assert len(pending) <= 16
    deltas = [event for event in pending if isinstance(event, Delta)]
    assert "".join(event.text for event in deltas) == "".join(f"{n} " for n in range(1, 1001))
    assert sum(event.num_tokens for event in deltas) == 1000
    assert [event.seq for event in pending] == sorted(event.seq for event in pending)
    assert (pending[0], pending[-1]) == (events[0], events[-1])


async def test_a_last_event_comes_despite_a_gap_and_only_once() -> None:
    stream, _ = make_stream()
    stream.take(Accepted("r", 1, 0, 3))
    stream.take(Delta("r", 1, 1, "a", 1))
    failed = Failed("r", 2, 0, Unavailable("gone"))
    stream.take_last(failed)
    stream.take_last(failed)
    last = stream.drain_pending()[-1]
    assert isinstance(last, Failed) and (last.epoch, last.seq) == (2, 2)
    assert [event async for event in stream] == []


async def test_a_waiting_reader_wakes_for_an_event_and_for_the_end() -> None:
    stream, closed = make_stream()
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    stream.take(Accepted("r", 1, 0, 3))
    assert isinstance(await waiting, Accepted)
    ending = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    await stream.close()
    await stream.close()
    assert await ending is None
    assert closed == [stream]


async def test_a_cancelled_reader_leaves_the_stream_usable() -> None:
    stream, _ = make_stream()
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stream.take(Accepted("r", 1, 0, 3))
    assert isinstance(await anext(stream), Accepted)


async def test_deltas_are_handed_over_once_nothing_is_pending() -> None:
    accepted, one, two, three, finished = answer(3)
    stream, _ = make_stream()
    handed: list[Event] = []
    stream.take(accepted)
    stream.take(one)
    stream.deliver(handed.append)
    stream.take(two)
    assert handed == [] and [await anext(stream) for _ in range(3)] == [accepted, one, two]
    stream.take(three)
    assert handed == [three] and stream.cursor == Cursor(1, 3)
    stream.take(finished)
    assert [event async for event in stream] == [finished] and handed == [three]


async def test_of_deltas_handed_over_nothing_is_shown_twice() -> None:
    stream, _ = make_stream()
    handed: list[Event] = []
    stream.deliver(handed.append)
    stream.take(Delta("r", 1, 0, "one ", 1))
    stream.take(Delta("r", 1, 1, "two ", 1))
    stream.start_over()
    stream.take(Delta("r", 1, 0, "one ", 1))
    stream.take(TakenOver("r", 2, 1, "w2"))
    stream.take(Delta("r", 2, 2, "two three ", 2))
    assert [event.text for event in handed if isinstance(event, Delta)] == [
        "one ",
        "two ",
        "three ",
    ]


async def test_what_the_hand_over_raises_is_raised_to_who_iterates() -> None:
    def refuse(event: Delta) -> None:
        raise ValueError(event.text)

    stream, closed = make_stream()
    stream.deliver(refuse)
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    assert stream.take(Delta("r", 1, 0, "bad", 1)) and closed == [stream]
    with pytest.raises(ValueError, match="bad"):
        await reading
    assert stream.take(Delta("r", 1, 1, "worse", 1))
