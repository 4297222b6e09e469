"""Several sockets on one conversation, on one gateway and on two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from app.gateway import realtime, tab_sync
from app.sessions import keys
from tests.gateway.live import (
    LiveGateway,
    receive,
    receive_until,
    running_gateway,
    say,
    script,
)
from tests.redis_server import RedisServer
from tests.spine import until


@pytest.fixture(params=["one gateway", "two gateways"])
async def gateways(
    request: pytest.FixtureRequest, redis_url: str
) -> AsyncIterator[tuple[LiveGateway, LiveGateway]]:
    """The gateways of two tabs."""
    async with running_gateway(redis_url) as first:
        if request.param == "one gateway":
            yield first, first
            return
        async with running_gateway(redis_url, worker=False) as second:
            await until(lambda: second.gateway.responses.engine.ready())
            yield first, second


def user(text: str, item_id: str | None = None) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }
    return {"type": "conversation.item.create", "item": item | ({"id": item_id} if item_id else {})}


async def send(socket: ClientConnection, *events: dict[str, Any]) -> None:
    for event in events:
        await socket.send(json.dumps(event))


CREATE = {"type": "response.create"}


async def open_tabs(
    gateways: tuple[LiveGateway, LiveGateway], stack: AsyncExitStack
) -> tuple[ClientConnection, ClientConnection, str]:
    one = await stack.enter_async_context(gateways[0].socket(max_queue=None))
    session_id = (await receive(one))["session"]["id"]
    query = f"?session_id={session_id}"
    two = await stack.enter_async_context(gateways[1].socket(query, max_queue=None))
    assert (await receive(two))["type"] == "session.created"
    return one, two, session_id


@pytest.fixture
async def tabs(
    gateways: tuple[LiveGateway, LiveGateway],
) -> AsyncIterator[tuple[ClientConnection, ClientConnection, str]]:
    """Two sockets of one conversation, and its id."""
    async with AsyncExitStack() as stack:
        yield await open_tabs(gateways, stack)


Tabs = tuple[ClientConnection, ClientConnection, str]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types in order, runs of deltas as one."""
    found = [event["type"] for event in events]
    return [kind for i, kind in enumerate(found) if i == 0 or kind != found[i - 1]]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def test_a_turn_of_one_tab_is_seen_whole_on_the_other(tabs: Tabs) -> None:
    one, two, _ = tabs
    for asking, watching in ((one, two), (two, one)):
        text = "a turn 日本 🐕 of many small words that are seen on both"
        metadata = {"from": "a tab"}
        create = {**CREATE, "response": {"metadata": metadata, "max_output_tokens": 500}}
        await send(asking, user(say(text)), create)
        own = await receive_until(asking, "response.done")
        seen = await receive_until(watching, "response.done")
        assert kinds(own) == kinds(seen)
        assert text_of(own) == text_of(seen) == text
        assert own[0]["item"] == seen[0]["item"]
        assert own[0].get("repartee.title") == seen[0].get("repartee.title")
        assert own[-1]["response"] == seen[-1]["response"]
        assert seen[-1]["response"]["metadata"] == metadata
        assert own[-1]["repartee.cursor"] == seen[-1]["repartee.cursor"]


async def test_either_tab_cancels(tabs: Tabs) -> None:
    one, two, _ = tabs
    for canceller in (two, one):
        await send(one, user(script(num_tokens=5000, rate=100)), CREATE)
        await receive_until(one, "response.output_text.delta")
        await receive_until(two, "response.output_text.delta")
        await send(canceller, {"type": "response.cancel"})
        for tab in (one, two):
            done = (await receive_until(tab, "response.done"))[-1]
            assert done["response"]["status"] == "cancelled"


