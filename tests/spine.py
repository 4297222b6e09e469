"""Workers and gateway clients on one loop, for tests of what is between them."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from app.routing import EngineClient, ResponseStream
from engine.contract import (
    Delta,
    Event,
    GenerateRequest,
    Message,
    SamplingParams,
    Tier,
)
from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine

ROOT = Path(__file__).parent.parent
_numbers = itertools.count(1)


def make_request(content: str = "hi", **changes: Any) -> GenerateRequest:
    """A request with an id of its own; any field may be given."""
    now = time.time()
    fields: dict[str, Any] = {
        "request_id": f"resp_{time.time_ns()}_{next(_numbers)}",
        "model": "repartee-fake",
        "messages": (Message("user", content),),
        "sampling": SamplingParams(),
        "tier": Tier.STANDARD,
        "tenant": "t",
        "conversation_id": None,
        "reply_to": "g1",
        "created_at": now,
        "deadline_at": now + 60,
    }
    return GenerateRequest(**{**fields, **changes})


@asynccontextmanager
async def running_worker(
    redis_url: str, engine: Any = None, **options: Any
) -> AsyncIterator[Worker]:
    """A worker on this loop; drained at the end."""
    worker = Worker(engine or FakeEngine(), redis_url, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await task


@asynccontextmanager
async def running_client(
    redis_url: str, gateway_id: str = "g1", **options: Any
) -> AsyncIterator[EngineClient]:
    """A started client."""
    client = EngineClient(redis_url, gateway_id, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Wait until `condition()` is true; its value."""
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.01)


async def collect(stream: ResponseStream, timeout_s: float = 20.0) -> list[Event]:
    """Every event to the end."""
    async with asyncio.timeout(timeout_s):
        return [event async for event in stream]


def text_of(events: list[Event]) -> str:
    """The answer."""
    return "".join(event.text for event in events if isinstance(event, Delta))


def assert_whole(events: list[Event], first_seq: int = 0) -> None:
    """Each event once, in order, with one terminal event at the end."""
    assert [event.seq for event in events] == list(range(first_seq, first_seq + len(events)))


@contextmanager
def worker_process(redis_url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A fake worker in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.worker", "--redis-url", redis_url, *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
