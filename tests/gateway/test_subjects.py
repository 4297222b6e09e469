"""An application mints one token a person: nobody's chats are another's, within a tenant too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app.auth import Principal, parse_api_keys
from engine.contract import Tier
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say
from tests.gateway.test_tokens import KEY, KEYS, ask, bearing, token

ANNA, BOB = token(subject="anna"), token(subject="bob")


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    keys = parse_api_keys(f"{KEY}:acme")
    async with running_gateway(redis_url, api_keys=keys, token_keys=KEYS) as live:
        yield live


def headers(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


async def begin(gateway: LiveGateway, credential: str) -> str:
    """A conversation with one turn; its id."""
    async with gateway.socket(**bearing(credential)) as socket:
        session_id: str = (await receive(socket))["session"]["id"]
        for frame in ask(say("ok")):
            await socket.send(frame)
        await receive_until(socket, "response.done")
    return session_id


async def listed(gateway: LiveGateway, credential: str, query: str = "") -> list[str]:
    answer = await gateway.http.get(f"/v1/sessions{query}", headers=headers(credential))
    assert answer.status_code == 200
    return [session["id"] for session in answer.json()["data"]]


def test_owners_are_told_apart() -> None:
    def owner(tenant: str, subject: str | None) -> str:
        return Principal(tenant, Tier.STANDARD, subject).owner

    assert owner("acme", None) == owner("acme", "acme") == owner("acme", "") == "acme"
    others = {owner("acme", "anna"), owner("acme", "bob"), owner("other", "anna"), "acme"}
    assert len(others) == 4
    assert owner("acme", "anna") == owner("acme", "anna")


async def test_each_subject_has_its_own_conversations(gateway: LiveGateway) -> None:
    annas, tenants = await begin(gateway, ANNA), await begin(gateway, KEY)
    assert await listed(gateway, ANNA) == [annas]
    assert await listed(gateway, BOB) == []
    assert await listed(gateway, BOB, "?query=ok") == []
    assert await listed(gateway, KEY) == await listed(gateway, token()) == [tenants]
    for method, path in (
        ("GET", ""),
        ("GET", "/export"),
        ("POST", ""),
        ("DELETE", ""),
    ):
        for credential in (BOB, KEY):
            answer = await gateway.http.request(
                method,
                f"/v1/sessions/{annas}{path}",
                headers=headers(credential),
                json={"title": "stolen"} if method == "POST" else None,
            )
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "session_not_found"
    for credential in (BOB, KEY):
        async with gateway.socket(f"?session_id={annas}", **bearing(credential)) as socket:
            assert (await receive(socket))["error"]["code"] == "session_not_found"
            with pytest.raises(ConnectionClosed):
                await socket.recv()
    assert await listed(gateway, token(subject="anna")) == [annas]
    async with gateway.socket(f"?session_id={annas}", **bearing(ANNA)) as socket:
        assert len((await receive(socket))["repartee.items"]) == 2


async def test_each_subject_has_its_own_responses(gateway: LiveGateway) -> None:
    made = await gateway.http.post("/v1/responses", json={"input": "hi"}, headers=headers(ANNA))
    rid = made.json()["id"]
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        for credential in (BOB, KEY):
            answer = await gateway.http.request(
                method, f"/v1/responses/{rid}{path}", headers=headers(credential)
            )
            assert answer.json()["error"]["code"] == "response_not_found"
    body = {"input": "go on", "previous_response_id": rid}
    for credential, status in ((BOB, 404), (KEY, 404), (ANNA, 200)):
        answer = await gateway.http.post("/v1/responses", json=body, headers=headers(credential))
        assert answer.status_code == status
    url = f"ws://127.0.0.1:{gateway.port}/v1/responses"
    async with connect(url, **bearing(BOB)) as socket:
        await socket.send(json.dumps({"type": "response.create", **body}))
        error = await receive(socket)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_secret_stands_for_its_makers_subject(gateway: LiveGateway) -> None:
    annas = await begin(gateway, ANNA)

    async def secret(credential: str) -> str:
        answer = await gateway.http.post("/v1/realtime/client_secrets", headers=headers(credential))
        value: str = answer.json()["value"]
        return value

    for maker, kind in ((ANNA, "session.created"), (BOB, "error"), (KEY, "error")):
        query: dict[str, Any] = bearing(await secret(maker))
        async with gateway.socket(f"?session_id={annas}", **query) as socket:
            assert (await receive(socket))["type"] == kind


async def test_a_socket_is_not_passed_on_to_another_subject(gateway: LiveGateway) -> None:
    async with gateway.socket(**bearing(ANNA)) as socket:
        await receive(socket)
        for other in (BOB, KEY):
            await socket.send(json.dumps({"type": "repartee.token.renew", "token": other}))
            assert (await receive(socket))["error"]["type"] == "permission_error"
        renewal = token(subject="anna")
        await socket.send(json.dumps({"type": "repartee.token.renew", "token": renewal}))
        assert (await receive(socket))["type"] == "repartee.token.renewed"
