"""What one socket may make its gateway hold, whatever its peer sends and does not read."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.gateway import frame_flood, socket_connection
from app.gateway.metrics import GatewayMetrics
from app.gateway.socket_connection import SocketConnection
from app.gateway.writer import ENTRY_BYTES, SocketWriter
from tests.gateway.live import LiveGateway, receive, running_gateway
from tests.gateway.test_partials import bit_by_bit, frame_head
from tests.gateway.test_slow_sockets import closed, narrow
from tests.spine import until

NUM_FRAGMENTS = 20_000
PING = b"\x89\xfd" + bytes(4) + b"p" * 125


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    async with running_gateway(redis_url) as live:
        yield live


def connection_of(gateway: LiveGateway) -> SocketConnection:
    """The one open socket's."""
    (connection,) = (
        one for one in gateway.server.server_state.connections if isinstance(one, SocketConnection)
    )
    return connection


async def test_a_message_of_empty_fragments_ends_too(gateway: LiveGateway) -> None:
    gateway.server.partials.timeout_s = 0.2
    async with bit_by_bit(gateway, frame_head(0, is_final=False)) as peer:
        peer.transport.write(frame_head(0, opcode=0, is_final=False) * 100)
        assert await closed(peer) == 1008


async def test_many_small_fragments_take_no_more_than_their_bytes(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_flood, "BURST_FRAMES", 2 * NUM_FRAGMENTS)
    partials = gateway.server.partials
    rest = (frame_head(2, opcode=0, is_final=False) + b"ab") * NUM_FRAGMENTS
    async with bit_by_bit(gateway, frame_head(0, is_final=False)) as peer:
        before = sys.getallocatedblocks()
        peer.transport.write(rest)
        await until(lambda: partials.num_bytes >= 2 * NUM_FRAGMENTS)
        assert sys.getallocatedblocks() - before < NUM_FRAGMENTS / 4


async def test_pings_of_a_peer_that_reads_nothing_fill_no_memory(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_flood, "BURST_FRAMES", 10**9)
    async with narrow(gateway) as peer:
        await receive(peer)
        connection = connection_of(gateway)
        peer.transport.pause_reading()  # type: ignore[attr-defined]
        most = 0
        for _ in range(200):
            peer.transport.write(PING * 500)
            await asyncio.sleep(0)
            await until(lambda: not peer.transport.get_write_buffer_size())
            most = max(most, connection.transport.get_write_buffer_size())
        assert connection.is_congested
        assert most < 600_000
        peer.transport.resume_reading()  # type: ignore[attr-defined]
        await until(lambda: not connection.is_congested)
        pong = await peer.ping(os.urandom(4))
        async with asyncio.timeout(10):
            await pong


@pytest.mark.parametrize(
    "frame",
    [frame_head(0, opcode=9), frame_head(0, opcode=10), frame_head(0, opcode=0, is_final=False)],
    ids=["pings", "pongs", "fragments"],
)
async def test_a_flood_of_small_frames_ends_its_socket(gateway: LiveGateway, frame: bytes) -> None:
    is_fragment = frame[0] == 0
    first = frame_head(0, is_final=False) if is_fragment else frame
    async with bit_by_bit(gateway, first) as flooder, gateway.socket() as other:
        await receive(other)
        flooder.transport.write(frame * (frame_flood.BURST_FRAMES - 100))
        await other.send('{"type":"repartee.ping"}')
        assert (await receive(other))["type"] == "repartee.pong"
        assert len(gateway.gateway.realtime.sockets) == 2
        flooder.transport.write(frame * 20_000)
        assert await closed(flooder) == 1008
        await until(lambda: len(gateway.gateway.realtime.sockets) == 1)


async def test_a_message_in_a_thousand_fragments_is_no_flood(gateway: LiveGateway) -> None:
    text = '{"type":"repartee.ping"}'.ljust(200_000)
    async with gateway.socket() as peer:
        await receive(peer)
        await peer.send([text[start : start + 200] for start in range(0, len(text), 200)])
        assert (await receive(peer))["type"] == "repartee.pong"


async def test_the_last_ping_is_answered_once_the_peer_reads(gateway: LiveGateway) -> None:
    async with narrow(gateway) as peer:
        await receive(peer)
        connection = connection_of(gateway)
        connection.pause_writing()
        pongs = [await peer.ping(payload) for payload in (b"1", b"2", b"3")]
        await until(lambda: connection._pong.endswith(b"3"))
        assert not any(pong.done() for pong in pongs)
        connection.resume_writing()
        async with asyncio.timeout(10):
            await asyncio.gather(*pongs)


async def test_a_half_closed_peer_that_reads_nothing_is_cut(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_connection, "CLOSE_TIMEOUT_S", 0.2)
    async with narrow(gateway) as peer:
        await receive(peer)
        connection = connection_of(gateway)
        peer.transport.pause_reading()  # type: ignore[attr-defined]
        while not connection.transport.get_write_buffer_size():
            connection.send_frame(b" " * 100_000)
            await asyncio.sleep(0)
        raw: socket.socket = peer.transport.get_extra_info("socket")
        raw.shutdown(socket.SHUT_WR)
        await until(lambda: connection not in gateway.server.server_state.connections)
        await until(lambda: not gateway.gateway.realtime.sockets)


class Congested:
    """A connection whose peer takes a frame at a time."""

    is_open = True
    is_congested = True

    def __init__(self) -> None:
        self.on_writable: Any = None
        self.sent: list[bytes] = []
        self.codes: list[int] = []

    def send_frame(self, frame: bytes) -> None:
        self.sent.append(frame)
        self.is_congested = True

    def end(self, code: int, reason: str) -> None:
        self.codes.append(code)

    def take_one(self) -> None:
        """The peer has read some."""
        self.is_congested = False
        self.on_writable()


def test_what_was_written_waits_no_more() -> None:
    peer: Any = Congested()
    writer = SocketWriter(peer, 2000, GatewayMetrics(lambda: ()))
    writer.send(b"x" * 500)
    for _ in range(50):
        writer.send(b"x" * 500)
        peer.take_one()
        assert writer.pending_bytes == 500 + ENTRY_BYTES
    assert (len(peer.sent), peer.codes) == (50, [])
