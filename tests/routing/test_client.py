"""A request's way to a worker and back, over a real Redis."""

from __future__ import annotations

import asyncio
import base64

import pytest

from engine.contract import (
    Accepted,
    Cursor,
    EngineFault,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    NotFound,
    SamplingParams,
    Unavailable,
)
from tests.fakes.engine import FakeEngine
from tests.spine import (
    assert_whole,
    collect,
    make_request,
    running_client,
    running_worker,
    text_of,
    until,
)


async def test_an_answer_arrives_whole(redis_url: str) -> None:
    text = "Hello, wörld: 日本語 🐕.\n" * 40
    content = "!text " + base64.b64encode(text.encode()).decode()
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(client.ready)
        events = await collect(await client.submit(make_request(content)))
    assert isinstance(events[0], Accepted)
    assert_whole(events)
    assert text_of(events) == text
    final = events[-1]
    assert isinstance(final, Finished) and final.reason is FinishReason.STOP
    assert final.usage.completion_tokens == sum(getattr(e, "num_tokens", 0) for e in events)
