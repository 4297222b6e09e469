"""The engine's own refusals, through Redis and the gateway, to HTTP and to a socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from engine.config import EngineConfig
from engine.contract import ModelCard
from engine.engine import Engine
from engine.step import StepOutput, StepPlan
from load_tests.sim.machine import Clock, Costs, Machine
from tests.fakes.runner import VOCAB_SIZE, ByteVocabulary, encode_chat
from tests.gateway.live import MODEL, LiveGateway, receive_until, running_gateway
from tests.spine import until


class Paced(Machine):
    """Two milliseconds a step, whatever is in it."""

    def run(self, plan: StepPlan) -> StepOutput:
        time.sleep(0.002)
        return super().run(plan)


@pytest.fixture
async def gateway(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[LiveGateway]:
    """One slot, and limits of the test's own."""
    config = EngineConfig(num_blocks=1024, max_running=1, **request.param)
    engine = Engine(
        config,
        card=ModelCard(MODEL, 0, 16_000, VOCAB_SIZE, 1, "none"),
        runner=Paced(Clock(), Costs(), 1),
        vocabulary=ByteVocabulary(),
        encode_chat=encode_chat,
    )
    async with running_gateway(redis_url, engine=engine) as live:  # type: ignore[arg-type]
        # What steps cost is known from here on.
        assert (await live.chat("warm up", max_completion_tokens=40)).status_code == 200
        yield live


async def _hold_the_slot(gateway: LiveGateway) -> asyncio.Task[object]:
    task = asyncio.create_task(gateway.chat("long", max_completion_tokens=2000))
    await gateway.running(1)
    return task


@pytest.mark.parametrize("gateway", [{"standard_max_waiting": 2}], indirect=True)
async def test_a_full_queue_is_429_with_a_wait_and_worth_a_retry(gateway: LiveGateway) -> None:
    tasks = [await _hold_the_slot(gateway)]
    for _ in range(2):
        tasks.append(asyncio.create_task(gateway.chat("next", max_completion_tokens=5)))
        await until(lambda: gateway.engine.stats().num_waiting == len(tasks) - 1)
    response = await gateway.chat("one more", max_completion_tokens=5)
    assert response.status_code == 429
    error = response.json()["error"]
    assert error["code"] == "overloaded"
    assert error["message"].startswith("The queue is full: 2 standard requests wait")
    assert error["repartee.retry_after_ms"] >= 1000
    assert int(response.headers["retry-after"]) >= 1
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize(
    "gateway", [{"standard_max_wait_ms": 1500.0, "ageing_ms": 60_000.0}], indirect=True
)
async def test_a_long_wait_is_told_to_a_socket(gateway: LiveGateway) -> None:
    task = await _hold_the_slot(gateway)
    waiting = []
    async with gateway.socket() as socket:
        await receive_until(socket, "session.created")
        for number in range(60):
            waiting.append(
                asyncio.create_task(gateway.chat(f"next {number}", max_completion_tokens=200))
            )
            await until(
                lambda: (
                    gateway.engine.stats().num_waiting >= len([t for t in waiting if not t.done()])
                )
            )
            if any(t.done() for t in waiting):
                break
        ask = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": ask}))
        await socket.send(json.dumps({"type": "response.create"}))
        done = (await receive_until(socket, "response.done"))[-1]["response"]
    refused = next(t.result() for t in waiting if t.done())
    assert refused.status_code == 429
    wait_ms = refused.json()["error"]["repartee.retry_after_ms"]
    assert 1500 < wait_ms < 20_000
    assert "The wait would be about" in refused.json()["error"]["message"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["code"] == "overloaded"
    assert "The wait would be about" in done["status_details"]["error"]["message"]
    assert done["status_details"]["error"]["repartee.retry_after_ms"] > 1500
    for other in (task, *waiting):
        other.cancel()
