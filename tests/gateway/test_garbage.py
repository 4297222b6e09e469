"""Full collections come where nobody waits, or when memory has doubled; none is forgotten."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from app.gateway.garbage import THRESHOLDS, GarbageSchedule


class Knot:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.me = self


class Process:
    """What the schedule sees of its process."""

    def __init__(self, least_blocks: int = 0) -> None:
        self.is_idle = False
        self.num_blocks = 1000
        self.schedule = GarbageSchedule(
            lambda: self.is_idle, blocks=lambda: self.num_blocks, least_blocks=least_blocks
        )


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    process = Process()
    running = asyncio.create_task(process.schedule.run())
    await asyncio.sleep(0)
    try:
        yield process
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        gc.collect()


def forgotten() -> weakref.ref[Knot]:
    """A cycle that has outlived a collection, and is garbage now."""
    knot = Knot()
    gc.collect()
    return weakref.ref(knot)


async def test_what_has_outlived_a_collection_is_visited_no_more(process: Process) -> None:
    knot = forgotten()
    gc.collect()
    assert knot() is not None
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize(
    ("is_idle", "num_blocks", "is_due"),
    [(True, 1240, False), (True, 1260, True), (False, 1900, False), (False, 2100, True)],
)
async def test_everything_is_collected_when_it_is_time_to(
    process: Process, is_idle: bool, num_blocks: int, is_due: bool
) -> None:
    knot = forgotten()
    process.is_idle, process.num_blocks = is_idle, num_blocks
    process.schedule.look()
    process.schedule.look()
    assert (knot() is None) == is_due
    # Growth counts from the last one.
    later = forgotten()
    process.schedule.look()
    assert later() is not None or not is_due


async def test_nothing_is_collected_while_sockets_are_still_being_opened(process: Process) -> None:
    knot = forgotten()
    process.is_idle = True
    for num_blocks in range(1100, 2000, 100):
        process.num_blocks = num_blocks
        process.schedule.look()
    assert knot() is not None
    process.schedule.look()
    assert knot() is None


async def test_a_small_process_that_doubles_goes_on_with_its_answers() -> None:
    process = Process(least_blocks=5000)
    running = asyncio.create_task(process.schedule.run())
    await asyncio.sleep(0)
    try:
        knot = forgotten()
        for num_blocks, is_due in ((5900, False), (6100, True)):
            process.num_blocks = num_blocks
            process.schedule.look()
            assert (knot() is None) == is_due
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_garbage_that_keeps_coming_is_bounded() -> None:
    # Whatever else this process holds, it counts as a small one.
    others = sys.getallocatedblocks()
    schedule = GarbageSchedule(
        lambda: False,
        blocks=lambda: sys.getallocatedblocks() - others,
        least_blocks=100_000,
    )
    running = asyncio.create_task(schedule.run())
    await asyncio.sleep(0)
    alive: list[weakref.ref[Knot]] = []
    most = 0
    try:
        for _ in range(60):
            knots = [Knot() for _ in range(10_000)]
            gc.collect()
            alive += [weakref.ref(knot) for knot in knots]
            del knots
            schedule.look()
            alive = [each for each in alive if each() is not None]
            most = max(most, len(alive))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert most < 400_000
    gc.collect()
    assert all(each() is None for each in alive)


async def test_pythons_own_schedule_returns_at_the_end() -> None:
    before = gc.get_threshold()
    running = asyncio.create_task(GarbageSchedule(lambda: True).run())
    await asyncio.sleep(0)
    assert gc.get_threshold() == THRESHOLDS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