async def test_one_response_runs_for_all_tabs(tabs: Tabs) -> None:
    one, two, _ = tabs
    await send(one, user(script(num_tokens=5000, rate=100)), CREATE)
    await receive_until(two, "response.output_text.delta")
    await send(two, {**CREATE, "event_id": "second"})
    error = (await receive_until(two, "error"))[-1]["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "second"
    truncate = {"type": "repartee.conversation.truncate", "item_id": "root"}
    await send(two, truncate)
    error = (await receive_until(two, "error"))[-1]["error"]
    assert error["code"] == "conversation_already_has_active_response"
    await send(one, {"type": "response.cancel"})
    await receive_until(one, "response.done")
    # Right after the end a create of the other tab is taken, and the ends keep their order.
    await send(two, CREATE)
    events = await receive_until(two, ("response.created", "error"))
    assert kinds(events)[-2:] == ["response.done", "response.created"]
    await send(two, {"type": "response.cancel"})
    await receive_until(two, "response.done")


async def test_both_at_once_one_is_told_why_not(tabs: Tabs) -> None:
    one, two, _ = tabs
    await send(one, user(script(num_tokens=5000, rate=200)))
    await receive_until(two, "conversation.item.done")
    await asyncio.gather(send(one, CREATE), send(two, CREATE))
    seen = await asyncio.gather(
        *(receive_until(tab, ("response.output_text.delta", "error")) for tab in (one, two))
    )
    refused = [events[-1] for events in seen if events[-1]["type"] == "error"]
    assert len(refused) == 1
    assert refused[0]["error"]["code"] == "conversation_already_has_active_response"
    await send(one, {"type": "response.cancel"})
    for tab in (one, two):
        await receive_until(tab, "response.done")


async def test_changes_of_items_and_settings_reach_the_other_tab(tabs: Tabs) -> None:
    one, two, _ = tabs
    await send(one, user("first", "a"), user(say("four words of text"), "b"), CREATE)
    done = (await receive_until(two, "response.done"))[-1]
    answer = done["response"]["output"][0]["id"]
    cut = {"type": "conversation.item.truncate", "item_id": answer, "repartee.text_end": 4}
    await send(one, cut)
    seen = await receive(two)
    assert (seen["type"], seen["repartee.text_end"]) == ("conversation.item.truncated", 4)
    await send(one, {"type": "conversation.item.delete", "item_id": answer})
    seen = await receive(two)
    assert (seen["type"], seen["item_id"]) == ("conversation.item.deleted", answer)
    session = {"type": "realtime", "instructions": "Be brief.", "max_output_tokens": 7}
    await send(one, {"type": "session.update", "session": session})
    seen = await receive(two)
    assert seen["type"] == "session.updated"
    assert seen["session"]["instructions"] == "Be brief."
    # What one tab set holds for a response that the other asks for.
    await send(two, CREATE)
    assert (await receive_until(two, "response.created"))[-1]["response"]["max_output_tokens"] == 7
    await receive_until(two, "response.done")


async def test_edit_and_resend(tabs: Tabs, gateways: tuple[LiveGateway, LiveGateway]) -> None:
    one, two, session_id = tabs
    await send(one, user(say("old"), "a"), CREATE)
    await receive_until(one, "response.done")
    old = (await receive_until(two, "response.done"))[-1]["response"]["output"][0]["id"]
    truncate = {"type": "repartee.conversation.truncate", "item_id": "root"}
    await send(two, truncate, user(say("new"), "b"), {**CREATE, "repartee.answers": "b"})
    for tab in (one, two):
        events = await receive_until(tab, "response.done")
        assert events[0]["type"] == "repartee.conversation.truncated" or tab is one
        (told,) = [e for e in events if e["type"] == "repartee.conversation.truncated"]
        assert told["item_id"] == "root" and told["deleted_item_ids"] == ["a", old]
        assert text_of(events) == "new"
    # Regenerate: the same message is answered anew.
    await send(one, {**truncate, "item_id": "b"}, {**CREATE, "repartee.answers": "b"})
    for tab in (one, two):
        assert text_of(await receive_until(tab, "response.done")) == "new"
    body = (await gateways[0].http.get(f"/v1/sessions/{session_id}")).json()
    assert len(body["items"]) == 2 and body["items"][0]["id"] == "b"
    await send(one, {**truncate, "item_id": "a", "event_id": "late"})
    error = (await receive(one))["error"]
    assert (error["code"], error["event_id"]) == ("item_not_found", "late")
    await send(one, {"type": "repartee.conversation.truncate"})
    assert (await receive(one))["error"]["param"] == "item_id"


async def test_renames_and_deletes_reach_all_tabs(
    tabs: Tabs, gateways: tuple[LiveGateway, LiveGateway]
) -> None:
    one, two, session_id = tabs
    await send(one, user("hello there"))
    for tab in (one, two):
        assert (await receive(tab))["repartee.title"] == "hello there"
        assert "repartee.title" not in await receive(tab)
    http = gateways[1].http
    await http.post(f"/v1/sessions/{session_id}", json={"title": "Mine"})
    for tab in (one, two):
        seen = await receive(tab)
        assert (seen["type"], seen["title"]) == ("repartee.session.title", "Mine")
    async with gateways[0].socket(f"?session_id={session_id}") as third:
        assert (await receive(third))["repartee.title"] == "Mine"
    await send(one, CREATE)
    await receive_until(two, "response.created")
    await http.delete(f"/v1/sessions/{session_id}")
    for tab in (one, two):
        seen = (await receive_until(tab, "repartee.session.deleted"))[-1]
        assert seen["session_id"] == session_id
        with pytest.raises(ConnectionClosed) as caught:
            await receive(tab)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000
    for each in gateways:
        await until(lambda each=each: each.gateway.responses.num_running == 0)
    async with gateways[0].socket(f"?session_id={session_id}") as gone:
        assert (await receive(gone))["error"]["code"] == "session_not_found"


async def test_what_is_too_long_to_be_told_is_read(
    tabs: Tabs, gateways: tuple[LiveGateway, LiveGateway]
) -> None:
    one, two, _ = tabs
    instructions = "y" * 70_000
    session = {"type": "realtime", "instructions": instructions}
    await send(one, {"type": "session.update", "session": session})
    seen = await receive(two)
    assert seen["type"] == "repartee.resynced"
    assert seen["session"]["instructions"] == instructions


async def test_missed_changes_are_made_good(
    tabs: Tabs, gateways: tuple[LiveGateway, LiveGateway], redis_server: RedisServer
) -> None:
    one, two, session_id = tabs
    await send(one, user(script(num_tokens=5000, rate=100), "a"), CREATE)
    await receive_until(two, "response.output_text.delta")
    # One change that nobody was told of, and one that is.
    with redis_server.client() as outside:
        outside.hincrby(keys.of(session_id)[0], "version", 1)
    await send(one, user("more", "b"))
    events = await receive_until(two, "repartee.response.resumed")
    resynced = next(e for e in events if e["type"] == "repartee.resynced")
    assert [item["id"] for item in resynced["repartee.items"]] == ["a", "b"]
    text = events[-1]["text"]
    await send(two, {"type": "response.cancel"})
    rest = await receive_until(two, "response.done")
    assert text + text_of(rest) == rest[-1]["response"]["output"][0]["content"][0]["text"]


async def test_the_feed_comes_back_after_its_connection_was_cut(
    gateways: tuple[LiveGateway, LiveGateway], redis_server: RedisServer
) -> None:
    async with AsyncExitStack() as stack:
        one, two, _ = await open_tabs(gateways, stack)
        with redis_server.client() as outside:
            for client in outside.client_list():
                if client["name"] == "repartee-changes":
                    outside.client_kill_filter(_id=client["id"])
        # Whether the feed is back already or not, nothing is lost.
        await send(one, user("while away", "a"))
        seen = (await receive_until(two, ("repartee.resynced", "conversation.item.added")))[-1]
        items = [seen["item"]] if "item" in seen else seen["repartee.items"]
        assert [item["id"] for item in items] == ["a"]
        await send(one, user(say("and then"), "b"), CREATE)
        assert text_of(await receive_until(two, "response.done")) == "and then"


async def test_a_quiet_socket_keeps_its_session(
    gateway: LiveGateway, redis_server: RedisServer
) -> None:
    async with gateway.socket() as socket:
        name = keys.of((await receive(socket))["session"]["id"])[0]
        with redis_server.client() as outside:
            outside.expire(name, 50)
            await gateway.gateway.realtime.keep_sessions()
            assert outside.ttl(name) > 50
    assert realtime.KEEP_S < keys.EMPTY_TTL_S / 2


async def test_a_response_that_no_worker_took_is_not_waited_for(
    tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = tabs
    monkeypatch.setattr(tab_sync, "ATTACH_MAX_S", 0.02)
    await send(one, CREATE)
    assert (await receive(one))["error"]["code"] == "empty_conversation"
    await send(one, user(say("fine")), CREATE)
    events = await receive_until(two, "response.done")
    assert events[0]["type"] == "conversation.item.added" and text_of(events) == "fine"
    assert "repartee.resynced" not in kinds(events)


async def test_the_last_tab_lets_go_of_the_kv(gateway: LiveGateway) -> None:
    async with AsyncExitStack() as stack:
        one, two, session_id = await open_tabs((gateway, gateway), stack)
        await send(one, user(say("x")), CREATE)
        await receive_until(one, "response.done")
        await one.close()
        # A turn on the other tab shows that the first one's end was carried out.
        await send(two, user(say("y")), CREATE)
        await receive_until(two, "response.done")
        await until(lambda: len(gateway.gateway.realtime.sockets) == 1)
        assert gateway.engine.released == []
    await until(lambda: gateway.engine.released == [session_id])
