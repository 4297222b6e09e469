"""The step loop on its own thread, and what the event loop is told of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine.contract import Event, Finished, GenerateRequest, Message, SamplingParams, Tier
from engine.worker.engine_thread import EngineThread
from tests.fakes.engine import FakeEngine
from tests.spine import until


def request(request_id: str) -> GenerateRequest:
    now = time.time()
    return GenerateRequest(
        request_id=request_id,
        model="repartee-fake",
        messages=(Message("user", '!json {"num_tokens": 40}'),),
        sampling=SamplingParams(),
        tier=Tier.STANDARD,
        tenant="t",
        conversation_id=None,
        reply_to="g1",
        created_at=now,
        deadline_at=now + 60,
    )


class Watched(FakeEngine):
    """Says when an answer has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = threading.Event()

    def step(self) -> list[Event]:
        events = super().step()
        if any(isinstance(event, Finished) for event in events):
            self.has_ended.set()
        return events


@asynccontextmanager
async def running(
    engine: FakeEngine, on_events: Callable[[list[Event]], None]
) -> AsyncIterator[EngineThread]:
    thread = EngineThread(
        engine,
        on_events=on_events,
        on_refused=lambda request_id, error: None,
        on_fault=lambda error: None,
        on_dead=lambda: None,
    )
    thread.start()
    yield thread
    assert await asyncio.to_thread(thread.stop, 5.0)


async def test_a_loop_that_is_behind_is_woken_once_for_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    wake_ups: list[object] = []
    wake = loop.call_soon_threadsafe

    def count(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        wake_ups.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    engine = Watched()
    told: list[list[Event]] = []
    async with running(engine, told.append) as thread:
        thread.add("r1", engine.prepare(request("r1")))
        # The loop is held up until the whole answer is made.
        assert engine.has_ended.wait(5)
        assert told == [] and len(wake_ups) == 1
        await until(lambda: any(isinstance(step[-1], Finished) for step in told))
        events = [event for step in told for event in step]
        assert len(told) > 5 and [event.seq for event in events] == list(range(len(events)))


async def test_what_cannot_be_taken_keeps_nothing_back() -> None:
    engine = FakeEngine()
    told: list[Event] = []

    def take(events: list[Event]) -> None:
        if not told and events[0].request_id == "bad":
            raise ValueError("not this one")
        told.extend(events)

    async with running(engine, take) as thread:
        thread.add("bad", engine.prepare(request("bad")))
        thread.add("good", engine.prepare(request("good")))
        await until(lambda: [event for event in told if event.request_id == "good"])
