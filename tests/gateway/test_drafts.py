"""Drafts on their way from a socket to the engine."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import ClientConnection

from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say, script
from tests.spine import until


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def send_item(socket: ClientConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await send(
        socket,
        "conversation.item.create",
        item={"type": "message", "role": "user", "content": content},
    )


async def test_the_latest_draft_reaches_the_engine_with_the_turns_before_it(
    gateway: LiveGateway,
) -> None:
    warmed = gateway.engine.warmed
    async with gateway.socket() as socket:
        created = await receive(socket)
        await send(socket, "session.update", session={"type": "realtime", "instructions": "Sing."})
        await send_item(socket, say("hello"))
        await send(socket, "response.create")
        await receive_until(socket, "response.done")
        for size in range(1, 12):
            await send(socket, "repartee.input_draft", text="and then what"[:size])
        await until(lambda: bool(warmed) and warmed[-1].draft == "and then wh")
        assert len(warmed) < 6
        warm = warmed[-1]
        assert warm.conversation_id == created["session"]["id"]
        assert [m.role for m in warm.messages] == ["system", "user", "assistant"]
        assert [m.content for m in warm.messages] == ["Sing.", say("hello"), "hello"]
        # The line says nothing about it.
        await send(socket, "repartee.ping")
        assert (await receive(socket))["type"] == "repartee.pong"
    await until(lambda: gateway.engine.released == [warm.conversation_id])


async def test_a_draft_with_an_event_id_is_told_when_a_worker_has_it(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        await receive(socket)
        await send(socket, "repartee.input_draft", text="and then", event_id="d1")
        taken = await receive(socket)
        assert taken["type"] == "repartee.input_draft.taken"
        assert taken["draft_event_id"] == "d1"
        # It is in the worker's inbox; the engine gets it from there.
        await until(lambda: gateway.engine.warmed)
        assert gateway.engine.warmed[-1].draft == "and then"


async def test_none_goes_while_an_answer_runs(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        await receive(socket)
        await send_item(socket, script(num_tokens=2000, rate=50))
        await send(socket, "response.create")
        await receive_until(socket, "response.output_text.delta")
        await send(socket, "repartee.input_draft", text="meanwhile")
        await send(socket, "repartee.ping")
        await receive_until(socket, "repartee.pong")
        await send(socket, "response.cancel")
        await receive_until(socket, "response.done")
        await send(socket, "repartee.input_draft", text="afterwards")
        await until(lambda: [w.draft for w in gateway.engine.warmed] == ["afterwards"])


async def test_a_bad_draft_is_one_error(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        await receive(socket)
        for fields in ({}, {"text": 3}, {"text": "a", "extra": 1}, {"text": "a" * 300_000}):
            await send(socket, "repartee.input_draft", **fields)
            assert (await receive(socket))["type"] == "error"
    assert gateway.engine.warmed == []


async def test_without_a_worker_it_is_lost_and_no_error(redis_url: str) -> None:
    async with running_gateway(redis_url) as live, live.socket() as socket:
        await receive(socket)
        assert live.worker is not None
        live.worker.stop()
        await until(lambda: not live.gateway.responses.engine.ready())
        await send(socket, "repartee.input_draft", text="hello there")
        await send(socket, "repartee.ping")
        assert (await receive(socket))["type"] == "repartee.pong"


async def test_a_person_hears_their_tier_and_how_many_wait_before_them(
    gateway: LiveGateway,
) -> None:
    async with gateway.socket() as socket:
        assert (await receive(socket))["repartee.tier"] == "standard"
        await send_item(socket, say("hello"))
        await send(socket, "response.create")
        created = (await receive_until(socket, "response.created"))[-1]
        assert created["response"]["repartee.ahead"] == 0
