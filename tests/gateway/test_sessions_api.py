"""`/v1/sessions` through a real gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from app.auth import parse_api_keys
from app.sessions import keys
from tests.gateway.live import LiveGateway, receive_until, running_gateway, say, script
from tests.redis_server import RedisServer


async def send(socket: ClientConnection, text: str, item_id: str | None = None) -> None:
    item: dict[str, Any] = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }
    if item_id is not None:
        item["id"] = item_id
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await socket.send('{"type": "response.create"}')


async def chat(gateway: LiveGateway, *texts: str) -> str:
    """A conversation with these turns; its id."""
    async with gateway.socket() as socket:
        created = (await receive_until(socket, "session.created"))[-1]
        for text in texts:
            await send(socket, text)
            await receive_until(socket, "response.done")
    return str(created["session"]["id"])


async def test_a_conversation_is_listed_read_and_renamed(gateway: LiveGateway) -> None:
    first = await chat(gateway, "!text aGVsbG8=", "again")
    second = await chat(gateway, say("Größe"))
    body = (await gateway.http.get("/v1/sessions")).json()
    assert [each["id"] for each in body["data"]] == [second, first]
    assert body["object"] == "list" and not body["has_more"] and body["next_after"] is None
    assert body["data"][1]["title"] == "!text aGVsbG8="
    assert body["data"][1]["num_items"] == 4 and body["data"][1]["status"] == "idle"
    page = (await gateway.http.get("/v1/sessions?limit=1")).json()
    assert page["has_more"] and page["last_id"] == second
    rest = await gateway.http.get("/v1/sessions", params={"after": page["next_after"]})
    assert [each["id"] for each in rest.json()["data"]] == [first]
    found = (await gateway.http.get("/v1/sessions", params={"query": "GRÖSSE"})).json()["data"]
    assert [each["id"] for each in found] == [second]
    assert found[0]["match"]["excerpt"] == "Größe"

    one = (await gateway.http.get(f"/v1/sessions/{first}")).json()
    assert [item["role"] for item in one["items"]] == ["user", "assistant"] * 2
    assert one["items"][1]["content"] == [{"type": "output_text", "text": "hello"}]
    assert one["items"][1]["response_id"].startswith("resp_")
    assert one["active_response_id"] is None
    renamed = await gateway.http.post(f"/v1/sessions/{first}", json={"title": " My\nchat "})
    assert renamed.json()["title"] == "My chat"
    listed = (await gateway.http.get("/v1/sessions")).json()["data"]
    assert [each["title"] for each in listed if each["id"] == first] == ["My chat"]


async def test_a_socket_that_says_nothing_leaves_little(
    gateway: LiveGateway, redis_server: RedisServer
) -> None:
    async with gateway.socket() as socket:
        await receive_until(socket, "session.created")
    with redis_server.client() as outside:
        names = outside.keys("rp:ses:*")
        assert len(names) == 1
        assert 0 < outside.ttl(names[0]) <= keys.EMPTY_TTL_S
    assert (await gateway.http.get("/v1/sessions")).json()["data"] == []


async def test_exports(gateway: LiveGateway) -> None:
    session_id = await chat(gateway, say("# not a heading\n\nyes"))
    await gateway.http.post(
        f"/v1/sessions/{session_id}", json={"title": '../a"b;\\ Größe: x\u202e.exe'}
    )
    path = f"/v1/sessions/{session_id}/export"
    answer = await gateway.http.get(path)
    assert answer.headers["content-disposition"] == 'attachment; filename="a-b-Gr-e-x-exe.json"'
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["object"] == "session.export"
    assert len(answer.json()["items"]) == 2
    answer = await gateway.http.get(path, params={"format": "markdown"})
    assert answer.headers["content-disposition"].endswith('.md"')
    assert answer.headers["content-type"].startswith("text/markdown")
    assert "## Assistant\n\n# not a heading\n\nyes\n" in answer.text
    await gateway.http.post(f"/v1/sessions/{session_id}", json={"title": "日本"})
    answer = await gateway.http.get(path)
    assert 'filename="conversation.json"' in answer.headers["content-disposition"]


async def test_a_delete_ends_what_runs(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        created = (await receive_until(socket, "session.created"))[-1]
        session_id = created["session"]["id"]
        await send(socket, script(num_tokens=5000, rate=50))
        await receive_until(socket, "response.output_text.delta")
        answer = await gateway.http.delete(f"/v1/sessions/{session_id}")
        assert answer.json() == {"id": session_id, "object": "session.deleted", "deleted": True}
        await gateway.settled()
    assert (await gateway.http.get("/v1/sessions")).json()["data"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/export")):
        gone = await gateway.http.request(method, f"/v1/sessions/{session_id}{path}")
        assert gone.status_code == 404
        assert gone.json()["error"]["code"] == "session_not_found"


async def test_wrong_requests_name_their_field(gateway: LiveGateway) -> None:
    session_id = await chat(gateway, say("x"))
    http = gateway.http
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=²", "limit"),
        ("limit=1.0", "limit"),
        ("after=x", "after"),
        ("query=" + "x" * 201, "query"),
        ("order=asc", "order"),
    ):
        answer = await http.get(f"/v1/sessions?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query
    for body in ({}, {"title": ""}, {"title": "x" * 201}, {"title": 5}, {"title": "a", "b": 1}):
        answer = await http.post(f"/v1/sessions/{session_id}", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("title", "b")
    answer = await http.get(f"/v1/sessions/{session_id}/export?format=pdf")
    assert answer.json()["error"]["param"] == "format"
    answer = await http.put(f"/v1/sessions/{session_id}")
    assert answer.status_code == 405
    assert "GET, POST, DELETE" in answer.json()["error"]["message"]


async def test_another_tenant_sees_nothing(redis_url: str) -> None:
    entries = "a" * 20 + ":one," + "b" * 20 + ":two"
    async with running_gateway(redis_url, api_keys=parse_api_keys(entries)) as gateway:
        own = {"authorization": "Bearer " + "a" * 20}
        other = {"authorization": "Bearer " + "b" * 20}
        async with gateway.socket(additional_headers=own) as socket:
            session_id = (await receive_until(socket, "session.created"))[-1]["session"]["id"]
            await send(socket, say("secret"))
            await receive_until(socket, "response.done")
        path = f"/v1/sessions/{session_id}"
        for method, each in (("GET", path), ("DELETE", path), ("GET", path + "/export")):
            answer = await gateway.http.request(method, each, headers=other)
            assert answer.status_code == 404
        answer = await gateway.http.post(path, json={"title": "mine"}, headers=other)
        assert answer.status_code == 404
        assert (await gateway.http.get("/v1/sessions", headers=other)).json()["data"] == []
        listed = await gateway.http.get("/v1/sessions?query=secret", headers=own)
        assert [each["id"] for each in listed.json()["data"]] == [session_id]
        assert (await gateway.http.get("/v1/sessions")).status_code == 401


@pytest.mark.parametrize("path", ["/v1/sessions/", "/v1/sessions/a/b", "/v1/sessions/a/export/x"])
async def test_other_paths_are_unknown(gateway: LiveGateway, path: str) -> None:
    answer = await gateway.http.get(path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_url"
