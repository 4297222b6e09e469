"""Coming back at every place of an answer: no gap, no double, whatever became of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.engine import tokenize
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.spine import until

TEXT = "Añ 日🐕 one\n two three four"
STALLED = 5
SO_FAR = "".join(tokenize(TEXT)[:STALLED])


@pytest.fixture
async def gateways(redis_url: str) -> AsyncIterator[tuple[LiveGateway, LiveGateway]]:
    """Two gateways of one worker."""
    async with (
        running_gateway(redis_url) as first,
        running_gateway(redis_url, worker=False) as second,
    ):
        await until(lambda: second.gateway.responses.engine.ready())
        yield first, second


async def sse_of(
    gateway: LiveGateway, response_id: str, after: int | None, num_chars: int | None = None
) -> list[dict[str, Any]]:
    """Events of a resumed stream: to its end, or until so much text came."""
    query: dict[str, Any] = {"stream": "true"}
    if after is not None:
        query["starting_after"] = after
    events: list[dict[str, Any]] = []
    path = f"/v1/responses/{response_id}"
    async with asyncio.timeout(10), gateway.http.stream("GET", path, params=query) as answer:
        assert answer.status_code == 200, await answer.aread()
        if num_chars is not None and len(text_of(events)) >= num_chars:
            return events
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
            if num_chars is not None and events and len(text_of(events)) >= num_chars:
                return events
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def stalled_response(gateway: LiveGateway) -> str:
    """A stored response that stands still half way, after SO_FAR."""
    body = {"input": script(text=TEXT, stall_after=STALLED), "background": True}
    response_id = (await gateway.http.post("/v1/responses", json=body)).json()["id"]

    async def is_there() -> bool:
        stream = await gateway.gateway.responses.attach(response_id)
        events = stream.drain_pending()
        await stream.detach()
        whole = "".join(getattr(event, "text", "") for event in events)
        return whole == SO_FAR

    await until(is_there)
    return response_id


async def test_responses_resume_at_every_number(
    gateways: tuple[LiveGateway, LiveGateway],
) -> None:
    response_id = await stalled_response(gateways[0])
    for number in range(-1, 3 + len(SO_FAR)):
        after = None if number < 0 else number
        left = SO_FAR[max(0, number - 3) :]
        events = await sse_of(gateways[number % 2], response_id, after, len(left))
        assert text_of(events) == left, number
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers)) and (not numbers or numbers[0] > number)
    await gateways[1].http.post(f"/v1/responses/{response_id}/cancel")
    kept = (await gateways[0].http.get(f"/v1/responses/{response_id}")).json()
    assert kept["status"] == "cancelled"
    text = kept["output"][0]["content"][0]["text"]
    assert text.startswith(SO_FAR)
    whole = await sse_of(gateways[0], response_id, None)
    for number in range(len(text) + 8):
        rest = await sse_of(gateways[number % 2], response_id, number)
        assert text_of(rest) == text[max(0, number - 3) :]
        assert [e for e in rest if e["type"] != "response.output_text.delta"] == [
            e
            for e in whole
            if e["type"] != "response.output_text.delta" and e["sequence_number"] > number
        ]
    await gateways[0].http.delete(f"/v1/responses/{response_id}")
    gone = await gateways[1].http.get(f"/v1/responses/{response_id}?stream=true&starting_after=3")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")


async def test_sockets_resume_at_every_cursor(gateways: tuple[LiveGateway, LiveGateway]) -> None:
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": script(text=TEXT, stall_after=STALLED)}],
    }
    seen: list[tuple[dict[str, int], str]] = []
    async with gateways[0].socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await socket.send('{"type": "response.create"}')
        created = (await receive_until(socket, "response.created"))[-1]
        response_id = created["response"]["id"]
        text = ""
        while text != SO_FAR:
            event = (await receive_until(socket, "response.output_text.delta"))[-1]
            text += event["delta"]
            seen.append((event["repartee.cursor"], text))
    query = f"?session_id={session_id}&response_id={response_id}"
    # The place before the first delta, every place, and some that are none.
    places = [({"epoch": 1, "seq": 0}, ""), *seen]
    for number, (cursor, before) in enumerate(places):
        place = f"&epoch={cursor['epoch']}&starting_after={cursor['seq']}"
        async with gateways[number % 2].socket(query + place) as socket:
            assert (await receive(socket))["repartee.resume"] == "live"
            assert (await receive(socket))["text"] is None
            while before != text:
                event = await receive(socket)
                assert event["type"] == "response.output_text.delta"
                before += event["delta"]
                assert text.startswith(before)
    for epoch, seq in ((0, 0), (1, 999), (2, 1), (7, 7)):
        place = f"&epoch={epoch}&starting_after={seq}"
        async with gateways[seq % 2].socket(query + place) as socket:
            assert (await receive(socket))["repartee.resume"] == "live"
            assert (await receive(socket))["text"] == text
    async with gateways[1].socket(query) as socket:
        await receive_until(socket, "repartee.response.resumed")
        await socket.send('{"type": "response.cancel"}')
        await receive_until(socket, "response.done")
    for cursor, _ in places:
        place = f"&epoch={cursor['epoch']}&starting_after={cursor['seq']}"
        for each in (query + place, f"?session_id={session_id}{place}"):
            async with gateways[0].socket(each) as socket:
                created = await receive(socket)
                assert created["repartee.resume"] == "finished"
                assert len(created["repartee.items"]) == 2
    async with gateways[0].socket(f"?session_id={session_id}&response_id=resp_none") as socket:
        assert (await receive(socket))["repartee.resume"] == "gone"
    async with gateways[0].socket(f"?session_id={session_id}") as socket:
        assert "repartee.resume" not in await receive(socket)
    async with gateways[0].socket("?response_id=" + "x" * 200) as socket:
        assert (await receive(socket))["error"]["param"] == "response_id"


async def test_a_place_in_another_response_counts_for_nothing(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        item = {"type": "message", "role": "user"}
        content = [{"type": "input_text", "text": script(text=TEXT, stall_after=STALLED)}]
        create = {"type": "conversation.item.create", "item": {**item, "content": content}}
        await socket.send(json.dumps(create))
        await socket.send('{"type": "response.create"}')
        await receive_until(socket, "response.output_text.delta")
        query = f"?session_id={session_id}&response_id=resp_old&epoch=1&starting_after=1"
        async with gateway.socket(query) as again:
            assert (await receive(again))["repartee.resume"] == "gone"
            assert (await receive(again))["text"] is not None
