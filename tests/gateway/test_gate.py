"""Connections: how many, whose, and what is said to those that are turned away."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from app.auth import parse_api_keys
from app.gateway import gate
from app.gateway.gate import Gate, connections_by_files
from tests.gateway.live import LiveGateway, receive, running_gateway
from tests.spine import until

KEY = "sk-0123456789abcdef"
UPGRADE = (
    b"upgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
)


async def ask(gateway: LiveGateway, request: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and decoded body of the one answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body) if body else None


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (
            b"GET /livez HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\nx: "
            + b"x" * 100_000
            + b"\r\n\r\n",
            431,
            "request_head_too_large",
        ),
        (b"GET /" + b"x" * 100_000, 431, "request_head_too_large"),
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
            400,
            "invalid_http",
        ),
        (b"GET /v1/realtime HTTP/1.1\r\n" + UPGRADE + b"\r\n", 400, "invalid_http"),
    ],
    ids=["long header", "long line", "nonsense", "TLS", "no host", "bad chunk", "no host socket"],
)
async def test_frm_12_unreadable_requests_get_json(
    gateway: LiveGateway,
    caplog: pytest.LogCaptureFixture,
    request_bytes: bytes,
    status: int,
    code: str,
) -> None:
    caplog.set_level(logging.WARNING)
    got, headers, body = await ask(gateway, request_bytes)
    assert (got, body["error"]["code"]) == (status, code)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (await gateway.http.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/livez", b"localhost", 200),
        (b"HTTP://127.0.0.1:80/livez?a=b", b"localhost", 200),
        (b"http://user:word@localhost/livez", b"localhost", 200),
        (b"http://localhost/v1/models", b"localhost", 200),
        (b"http://localhost/v1/nothing", b"localhost", 404),
        # The host in the target is the one that counts.
        (b"http://evil.example/livez", b"localhost", 403),
        (b"http://localhost/livez", b"evil.example", 200),
        (b"http:///livez", b"localhost", 403),
        (b"//evil.example/livez", b"localhost", 404),
    ],
)
async def test_targets_may_name_the_host(
    gateway: LiveGateway, target: bytes, host: bytes, status: int
) -> None:
    request = b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (target, host)
    assert (await ask(gateway, request))[0] == status


async def test_a_socket_s_target_may_name_the_host(gateway: LiveGateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET http://localhost/v1/realtime HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
    writer.close()


async def test_a_full_gateway_says_so_and_serves_on(redis_url: str) -> None:
    async with running_gateway(redis_url, max_connections=3) as live:
        await live.http.aclose()
        await until(lambda: live.gateway.gate.num_connections == 0)
        sockets = [await live.socket() for _ in range(3)]
        status, headers, body = await ask(live, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (status, body["error"]["code"]) == (503, "too_many_connections")
        assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "1000")
        await sockets[0].close()
        await until(lambda: live.gateway.gate.num_connections == 2)
        async with live.socket() as socket:
            assert (await receive(socket))["type"] == "session.created"
        for socket in sockets:
            await socket.close()
        await until(lambda: live.gateway.gate.num_connections == 0)


async def test_strangers_of_one_address_leave_room_for_others(redis_url: str) -> None:
    keys = parse_api_keys(KEY)
    async with running_gateway(redis_url, api_keys=keys, max_connections=12) as live:
        known = {"authorization": f"Bearer {KEY}"}
        assert (await live.http.get("/v1/models", headers=known)).status_code == 200
        async with live.socket(additional_headers=known):
            lines = [await asyncio.open_connection("127.0.0.1", live.port) for _ in range(3)]
            await until(lambda: live.gateway.gate.num_connections == 5)
            wrong = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert (await ask(live, wrong))[0] == 503
            # One that is known already goes on, and a stranger that leaves makes room.
            assert (await live.http.get("/v1/models", headers=known)).status_code == 200
            lines[0][1].close()
            await until(lambda: live.gateway.gate.num_connections == 4)
            assert (await ask(live, wrong))[0] == 401
        for _, writer in lines:
            writer.close()


def test_places_are_counted_once() -> None:
    door = Gate(8, minds_strangers=True)
    first, second = door.enter("a"), door.enter("a")
    assert first is not None
    assert second is not None
    assert door.enter("a") is None
    assert door.enter("b") is not None
    for _ in range(2):
        first.prove()
    third = door.enter("a")
    assert third is not None
    for place in (first, first, second, third):
        place.leave()
        place.prove()
    assert door.num_connections == 1
    assert list(door._strangers) == ["b"]


def test_files_bound_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections_by_files() >= gate.MIN_CONNECTIONS
    monkeypatch.setattr(gate.resource, "getrlimit", lambda _: (1000, 2000))
    assert Gate(0, minds_strangers=False).max_connections == 1000 - gate.RESERVED_FILES
    for soft in (gate.resource.RLIM_INFINITY, 10**9):
        monkeypatch.setattr(gate.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert Gate(0, minds_strangers=False).max_connections == gate.MAX_CONNECTIONS


def test_the_limit_of_files_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(gate.resource, "getrlimit", lambda _: (1024, 5000))
    monkeypatch.setattr(gate.resource, "setrlimit", lambda _, limits: asked.append(limits))
    gate.raise_file_limit()
    assert asked == [(5000, 5000)]
