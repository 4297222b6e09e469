"""The unmodified OpenAI SDK on `/v1/responses` as a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)

from tests.gateway.live import MODEL, LiveGateway, say, script
from tests.sdk.test_responses import EVENTS, kinds, text_of

TEXT = "Mañana 日本語 🐕, and more of it."
LIMITS = ResponsesWebSocketLimits(
    max_lanes=8,
    max_events_per_lane=4096,
    max_events=8192,
    max_bytes_per_lane=2**22,
    max_bytes=2**23,
)


async def until_end(connection: Any) -> list[Any]:
    events = []
    async with asyncio.timeout(10):
        async for event in connection:
            events.append(event)
            if event.type in ("response.completed", "response.failed", "response.incomplete"):
                return events
            assert event.type != "error", event
    raise AssertionError("the socket ended before the response")


async def test_one_response(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input=say(TEXT), metadata={"a": "b"})
        events = await until_end(connection)
        assert kinds(events) == EVENTS and text_of(events) == TEXT
        last = events[-1].response
        assert last.output_text == TEXT and last.metadata == {"a": "b"}
    assert (await client.responses.retrieve(last.id)).to_dict() == last.to_dict()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_chains_on_one_connection(client: AsyncOpenAI, is_stored: bool) -> None:
    async with client.responses.connect() as connection:
        previous: Any = openai.omit
        inputs = []
        for turn in range(3):
            await connection.response.create(
                model=MODEL,
                input=say(f"turn {turn}"),
                store=is_stored,
                previous_response_id=previous,
            )
            last = (await until_end(connection))[-1].response
            assert last.output_text == f"turn {turn}"
            inputs.append(last.usage.input_tokens)
            previous = last.id
        assert inputs == sorted(set(inputs))
    # A stored one can be continued without the connection that made it.
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input="x", previous_response_id=previous)
        event = await connection.recv()
        if is_stored:
            assert event.type == "response.created"
        else:
            assert event.type == "error" and event.status == 404
            assert event.error.code == "previous_response_not_found"


async def test_a_stored_response_may_continue_one_that_is_not(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        previous: Any = openai.omit
        inputs = []
        for is_stored in (True, False, False, True, True):
            await connection.response.create(
                model=MODEL, input=say("turn"), store=is_stored, previous_response_id=previous
            )
            last = (await until_end(connection))[-1].response
            inputs.append(last.usage.input_tokens)
            previous = last.id
    step = inputs[1] - inputs[0]
    answer = await client.responses.create(
        model=MODEL, input=say("turn"), previous_response_id=previous
    )
    assert answer.usage is not None
    # Every turn is there, although some were never stored.
    assert answer.usage.input_tokens == inputs[0] + 5 * step
    items = await client.responses.input_items.list(previous)
    assert len(items.data) == 1


async def test_a_warm_up_is_continued(client: AsyncOpenAI, gateway: LiveGateway) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(
            model=MODEL, input="a long beginning", instructions="be kind", generate=False
        )
        events = await until_end(connection)
        assert kinds(events) == ["response.created", "response.in_progress", "response.completed"]
        warm = events[-1].response
        assert warm.output == [] and warm.usage.output_tokens == 0
        await connection.response.create(
            model=MODEL, input=say("now"), previous_response_id=warm.id
        )
        assert text_of(await until_end(connection)) == "now"
    assert gateway.engine.warmed  # type: ignore[attr-defined]


async def test_lanes_run_beside_each_other(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        names = ["a", "b.2", "c_3-x"]
        lanes = [session.lane(name) for name in names]
        for name, lane in zip(names, lanes, strict=True):
            slow = script(text=f"{name} " * 30, rate=200)
            await lane.send({"type": "response.create", "model": MODEL, "input": slow})
        async with asyncio.timeout(20):
            answers = [await lane.get_final_response() for lane in lanes]
        for name, answer in zip(names, answers, strict=True):
            assert answer.output_text == f"{name} " * 30
        # A fork: one lane continues what another made.
        await lanes[0].send(
            {
                "type": "response.create",
                "model": MODEL,
                "input": say("forked"),
                "previous_response_id": answers[1].id,
            }
        )
        assert (await lanes[0].get_final_response()).output_text == "forked"
        await lanes[2].send({"type": "response.create", "model": "none", "input": "x"})
        with pytest.raises(ResponsesWebSocketError) as caught:
            await lanes[2].get_final_response()
        assert caught.value.event.error.code == "model_not_found"  # type: ignore[union-attr]


async def test_cancel(client: AsyncOpenAI, gateway: LiveGateway) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input=script(num_tokens=5000, rate=100))
        async for event in connection:
            if event.type == "response.output_text.delta":
                break
        await connection.send({"type": "response.cancel"})  # type: ignore[typeddict-item]
        last = (await until_end(connection))[-1]
        assert last.type == "response.incomplete" and last.response.status == "cancelled"
        await gateway.settled()
