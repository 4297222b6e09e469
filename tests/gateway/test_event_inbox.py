"""What has come and is not carried out yet: in order, bounded, and no task without events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from app.gateway.event_inbox import EventInbox
from tests.spine import until


class Line:
    """A source whose events are carried out one at a time, when the test says so."""

    def __init__(self, max_events: int = 10, max_chars: int = 100) -> None:
        self.inbox = EventInbox(self, (), max_events, max_chars)
        self.is_paused = False
        self.done: list[str] = []
        self.may_go_on = asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    def put(self, text: str) -> None:
        self.inbox.put(text, self.carry_out)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def carry_out(self, text: str) -> None:
        await self.may_go_on.acquire()
        self.done.append(text)

    async def let_go(self, number: int) -> None:
        """Let so many more be carried out."""
        wanted = len(self.done) + number
        for _ in range(number):
            self.may_go_on.release()
        await until(lambda: len(self.done) == wanted)
        await asyncio.sleep(0)


async def test_the_source_pauses_beyond_the_size_and_events_come_in_order() -> None:
    line = Line()
    texts = ["a" * 60, "b" * 60, "c" * 10]
    for text in texts:
        line.put(text)
    assert line.is_paused
    assert line.inbox.num_chars == 130
    await line.let_go(1)
    assert not line.is_paused
    await line.let_go(2)
    assert line.done == texts
    assert line.inbox.num_chars == 0


async def test_one_event_may_be_larger_than_all_may_be_together() -> None:
    line = Line()
    line.put("x" * 500)
    assert line.is_paused
    await line.let_go(1)
    assert not line.is_paused


async def test_the_source_pauses_beyond_the_number() -> None:
    line = Line(max_events=2)
    line.put("x")
    assert not line.is_paused
    line.put("y")
    assert line.is_paused
    await line.let_go(1)
    assert not line.is_paused
    await line.let_go(1)


async def test_without_events_there_is_no_task() -> None:
    line = Line()
    assert line.tasks == []
    for text in ("x", "y"):
        line.put(text)
        await line.let_go(1)
        await asyncio.wait(line.tasks)
    assert [task.done() for task in line.tasks] == [True, True]


async def test_what_was_sent_before_the_end_is_carried_out_for_a_while() -> None:
    line = Line()
    for text in ("x", "y"):
        line.put(text)
    closing = asyncio.create_task(line.inbox.close(10.0))
    await line.let_go(2)
    await closing
    line.put("z")
    await line.inbox.close(0.0)
    assert line.done == ["x", "y"]
    assert line.tasks[-1].cancelled()
