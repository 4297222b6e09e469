"""What a caller may store, through sockets and HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from app.auth import parse_api_keys
from app.limits import LimitPolicy, StoragePolicy
from app.sessions.quota import StorageLimits
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say
from tests.gateway.test_realtime import ask, done, send, user_item
from tests.gateway.test_subjects import begin
from tests.gateway.test_tokens import KEY, bearing

HEADERS = {"authorization": f"Bearer {KEY}"}
LIMITS = StorageLimits(conversations=2, stored_bytes=8192)


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    limits = LimitPolicy(storage=StoragePolicy(default=LIMITS))
    keys = parse_api_keys(f"{KEY}:acme")
    async with running_gateway(redis_url, api_keys=keys, limits=limits) as live:
        yield live


async def test_a_full_store_refuses_with_its_limit_and_has_room_after_a_delete(
    gateway: LiveGateway,
) -> None:
    first = await begin(gateway, KEY)
    await begin(gateway, KEY)
    listed = (await gateway.http.get("/v1/sessions", headers=HEADERS)).json()
    assert listed["storage"]["conversations"] == {"used": 2, "limit": 2}
    stored = listed["storage"]["stored_bytes"]
    assert stored["limit"] == 8192 and 2048 < stored["used"] < 8192
    async with gateway.socket(**bearing(KEY)) as socket:
        await receive(socket)
        await send(socket, user_item(say("ok")))
        error = (await receive_until(socket, "error"))[-1]["error"]
        assert error["code"] == "storage_full"
        assert "at most 2 conversations, this one would be number 3" in error["message"]
        deleted = await gateway.http.delete(f"/v1/sessions/{first}", headers=HEADERS)
        assert deleted.status_code == 200
        # Here, and in the same breath.
        await ask(socket, say("ok"))
        assert (await done(socket))["status"] == "completed"


async def test_stored_responses_take_of_the_same_room(gateway: LiveGateway) -> None:
    async def respond(**more: object) -> tuple[int, dict[str, dict[str, str]]]:
        body = {"input": "x" * 3000, **more}
        answer = await gateway.http.post("/v1/responses", json=body, headers=HEADERS)
        return answer.status_code, answer.json()

    kept = [await respond() for _ in range(2)]
    assert [status for status, _ in kept] == [200, 200]
    status, body = await respond()
    assert (status, body["error"]["code"]) == (400, "storage_full")
    assert "8192 stored bytes" in body["error"]["message"]
    # What is not stored needs no room, and neither does a chat completion.
    assert (await respond(store=False))[0] == 200
    assert (await gateway.http.delete(f"/v1/responses/{kept[0][1]['id']}", headers=HEADERS)).json()
    assert (await respond())[0] == 200


async def test_settings_count_too(gateway: LiveGateway) -> None:
    async with gateway.socket(**bearing(KEY)) as socket:
        await receive(socket)
        update = {"type": "session.update", "session": {"instructions": "x" * 9000}}
        await socket.send(json.dumps(update))
        error = (await receive_until(socket, "error"))[-1]["error"]
        assert error["code"] == "storage_full"
        await ask(socket, say("ok"))
        assert (await done(socket))["status"] == "completed"


async def test_without_limits_the_list_says_so(redis_url: str) -> None:
    async with running_gateway(redis_url) as gateway:
        assert (await gateway.http.get("/v1/sessions")).json()["storage"] is None
