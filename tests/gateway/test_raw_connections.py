"""Peers that speak HTTP or WebSocket badly, late or only in part."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from app.gateway import transport
from app.gateway.log_bounds import BURST, server_lines
from tests.gateway.live import LiveGateway
from tests.spine import until

UPGRADE = (
    b"host: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
)
SOCKET = b"GET /v1/realtime HTTP/1.1\r\n" + UPGRADE
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n"


@pytest.fixture(autouse=True)
def _fresh_lines() -> None:
    """What earlier tests logged doesn't count."""
    server_lines.forget()


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[bytes], Awaitable[Line]]


@pytest.fixture
async def connect(gateway: LiveGateway) -> AsyncIterator[Connect]:
    """Opens connections that begin with some bytes; closed at the end of the test."""
    writers: list[asyncio.StreamWriter] = []

    async def open_one(first: bytes) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writers.append(writer)
        writer.write(first)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()


async def to_end(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the end of the connection, however it ends."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "first",
    [b"", b"GET /livez HTTP/1.1\r\nhost: loc", POST + b'{"mess', SOCKET],
    ids=["silence", "half a head", "half a body", "half a handshake"],
)
async def test_slw_05_a_request_that_never_arrives_is_cut(
    gateway: LiveGateway, connect: Connect, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(transport, "BODY_TIMEOUT_S", 0.1)
    reader, _ = await connect(first)
    assert await to_end(reader) == b""
    assert (await gateway.http.get("/livez")).status_code == 200


async def test_slw_05_the_second_request_of_a_connection_is_timed_too(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.1)
    reader, writer = await connect(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b'{"status":"live"}')
    writer.write(b"GET /livez HTTP/1.1\r\n")
    assert await to_end(reader) == b""


@pytest.mark.parametrize(
    ("sent", "drip"),
    [(b"GET /livez HTTP/1.1\r\nx: ", b"x"), (b"GET /livez HTTP/1.1\r\n", b"a: b\r\n")],
    ids=["one header", "ever more headers"],
)
async def test_slw_05_a_head_that_drips_in_is_cut_in_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await connect(sent)

    async def drips() -> None:
        while True:
            await asyncio.sleep(0.02)
            writer.write(drip)

    dripping = asyncio.create_task(drips())
    try:
        assert await to_end(reader) == b""
    finally:
        dripping.cancel()


async def test_slw_05_a_body_has_a_time_of_its_own(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await connect(POST)
    await asyncio.sleep(0.4)
    writer.write(b"{}".ljust(50))
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"version: 13", b"version: 12"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"short"),
        (b"sec-websocket-key", b"sec-websocket-kex"),
    ],
    ids=["version", "key", "no key"],
)
async def test_frm_12_an_unsound_handshake_is_refused_in_json(
    connect: Connect, before: bytes, after: bytes
) -> None:
    reader, _ = await connect((SOCKET + b"\r\n").replace(before, after))
    head, _, body = (await to_end(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_handshake"
    assert "Sec-WebSocket" in error["message"]


async def test_aut_04_bad_requests_fill_no_log(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(40):
        reader, _ = await connect(b"no HTTP\r\n\r\n")
        assert (await to_end(reader)).startswith(b"HTTP/1.1 400 ")
    assert 1 <= len(caplog.records) <= BURST


async def test_slw_05_what_has_arrived_may_take_its_time(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(transport, "BODY_TIMEOUT_S", 0.05)
    async with gateway.socket() as socket:
        await socket.recv()
        answer = await gateway.chat('!json {"num_tokens": 30, "rate": 100}')
        assert answer.status_code == 200
        await socket.send('{"type":"repartee.ping"}')
        assert "repartee.pong" in str(await socket.recv())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/realtime HTTP/1.1\r\n" + UPGRADE + b"\r\n",
        SOCKET + b"cookie: " + b"c" * 20_000 + b"\r\n\r\n",
    ],
    ids=["not a GET", "a long header"],
)
async def test_frm_12_an_unreadable_handshake_is_refused(
    connect: Connect, request_bytes: bytes
) -> None:
    reader, _ = await connect(request_bytes)
    assert (await to_end(reader)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("origin", [b"http://[::::]", b"http://[127.0.0.1]", b"null"])
async def test_org_01_an_odd_origin_is_refused(connect: Connect, origin: bytes) -> None:
    for head in (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n", SOCKET):
        reader, _ = await connect(head + b"origin: " + origin + b"\r\n\r\n")
        assert (await to_end(reader)).startswith(b"HTTP/1.1 403 ")


async def test_aut_04_no_peer_can_write_tracebacks_into_the_log(
    gateway: LiveGateway, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reader, _ = await connect(b"GET /nothing HTTP/1.1\r\n" + UPGRADE + b"\r\n")
    assert (await to_end(reader)).startswith(b"HTTP/1.1 404 ")
    reader, _ = await connect(SOCKET + b"\r\n")
    await reader.readuntil(b"session.created")
    _, writer = await connect(POST + b'{"mess')
    writer.write_eof()
    async with gateway.socket() as socket:
        await socket.recv()
        await socket.send(b'{"\xff', text=True)
        await socket.wait_closed()
        assert socket.close_code == 1007
    await until(lambda: len(gateway.server.server_state.connections) <= 2)
    assert [record.getMessage() for record in caplog.records] == []
