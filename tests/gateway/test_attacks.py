"""Callers who want more than is theirs: others' chats, more room than they were given."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest import mock

import httpx
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect

from app.auth import Allowance, parse_api_keys
from app.gateway import responses_socket
from app.gateway.tab_sync import TabSync
from app.limits import NO_LIMITS, LimitPolicy
from app.sessions import Item, stored
from app.sessions.changes import Change, ResponseEnded
from tests.gateway.live import LiveGateway, receive_until, running_gateway, script
from tests.spine import until

ACME = {"authorization": "Bearer sk-0123456789abcdef"}
OTHER = {"authorization": "Bearer sk-0123456789abcdef2"}
KEYS = "sk-0123456789abcdef:acme\nsk-0123456789abcdef2:other"
LONG = script(num_tokens=2000, rate=20)


def guarded(redis_url: str, **allowance: int) -> AbstractAsyncContextManager[LiveGateway]:
    """A gateway with the tenants acme, which has these limits, and other."""
    return running_gateway(
        redis_url,
        api_keys=parse_api_keys(KEYS),
        limits=LimitPolicy(NO_LIMITS, tenants={"acme": Allowance(**allowance)}),
    )


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    """A gateway with two tenants and no limits."""
    async with guarded(redis_url) as live:
        yield live


async def background(gateway: LiveGateway, headers: dict[str, str]) -> httpx.Response:
    """A response that runs by itself."""
    body = {"input": LONG, "background": True}
    return await gateway.http.post("/v1/responses", json=body, headers=headers)


async def _look_and_leave(gateway: LiveGateway, response_id: str) -> None:
    target = f"/v1/responses/{response_id}?stream=true"
    async with gateway.http.stream("GET", target, headers=ACME) as answer:
        await anext(answer.aiter_lines())


async def _ask_for_its_state(gateway: LiveGateway, response_id: str) -> None:
    query = f"?response_id={response_id}"
    async with gateway.socket(query, additional_headers=ACME) as socket:
        await receive_until(socket, "session.created")


@pytest.mark.parametrize("trick", [_look_and_leave, _ask_for_its_state])
async def test_who_looks_at_an_answer_and_leaves_frees_no_place(
    redis_url: str, trick: Callable[[LiveGateway, str], Any]
) -> None:
    async with guarded(redis_url, concurrent_responses=1) as gateway:
        first = await background(gateway, ACME)
        assert first.status_code == 200
        for _ in range(3):
            await trick(gateway, first.json()["id"])
        await asyncio.sleep(0.1)
        assert (await background(gateway, ACME)).status_code == 429
        await gateway.http.post(f"/v1/responses/{first.json()['id']}/cancel", headers=ACME)
        await gateway.settled()
        assert (await background(gateway, ACME)).status_code == 200


def large_event(number: int) -> str:
    return json.dumps({"type": "no.such", "event_id": f"e{number}", "x": "x" * 1_000_000})


async def test_a_socket_whose_events_are_held_up_holds_few_bytes_of_them(
    gateway: LiveGateway, redis_url: str
) -> None:
    async with gateway.socket(additional_headers=ACME, write_limit=1 << 16) as socket:
        await receive_until(socket, "session.created")
        (served,) = gateway.gateway.realtime.sockets
        async with Redis.from_url(redis_url) as redis:
            await redis.client_pause(1500)
        await socket.send('{"type":"conversation.item.retrieve","item_id":"x"}')

        async def flood() -> None:
            for number in range(12):
                await socket.send(large_event(number))

        flooding = asyncio.create_task(flood())
        held = 0
        async with asyncio.timeout(20):
            while not flooding.done():
                held = max(held, served._inbox.num_chars)
                await asyncio.sleep(0.01)
        assert held <= 2 * 1024 * 1024
        named = []
        while len(named) < 12:
            event = (await receive_until(socket, "error", timeout_s=20))[-1]
            named.append(event["error"]["event_id"])
            named = [name for name in named if name]
        assert named == [f"e{number}" for number in range(12)]


async def test_creates_that_wait_are_bounded_in_size(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_WAITING_CHARS", 2500)
    url = f"ws://127.0.0.1:{gateway.port}/v1/responses"
    async with connect(url, additional_headers=ACME) as socket:
        create = {"type": "response.create", "input": script(num_tokens=500, rate=50)}
        await socket.send(json.dumps(create))
        await receive_until(socket, "response.created")
        for _ in range(4):
            await socket.send(json.dumps({"type": "response.create", "input": "x" * 1000}))
        error = (await receive_until(socket, "error"))[-1]
        assert (error["status"], error["error"]["code"]) == (429, "too_many_responses")
        await socket.send('{"type":"response.cancel"}')
        ends = 0
        while ends < 4:
            last = await receive_until(socket, ("response.completed", "response.incomplete"))
            ends += bool(last)


async def test_a_tab_that_closes_while_an_answer_ends_leaves_no_work_undone(
    gateway: LiveGateway, recwarn: pytest.WarningsRecorder
) -> None:
    """The end is awaited by a task that may be cancelled before it begins."""
    subscription, response = mock.Mock(), mock.Mock()
    tabs = TabSync(
        *(subscription, mock.Mock(version=1, origin="me"), mock.Mock(), mock.Mock(), mock.Mock()),
        show=mock.AsyncMock(),
        start=mock.Mock(),
        running=lambda _: response,
    )
    tabs._take(Change(2, "", ResponseEnded("resp_1")))
    tabs.close()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


async def test_requests_that_are_refused_cost_no_stored_response(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_STORED", 2)
    async with guarded(redis_url, concurrent_responses=1) as gateway:
        kept = []
        for _ in range(2):
            answer = await gateway.http.post("/v1/responses", json={"input": "hi"}, headers=ACME)
            kept.append(answer.json()["id"])
            await gateway.settled()
        runs = await gateway.http.post(
            "/v1/responses", json={"input": LONG, "background": True}, headers=ACME
        )
        assert runs.status_code == 200
        for _ in range(3):
            assert (await background(gateway, ACME)).status_code == 429
        left = [await gateway.http.get(f"/v1/responses/{rid}", headers=ACME) for rid in kept]
        # The one that was taken has the place of the oldest; the refused have nobody's.
        assert [answer.status_code for answer in left] == [404, 200]


async def test_nobody_takes_the_place_of_an_answer_that_runs(gateway: LiveGateway) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": LONG}]}
    async with gateway.socket(additional_headers=ACME) as socket:
        for event in (
            {"type": "conversation.item.create", "item": item},
            {"type": "response.create"},
        ):
            await socket.send(json.dumps(event))
        added = (await receive_until(socket, "response.output_item.added"))[-1]
        answer_id = added["item"]["id"]
        thief = {**item, "id": answer_id}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": thief}))
        error = (await receive_until(socket, "error"))[-1]["error"]
        assert (error["code"], error["param"]) == ("item_id_taken", "item.id")
        await socket.send('{"type":"response.cancel"}')
        await receive_until(socket, "response.done")
        await socket.send(json.dumps({"type": "conversation.item.retrieve", "item_id": answer_id}))
        kept = (await receive_until(socket, "conversation.item.retrieved"))[-1]["item"]
        assert kept["role"] == "assistant"


async def fill(gateway: LiveGateway, session_id: str, num_items: int, text: str) -> None:
    """Put items into a conversation without any socket."""
    for number in range(num_items):
        await gateway.gateway._sessions.items.add(session_id, Item(f"i{number}", "user", text))


async def test_a_conversation_far_beyond_the_window_is_not_read_to_be_refused(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway.socket(additional_headers=ACME) as socket:
        session_id = (await receive_until(socket, "session.created"))[-1]["session"]["id"]
        await fill(gateway, session_id, 20, "x" * 100_000)
        read = mock.AsyncMock(side_effect=AssertionError("it was read"))
        monkeypatch.setattr(gateway.gateway._sessions, "load", read)
        await socket.send('{"type":"repartee.input_draft","text":"abc"}')
        await socket.send('{"type":"response.create","event_id":"mine"}')
        error = (await receive_until(socket, "error"))[-1]["error"]
        assert (error["code"], error["event_id"]) == ("context_length_exceeded", "mine")
        assert gateway.engine.warmed == []


async def test_a_conversation_near_the_window_is_answered(gateway: LiveGateway) -> None:
    async with gateway.socket(additional_headers=ACME) as socket:
        session_id = (await receive_until(socket, "session.created"))[-1]["session"]["id"]
        await fill(gateway, session_id, 400, 'a "quoted"\n\tword')
        await socket.send('{"type":"response.create"}')
        done = (await receive_until(socket, "response.done"))[-1]["response"]
        assert done["status"] == "completed"


async def test_an_open_socket_keeps_no_copy_of_its_conversation(gateway: LiveGateway) -> None:
    async with gateway.socket(additional_headers=ACME) as socket:
        session_id = (await receive_until(socket, "session.created"))[-1]["session"]["id"]
    await fill(gateway, session_id, 3, "words")
    query = f"?session_id={session_id}"
    async with gateway.socket(query, additional_headers=ACME) as socket:
        greeting = (await receive_until(socket, "session.created"))[-1]
        assert len(greeting["repartee.items"]) == 3
        (served,) = (s for s in gateway.gateway.realtime.sockets if s.session_id == session_id)
        await socket.send('{"type":"repartee.ping"}')
        await receive_until(socket, "repartee.pong")
        assert served._conversation.items == ()


@pytest.mark.parametrize("target", ["?query=x", "/sess_x", "/sess_x/export"])
async def test_one_tenants_readings_hold_up_nobody_elses(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    sessions, go_on, waiting = gateway.gateway._sessions, asyncio.Event(), []
    search, load = sessions.index.page, sessions.load

    def held_up(read: Any, tenant_of: Callable[..., str]) -> Any:
        async def reading(*args: Any, **options: Any) -> Any:
            if tenant_of(*args, **options) == "acme":
                waiting.append(target)
                await go_on.wait()
            return await read(*args, **options)

        return reading

    monkeypatch.setattr(sessions.index, "page", held_up(search, lambda tenant, **_: tenant))
    monkeypatch.setattr(sessions, "load", held_up(load, lambda _, tenant: tenant))
    async with asyncio.TaskGroup() as group:
        flood = [
            group.create_task(gateway.http.get(f"/v1/sessions{target}", headers=ACME))
            for _ in range(8)
        ]
        await until(lambda: waiting)
        other = await gateway.http.get(f"/v1/sessions{target}", headers=OTHER, timeout=5)
        assert other.status_code == (200 if "query" in target else 404)
        assert waiting == [target]
        go_on.set()
    assert {task.result().status_code for task in flood} == {other.status_code}


async def test_a_full_redis_still_gives_conversations_out_and_lets_them_go(
    gateway: LiveGateway, redis_url: str
) -> None:
    async with gateway.socket(additional_headers=ACME) as socket:
        session_id = (await receive_until(socket, "session.created"))[-1]["session"]["id"]
    await fill(gateway, session_id, 3, "words")
    async with Redis.from_url(redis_url) as redis:
        await redis.config_set("maxmemory", 1)
        await redis.script_flush()
        try:
            for path in ("", "/export"):
                target = f"/v1/sessions/{session_id}{path}"
                answer = await gateway.http.get(target, headers=ACME)
                assert (answer.status_code, len(answer.json()["items"])) == (200, 3)
            gone = await gateway.http.delete(f"/v1/sessions/{session_id}", headers=ACME)
            assert gone.status_code == 200
            assert not await redis.exists(f"rp:ses:{{{session_id}}}")
        finally:
            await redis.config_set("maxmemory", 0)
