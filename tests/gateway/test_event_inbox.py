"""What was read and not carried out yet is bounded in number and in size."""

from __future__ import annotations

import asyncio

from app.gateway.event_inbox import EventInbox


async def test_events_beyond_the_size_wait_outside_and_come_in_order() -> None:
    inbox = EventInbox(max_events=10, max_chars=100)
    texts = ["a" * 60, "b" * 60, "c" * 10]

    async def put_all() -> None:
        for text in texts:
            await inbox.put(text)

    putting = asyncio.create_task(put_all())
    await asyncio.sleep(0)
    assert inbox.num_chars == 60
    for text in texts:
        assert await inbox.get() == text
        assert inbox.num_chars <= 100
        inbox.done(text)
    await putting
    await inbox.join()
    assert inbox.num_chars == 0


async def test_one_event_may_be_larger_than_all_may_be_together() -> None:
    inbox = EventInbox(max_events=10, max_chars=100)
    await inbox.put("x" * 500)
    assert await inbox.get() == "x" * 500


async def test_events_beyond_the_number_wait_outside() -> None:
    inbox = EventInbox(max_events=2, max_chars=100)
    for _ in range(2):
        await inbox.put("x")
    third = asyncio.create_task(inbox.put("y"))
    await asyncio.sleep(0)
    assert not third.done()
    inbox.done(await inbox.get())
    await third
