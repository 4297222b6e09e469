"""Realtime sessions over raw sockets: hostile frames, races, tabs, limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.auth import parse_api_keys
from tests.fakes.engine import FakeEngine
from tests.gateway.live import (
    MODEL,
    LiveGateway,
    receive,
    receive_until,
    running_gateway,
    say,
    script,
)
from tests.spine import until

LONG = script(num_tokens=2000, rate=60)
KEY = "sk-0123456789abcdef"


@pytest.fixture
async def line(gateway: LiveGateway) -> AsyncIterator[ClientConnection]:
    """A socket whose greeting was read."""
    async with gateway.socket() as socket:
        assert (await receive(socket))["type"] == "session.created"
        yield socket


def user_item(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content, **fields}
    return {"type": "conversation.item.create", "item": item}


async def send(socket: ClientConnection, event: dict[str, Any]) -> None:
    await socket.send(json.dumps(event))


async def ask(socket: ClientConnection, text: str, **response: Any) -> None:
    await send(socket, user_item(text))
    events = await receive_until(socket, ("conversation.item.done", "error"))
    assert events[-1]["type"] != "error", events[-1]
    await send(socket, {"type": "response.create", "response": response})


async def done(socket: ClientConnection) -> dict[str, Any]:
    response: dict[str, Any] = (await receive_until(socket, "response.done"))[-1]["response"]
    return response


async def pong(socket: ClientConnection) -> None:
    """The socket still works."""
    await send(socket, {"type": "repartee.ping"})
    assert (await receive(socket))["type"] == "repartee.pong"


async def closed(socket: ClientConnection) -> int | None:
    """Read to the end; the close code."""
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(10):
            while True:
                await socket.recv()
    return socket.close_code


async def test_frm_01_a_binary_frame_ends_with_1003(line: ClientConnection) -> None:
    await line.send(b"\x00" * 16)
    assert await closed(line) == 1003


@pytest.mark.parametrize(
    "frame",
    [
        *("", " ", "null", "[]", "5", "{}", '{"type":5}', '{"type":"no.such"}', "{", '"'),
        "[" * 20_000 + "]" * 20_000,
        '{"type":"response.create","response":{"metadata":' + "[" * 300 + "]" * 300 + "}}",
        '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
        '"content":[{"type":"input_text","text":"x\\ud83d"}]}}',
    ],
)
async def test_frm_02_06_07_one_error_each(line: ClientConnection, frame: str) -> None:
    await line.send(frame)
    event = await receive(line)
    assert event["type"] == "error"
    assert event["error"]["code"]
    await pong(line)


async def test_frm_04_a_frame_of_the_limit_passes_and_one_more_byte_is_1009(
    line: ClientConnection,
) -> None:
    frame = json.dumps(user_item(""))
    frame = frame.replace('""', '"' + "x" * (1024 * 1024 - len(frame)) + '"')
    assert len(frame) == 1_048_576
    await line.send(frame)
    assert (await receive(line))["error"]["code"] == "context_length_exceeded"
    await line.send(frame + " ")
    assert await closed(line) == 1009


async def test_frm_04_three_megabytes_still_hear_why(line: ClientConnection) -> None:
    await line.send("x" * 3_000_000)
    assert await closed(line) == 1009


async def test_frm_09_an_event_id_is_applied_once(line: ClientConnection) -> None:
    event = {**user_item("x"), "event_id": "same"}
    await send(line, event)
    await receive_until(line, "conversation.item.done")
    await send(line, event)
    error = (await receive(line))["error"]
    assert (error["code"], error["event_id"]) == ("duplicate_event", "same")


async def test_frm_09_a_send_repeated_on_another_socket_adds_nothing(gateway: LiveGateway) -> None:
    event = {**user_item("x", id="item_mine"), "event_id": "same"}
    async with gateway.socket() as first:
        session_id = (await receive(first))["session"]["id"]
        await send(first, event)
        await receive_until(first, "conversation.item.done")
    async with gateway.socket(f"?session_id={session_id}") as second:
        await receive(second)
        await send(second, event)
        assert (await receive_until(second, "conversation.item.done"))[-1]["item"]["id"] == (
            "item_mine"
        )
    async with gateway.socket(f"?session_id={session_id}") as third:
        assert len((await receive(third))["repartee.items"]) == 1


async def test_frm_09_an_answer_asked_for_again_on_another_socket_is_not_made_again(
    gateway: LiveGateway,
) -> None:
    event = {"type": "response.create", "event_id": "same"}
    async with gateway.socket() as first:
        session_id = (await receive(first))["session"]["id"]
        await send(first, user_item("x"))
        await send(first, event)
        await done(first)
    async with gateway.socket(f"?session_id={session_id}") as second:
        await receive(second)
        await send(second, event)
        error = (await receive(second))["error"]
        assert (error["code"], error["event_id"]) == ("duplicate_event", "same")
    async with gateway.socket(f"?session_id={session_id}") as third:
        assert len((await receive(third))["repartee.items"]) == 2
        await send(third, user_item("y"))
        await send(third, event)
        assert (await done(third))["status"] == "completed"


@pytest.mark.parametrize(
    ("prompt", "cancel", "limit", "reason"),
    [
        (LONG, True, "inf", "client_cancelled"),
        (LONG, False, 3, "max_output_tokens"),
        (script(num_tokens=3), False, "inf", None),
    ],
)
async def test_can_09_a_stored_answer_says_why_it_is_incomplete(
    gateway: LiveGateway, prompt: str, cancel: bool, limit: int | str, reason: str | None
) -> None:
    async with gateway.socket() as first:
        session_id = (await receive(first))["session"]["id"]
        await ask(first, prompt, max_output_tokens=limit)
        await receive_until(first, "response.output_text.delta")
        if cancel:
            await send(first, {"type": "response.cancel"})
        (item,) = (await done(first))["output"]
        assert item.get("repartee.reason") == reason
    async with gateway.socket(f"?session_id={session_id}") as again:
        assert (await receive(again))["repartee.items"][1] == item
        repeated = {"type": "conversation.item.create", "item": item}
        await send(again, repeated)
        assert (await receive_until(again, "conversation.item.done"))[-1]["item"]["id"] == item[
            "id"
        ]


async def test_frm_10_a_second_create_is_refused_and_the_first_unharmed(
    line: ClientConnection,
) -> None:
    await ask(line, script(num_tokens=30, rate=100))
    await send(line, {"type": "response.create", "event_id": "second"})
    events = await receive_until(line, "response.done")
    (error,) = [event["error"] for event in events if event["type"] == "error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "second"
    assert events[-1]["response"]["status"] == "completed"
    assert events[-1]["response"]["usage"]["output_tokens"] == 30


async def test_a_create_whose_item_was_refused_answers_nothing_older(
    line: ClientConnection,
) -> None:
    await ask(line, "older")
    await done(line)
    hopeless = user_item("word " * 50_000, id="item_hopeless")
    create = {"type": "response.create", "repartee.answers": "item_hopeless"}
    await send(line, {**hopeless, "event_id": "item"})
    await send(line, {**create, "event_id": "create"})
    await send(line, {"type": "repartee.ping"})
    events = await receive_until(line, "repartee.pong")
    errors = [event["error"] for event in events if event["type"] == "error"]
    assert [error["event_id"] for error in errors] == ["item", "create"]
    assert errors[1]["param"] == "repartee.answers"
    assert not [event for event in events if event["type"].startswith("response.")]
    # The conversation is free, and a create that names an item it holds is answered.
    await send(line, user_item("newer", id="item_n"))
    await send(line, {"type": "response.create", "repartee.answers": "item_n"})
    assert (await done(line))["status"] == "completed"


async def test_frm_11_can_08_create_right_after_cancel_is_never_lost(redis_url: str) -> None:
    async with (
        running_gateway(redis_url, engine=FakeEngine(rate=60)) as gateway,
        gateway.socket() as socket,
    ):
        await receive(socket)
        await ask(socket, "go on")
        for number in range(25):
            await receive_until(socket, "response.created")
            await asyncio.sleep(number % 5 * 0.01)
            await send(socket, {"type": "response.cancel"})
            await send(socket, {"type": "response.create", "event_id": f"e-{number}"})
            assert (await done(socket))["status"] == "cancelled"
        await receive_until(socket, "response.created")
        await send(socket, {"type": "response.cancel"})
        assert (await done(socket))["status"] == "cancelled"


async def test_can_05_a_queued_response_is_cancelled_before_its_first_token(
    redis_url: str,
) -> None:
    async with running_gateway(redis_url, engine=FakeEngine(max_running=1)) as gateway:
        async with gateway.socket() as first, gateway.socket() as second:
            for socket in (first, second):
                await receive(socket)
                await ask(socket, LONG)
            await receive_until(first, "response.output_text.delta")
            await receive_until(second, "response.created")
            await until(lambda: gateway.engine.stats().num_waiting == 1)
            await send(second, {"type": "response.cancel"})
            response = await done(second)
            assert (response["status"], response["output"]) == ("cancelled", [])
            assert gateway.engine.stats().num_waiting == 0
            await send(first, {"type": "response.cancel"})
            await done(first)
        await gateway.settled()


async def test_can_05_cancel_before_anything_came(line: ClientConnection) -> None:
    await send(line, user_item(script(prepare_ms=200, num_tokens=500)))
    await send(line, {"type": "response.create"})
    await send(line, {"type": "response.cancel"})
    response = await done(line)
    assert (response["status"], response["output"]) == ("cancelled", [])
    await pong(line)


async def test_cancel_by_id_and_with_nothing_active(line: ClientConnection) -> None:
    await send(line, {"type": "response.cancel", "response_id": "resp_none", "event_id": "e"})
    error = (await receive(line))["error"]
    assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "e")
    await ask(line, LONG)
    response_id = (await receive_until(line, "response.created"))[-1]["response"]["id"]
    await send(line, {"type": "response.cancel", "response_id": "resp_none"})
    await receive_until(line, "error")
    await send(line, {"type": "response.cancel", "response_id": response_id})
    await send(line, {"type": "response.cancel", "response_id": response_id})
    assert (await done(line))["status"] == "cancelled"


async def test_out_of_band_runs_beside_the_conversation(line: ClientConnection) -> None:
    await ask(line, script(num_tokens=60, rate=100))
    first = (await receive_until(line, "response.created"))[-1]["response"]["id"]
    beside = {"conversation": "none", "input": [user_item(say("Aside"))["item"]]}
    await send(line, {"type": "response.create", "response": beside})
    seen: dict[str, str] = {}
    while len(seen) < 2:
        event = await receive(line)
        if event["type"] == "response.done":
            seen[event["response"]["id"]] = event["response"]["output"][0]["content"][0]["text"]
    assert "Aside" in seen.values()
    assert first in seen


async def test_input_may_refer_to_items(line: ClientConnection) -> None:
    await send(line, user_item(say("From the item"), id="item_a"))
    await receive_until(line, "conversation.item.done")
    create = {"conversation": "none", "input": [{"type": "item_reference", "id": "item_a"}]}
    await send(line, {"type": "response.create", "response": create})
    assert (await done(line))["output"][0]["content"][0]["text"] == "From the item"
    create["input"] = [{"type": "item_reference", "id": "none"}]
    await send(line, {"type": "response.create", "response": create, "event_id": "e"})
    error = (await receive(line))["error"]
    assert (error["code"], error["param"]) == ("item_not_found", "response.input.0.id")


async def test_an_empty_conversation_has_nothing_to_answer(line: ClientConnection) -> None:
    await send(line, {"type": "response.create"})
    assert (await receive(line))["error"]["code"] == "empty_conversation"
    await ask(line, say("now"))
    assert (await done(line))["status"] == "completed"


async def test_ctx_04_a_full_window_ends_with_length(redis_url: str) -> None:
    async with (
        running_gateway(redis_url, engine=FakeEngine(context_window=100)) as gateway,
        gateway.socket() as socket,
    ):
        await receive(socket)
        await ask(socket, script(num_tokens=500))
        response = await done(socket)
        assert response["status"] == "incomplete"
        assert response["status_details"]["reason"] == "max_output_tokens"
        assert response["usage"]["total_tokens"] == 100
        await send(socket, {"type": "response.create"})
        event = (await receive_until(socket, "response.done"))[-1]["response"]
        assert event["status_details"]["error"]["code"] == "context_length_exceeded"
        await pong(socket)


async def test_can_01_a_conversation_goes_on_without_its_socket(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, script(num_tokens=40, rate=100))
        await receive_until(socket, "response.output_text.delta")
        aside = {"conversation": "none", "input": [user_item(LONG)["item"]]}
        await send(socket, {"type": "response.create", "response": aside})
        await until(lambda: gateway.engine.stats().num_running == 2)
        socket.transport.abort()
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="completed") == 1
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1
    async with gateway.socket(f"?session_id={session_id}") as again:
        items = (await receive(again))["repartee.items"]
        assert [item["role"] for item in items] == ["user", "assistant"]
        assert items[1]["status"] == "completed"


async def test_res_01_03_a_socket_that_returns_sees_every_character_once(
    gateway: LiveGateway,
) -> None:
    text = "".join(f"{number} " for number in range(300))
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, script(text=text, rate=400))
        seen, cursor = "", {"epoch": 0, "seq": 0}
        for _ in range(4):
            event = (await receive_until(socket, "response.output_text.delta"))[-1]
            seen, cursor = seen + event["delta"], event["repartee.cursor"]
    for number in range(5):
        query = f"?session_id={session_id}"
        if number % 2 == 0:
            query += f"&epoch={cursor['epoch']}&starting_after={cursor['seq']}"
        async with gateway.socket(query) as socket:
            greeting = await receive(socket)
            assert [item["role"] for item in greeting["repartee.items"]] == ["user"]
            resumed = await receive(socket)
            assert resumed["type"] == "repartee.response.resumed"
            assert resumed["state"] == "live"
            seen = seen if resumed["text"] is None else resumed["text"]
            assert (resumed["text"] is None) == (number % 2 == 0)
            last = 5 if number < 4 else 10_000
            while last:
                event = await receive(socket)
                if event["type"] == "response.done":
                    assert event["response"]["output"][0]["content"][0]["text"] == text
                    assert event["response"]["status"] == "completed"
                    break
                if event["type"] == "response.output_text.delta":
                    assert event["repartee.cursor"]["seq"] > cursor["seq"]
                    seen, cursor = seen + event["delta"], event["repartee.cursor"]
                    last -= 1
                assert text.startswith(seen)
    assert seen == text


async def test_res_01_a_wrong_place_gives_the_whole_text(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, LONG)
        await receive_until(socket, "response.output_text.delta")
        query = f"?session_id={session_id}&epoch=9&starting_after=1"
        async with gateway.socket(query) as again:
            resumed = (await receive_until(again, "repartee.response.resumed"))[-1]
            assert resumed["text"]
            await send(again, {"type": "response.cancel"})
            assert (await done(again))["status"] == "cancelled"
        assert (await done(socket))["status"] == "cancelled"


async def test_res_01_a_response_that_has_ended_is_in_the_items(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, say("All of it"))
        await done(socket)
    async with gateway.socket(f"?session_id={session_id}&epoch=1&starting_after=1") as again:
        items = (await receive(again))["repartee.items"]
        assert items[1]["content"] == [{"type": "output_text", "text": "All of it"}]
        await pong(again)


async def test_a_second_tab_may_not_start_beside_the_first(gateway: LiveGateway) -> None:
    async with gateway.socket() as first:
        session_id = (await receive(first))["session"]["id"]
        await ask(first, LONG)
        await receive_until(first, "response.created")
        async with gateway.socket(f"?session_id={session_id}") as second:
            await receive_until(second, "repartee.response.resumed")
            await send(second, {"type": "response.create", "event_id": "e"})
            error = (await receive_until(second, "error"))[-1]["error"]
            assert error["code"] == "conversation_already_has_active_response"
            await send(second, {"type": "response.cancel"})
            assert (await done(second))["status"] == "cancelled"
        assert (await done(first))["status"] == "cancelled"
        await ask(first, say("again"))
        assert (await done(first))["status"] == "completed"


@pytest.mark.parametrize(
    ("query", "code", "close"),
    [
        ("?model=gpt-9", "model_not_found", 1008),
        ("?session_id=sess_none", "session_not_found", 1008),
        ("?session_id=" + "x" * 200, "invalid_value", 1008),
        ("?epoch=x&starting_after=1", "invalid_value", 1008),
        ("?epoch=1&starting_after=-1", "invalid_value", 1008),
        ("?epoch=1&starting_after=" + "9" * 50, "invalid_value", 1008),
    ],
)
async def test_a_wrong_query_is_told_then_closed(
    gateway: LiveGateway, query: str, code: str, close: int
) -> None:
    async with gateway.socket(query) as socket:
        event = await receive(socket)
        assert (event["type"], event["error"]["code"]) == ("error", code)
        assert await closed(socket) == close


async def test_without_a_worker_the_socket_says_so(redis_url: str) -> None:
    async with running_gateway(redis_url, worker=False) as gateway, gateway.socket() as socket:
        assert (await receive(socket))["error"]["code"] == "no_worker"
        assert await closed(socket) == 1013


async def test_aut_02_keys_on_sockets(redis_url: str) -> None:
    keys = parse_api_keys(f"{KEY}:acme:vip\n{KEY}2:other")
    async with running_gateway(redis_url, api_keys=keys) as gateway:
        for options in (
            {},
            {"additional_headers": {"authorization": "Bearer wrong-wrong-wrong"}},
            {"subprotocols": ["realtime", "openai-insecure-api-key.wrong-wrong-wrong"]},
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with gateway.socket(**options):
                    pass
            assert caught.value.response.status_code == 401
        with pytest.raises(InvalidStatus):
            async with gateway.socket(f"?api_key={KEY}"):
                pass
        header = {"additional_headers": {"authorization": f"Bearer {KEY}"}}
        async with gateway.socket(**header) as socket:
            session_id = (await receive(socket))["session"]["id"]
            assert socket.subprotocol is None
        offered = {"subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]}
        async with gateway.socket(**offered) as socket:
            assert (await receive(socket))["type"] == "session.created"
            assert socket.subprotocol == "realtime"
            assert KEY not in str(socket.response.headers)
        other = {"additional_headers": {"authorization": f"Bearer {KEY}2"}}
        async with gateway.socket(f"?session_id={session_id}", **other) as socket:
            assert (await receive(socket))["error"]["code"] == "session_not_found"


async def test_org_01_origins_of_sockets(redis_url: str) -> None:
    allowed = "https://app.example"
    async with running_gateway(redis_url, allowed_origins=(allowed,)) as gateway:
        for origin in ("https://evil.example", "null"):
            with pytest.raises(InvalidStatus) as caught:
                async with gateway.socket(origin=origin):
                    pass
            assert caught.value.response.status_code == 403
        for origin in (allowed, gateway.url, "http://localhost:3000"):
            async with gateway.socket(origin=origin) as socket:
                assert (await receive(socket))["type"] == "session.created"


async def test_an_unknown_socket_path_is_404(gateway: LiveGateway) -> None:
    from websockets.asyncio.client import connect

    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws://127.0.0.1:{gateway.port}/v1/chat/completions"):
            pass
    assert caught.value.response.status_code == 404


async def test_aut_04_no_secret_in_logs(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="app")
    caplog.set_level("DEBUG", logger="uvicorn")
    async with running_gateway(redis_url, api_keys=parse_api_keys(KEY)) as gateway:
        header = {"authorization": f"Bearer {KEY}"}
        offered = ["realtime", f"openai-insecure-api-key.{KEY}"]
        async with gateway.socket(f"?token={KEY}", subprotocols=offered) as socket:
            await receive(socket)
        async with gateway.socket(f"?token={KEY}", additional_headers=header) as socket:
            await receive(socket)
        await gateway.http.get(f"/v1/models?api_key={KEY}", headers=header)
        metrics = await gateway.http.get("/metrics", headers=header)
        assert KEY not in metrics.text
    assert KEY not in caplog.text


async def test_model_in_the_query(gateway: LiveGateway) -> None:
    async with gateway.socket(f"?model={MODEL}") as socket:
        session = (await receive(socket))["session"]
        assert session["model"] == MODEL
    async with gateway.socket(f"?session_id={session['id']}&model=other") as socket:
        assert (await receive(socket))["error"]["param"] == "model"
