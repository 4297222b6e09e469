"""Gateways and workers are replaced under answers, and nobody notices but by a new socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.gateway.test_realtime import ask
from tests.spine import running_worker, until

TEXT = " ".join(str(number) for number in range(200))


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )


async def read_deltas(socket: ClientConnection, number: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while sum(event["type"] == "response.output_text.delta" for event in events) < number:
        events.append(await receive(socket))
    return events


@asynccontextmanager
async def always_ready(gateway: LiveGateway) -> AsyncIterator[None]:
    """No probe in the meantime finds it unready."""
    seen: list[int] = []

    async def probe() -> None:
        while True:
            seen.append((await gateway.http.get("/readyz")).status_code)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(probe())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert set(seen) == {200}


async def test_sht_02_a_worker_is_replaced_under_answers(redis_url: str) -> None:
    async with running_gateway(redis_url, worker=False) as gateway:
        old = Worker(FakeEngine(rate=60), redis_url, grace_s=0.3)
        task = asyncio.create_task(old.run())
        await until(lambda: gateway.gateway.responses.engine.ready())
        async with gateway.socket() as socket, running_worker(redis_url, FakeEngine(rate=200)):
            await until(lambda: len(gateway.gateway.responses.engine.workers()) == 2)
            await receive(socket)
            async with always_ready(gateway):
                # Both workers get some; one of them stops in the middle.
                asking = [
                    asyncio.create_task(gateway.chat(script(text=TEXT), stream=stream))
                    for stream in (False, True, False, True)
                ]
                await ask(socket, script(text=TEXT))
                events = await read_deltas(socket, 3)
                old.stop()
                assert await task == 0
                events += await receive_until(socket, "response.done", 20)
                assert text_of(events) == TEXT
                assert events[-1]["response"]["status"] == "completed"
                plain, streamed, *_ = await asyncio.gather(*asking)
                assert plain.json()["choices"][0]["message"]["content"] == TEXT
                assert '"error"' not in streamed.text
                assert streamed.text.endswith("data: [DONE]\n\n")


async def test_sht_02_a_gateway_is_replaced_under_answers(redis_url: str) -> None:
    engine = FakeEngine(rate=100)
    async with (
        running_gateway(redis_url, engine=engine, grace_s=0.3) as old,
        running_gateway(redis_url, worker=False) as new,
    ):
        await until(lambda: new.gateway.responses.engine.ready())
        socket = await old.socket()
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, script(text=TEXT))
        events = await read_deltas(socket, 3)
        old.server.stop()
        await until(lambda: old.gateway.responses.is_draining)
        assert (await old.http.get("/readyz")).status_code == 503
        assert (await new.http.get("/readyz")).status_code == 200
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                events.append(await receive(socket))
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012
        cursor = [e for e in events if "repartee.cursor" in e][-1]["repartee.cursor"]
        query = f"?session_id={session_id}&epoch={cursor['epoch']}&starting_after={cursor['seq']}"
        async with new.socket(query) as again:
            rest = await receive_until(again, "response.done", 20)
            assert text_of(events) + text_of(rest) == TEXT
            assert rest[-1]["response"]["status"] == "completed"
            resumed = [e for e in rest if e["type"] == "repartee.response.resumed"]
            assert [event["text"] for event in resumed] == [None]
        async with new.socket(f"?session_id={session_id}") as again:
            items = (await receive(again))["repartee.items"]
            assert [item["role"] for item in items] == ["user", "assistant"]
            assert items[1]["content"][0]["text"] == TEXT
