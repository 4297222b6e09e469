"""`/v1/responses` as a raw WebSocket: lanes, limits, leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.gateway import responses_socket
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say, script
from tests.spine import until

ENDS = ("response.completed", "response.failed", "response.incomplete")


def open_socket(gateway: LiveGateway) -> connect:
    return connect(f"ws://127.0.0.1:{gateway.port}/v1/responses", max_size=None)


@pytest.fixture
async def line(gateway: LiveGateway) -> AsyncIterator[ClientConnection]:
    async with open_socket(gateway) as socket:
        yield socket


async def create(socket: ClientConnection, text: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", "input": text, **fields}))


async def test_a_lane_is_first_come_first_served(line: ClientConnection) -> None:
    for number in range(5):
        await create(line, say(f"answer {number}"), stream_id="a")
    for number in range(5):
        events = await receive_until(line, ENDS)
        assert {event["stream_id"] for event in events} == {"a"}
        output = events[-1]["response"]["output"][0]
        assert output["content"][0]["text"] == f"answer {number}"


async def test_the_lane_without_a_name_names_none(line: ClientConnection) -> None:
    await create(line, say("x"))
    assert all("stream_id" not in event for event in await receive_until(line, ENDS))


@pytest.mark.parametrize(
    ("frame", "code", "lane"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ('{"type": "response.create", "stream_id": "a b"}', "invalid_stream_id", None),
        ('{"type": "response.create", "stream_id": ""}', "invalid_stream_id", None),
        ('{"type": "response.create", "stream_id": "a"}', "missing_required_parameter", "a"),
        ('{"type": "response.steer", "stream_id": "a"}', "unknown_event_type", "a"),
        ('{"type": "response.create", "input": "x", "background": true}', None, None),
        ('{"type": "response.create", "input": "x", "tools": [{}]}', "unsupported_parameter", None),
        ('{"type": "response.cancel"}', "response_cancel_not_active", None),
        ('{"type": "response.cancel", "response_id": "r"}', "response_cancel_not_active", None),
    ],
)
async def test_wrong_events_get_one_error(
    line: ClientConnection, frame: str, code: str | None, lane: str | None
) -> None:
    await line.send(frame)
    event = await receive(line)
    assert event["type"] == "error" and event["status"] == 400
    assert event["error"]["code"] == (code or "unsupported_parameter")
    assert event.get("stream_id") == lane
    await create(line, say("still here"))
    assert (await receive_until(line, ENDS))[-1]["type"] == "response.completed"


async def test_lanes_and_places_are_bounded(
    gateway: LiveGateway, line: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_LANES", 3)
    monkeypatch.setattr(responses_socket, "MAX_WAITING", 4)
    slow = script(num_tokens=5000, rate=50)
    for name in ("a", "b", "c"):
        await create(line, slow, stream_id=name)
    await gateway.running(3)
    await create(line, "x", stream_id="d")
    error = (await receive_until(line, "error"))[-1]
    assert error["error"]["code"] == "websocket_stream_limit_reached"
    assert error["stream_id"] == "d"
    for _ in range(4):
        await create(line, "x", stream_id="a")
    await create(line, "x", stream_id="b")
    error = (await receive_until(line, "error"))[-1]
    assert (error["error"]["code"], error["status"]) == ("too_many_responses", 429)


async def test_who_leaves_ends_only_what_is_not_stored(gateway: LiveGateway) -> None:
    slow = script(text="word " * 40, rate=100)
    async with open_socket(gateway) as socket:
        await create(socket, slow, stream_id="kept")
        await create(socket, script(num_tokens=5000, rate=50), stream_id="gone", store=False)
        ids: dict[str, str] = {}
        while len(ids) < 2:
            event = await receive(socket)
            if event["type"] == "response.created":
                ids[event["stream_id"]] = event["response"]["id"]
    await gateway.settled()
    kept = (await gateway.http.get(f"/v1/responses/{ids['kept']}")).json()
    assert kept["status"] == "completed"
    assert kept["output"][0]["content"][0]["text"] == "word " * 40
    assert (await gateway.http.get(f"/v1/responses/{ids['gone']}")).status_code == 404


async def test_sockets_of_a_gateway_that_stops_close_with_1012(redis_url: str) -> None:
    async with (
        running_gateway(redis_url, grace_s=5.0) as gateway,
        open_socket(gateway) as idle,
        open_socket(gateway) as busy,
    ):
        await create(busy, script(text="word " * 20, rate=100))
        await receive_until(busy, "response.output_text.delta")
        gateway.server.stop()
        with pytest.raises(ConnectionClosed) as caught:
            await receive(idle)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012
        events = await receive_until(busy, ENDS)
        assert events[-1]["type"] == "response.completed"
        with pytest.raises(ConnectionClosed) as caught:
            await receive(busy)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012


async def test_a_binary_frame_ends_with_1003(line: ClientConnection) -> None:
    await line.send(b"{}")
    with pytest.raises(ConnectionClosed) as caught:
        await receive(line)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1003


async def test_many_responses_at_once_are_all_whole(gateway: LiveGateway) -> None:
    async with open_socket(gateway) as socket:
        wanted = {f"lane{n}": f"text {n} " * 12 for n in range(24)}
        for name, text in wanted.items():
            await create(socket, say(text), stream_id=name)
        texts: dict[str, str] = dict.fromkeys(wanted, "")
        ended: set[str] = set()
        async with asyncio.timeout(20):
            while len(ended) < len(wanted):
                event = await receive(socket)
                if event["type"] == "response.output_text.delta":
                    texts[event["stream_id"]] += event["delta"]
                elif event["type"] in ENDS:
                    ended.add(event["stream_id"])
        assert texts == wanted
        await until(lambda: gateway.gateway.responses.num_running == 0)
