"""Messages that never end: bounded in time, and together in bytes."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.gateway.partials import PartialMessages
from tests.gateway.live import LiveGateway, receive, running_gateway
from tests.gateway.test_slow_sockets import closed
from tests.spine import until


class Socket:
    """A socket that notes how it was ended."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def end(self, code: int, reason: str) -> None:
        self.codes.append(code)


async def test_a_message_that_takes_too_long_ends_its_socket() -> None:
    partials = PartialMessages(timeout_s=0.05)
    late, quick = Socket(), Socket()
    partials.note(late, 10)
    partials.note(quick, 20)
    partials.note(late, 11)
    partials.forget(quick)
    await until(lambda: bool(late.codes))
    assert (late.codes, quick.codes) == ([1008], [])
    assert partials.num_bytes == 0


async def test_bytes_that_keep_coming_give_no_more_time() -> None:
    partials = PartialMessages(timeout_s=0.1)
    socket = Socket()
    for num_bytes in range(1, 10_000):
        partials.note(socket, num_bytes)
        await asyncio.sleep(0.005)
        if socket.codes:
            break
    assert socket.codes == [1008]
    assert num_bytes < 1000


async def test_beyond_the_bound_the_one_that_began_first_goes() -> None:
    partials = PartialMessages(max_bytes=100)
    sockets = [Socket() for _ in range(3)]
    for socket in sockets:
        partials.note(socket, 30)
    partials.note(sockets[2], 45)
    assert [socket.codes for socket in sockets] == [[1013], [], []]
    assert partials.num_bytes == 75
    for socket in sockets:
        partials.forget(socket)
    assert partials.num_bytes == 0
    assert partials._timer is None


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    async with running_gateway(redis_url) as live:
        yield live


def frame_head(length: int, *, opcode: int = 1, is_final: bool = True) -> bytes:
    """Of a masked frame, with a mask of zeros."""
    return struct.pack("!BBQ", (is_final << 7) | opcode, 0x80 | 127, length) + bytes(4)


@asynccontextmanager
async def bit_by_bit(gateway: LiveGateway, first: bytes) -> AsyncIterator[Any]:
    """An open socket on which `first` was sent."""
    async with gateway.socket(close_timeout=1) as socket:
        await receive(socket)
        socket.transport.write(first)
        yield socket
        socket.transport.abort()


@pytest.mark.parametrize(
    "first",
    [
        frame_head(100_000) + b"{" * 5,
        frame_head(10, is_final=False) + b" " * 10,
        frame_head(2) + b"{}" + frame_head(100_000) + b"{" * 5,
    ],
    ids=["frame", "fragments", "behind-another"],
)
async def test_the_rest_of_a_message_may_not_stay_away(gateway: LiveGateway, first: bytes) -> None:
    gateway.server.partials.timeout_s = 0.2
    async with bit_by_bit(gateway, first) as socket:
        await until(lambda: gateway.server.partials.num_bytes > 0)
        assert await closed(socket) == 1008
    assert gateway.server.partials.num_bytes == 0


async def test_half_sent_messages_are_bounded_over_all_sockets(gateway: LiveGateway) -> None:
    partials = gateway.server.partials
    partials.max_bytes = 1_000_000
    first = frame_head(900_000) + os.urandom(600_000)
    async with bit_by_bit(gateway, first) as oldest:
        await until(lambda: partials.num_bytes > 500_000)
        async with bit_by_bit(gateway, first):
            assert await closed(oldest) == 1013
            await until(lambda: partials.num_bytes == 600_000)
    await until(lambda: partials.num_bytes == 0)


async def test_a_message_in_pieces_is_whole_in_the_end(gateway: LiveGateway) -> None:
    gateway.server.partials.timeout_s = 5.0
    ping = b'{"type":"repartee.ping"}'
    pieces = [ping[:5], ping[5:11], ping[11:]]
    async with gateway.socket() as socket:
        await receive(socket)
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            head = frame_head(len(piece), opcode=0 if number else 1, is_final=is_last)
            for byte in head + piece:
                socket.transport.write(bytes([byte]))
                await asyncio.sleep(0)
        assert (await receive(socket))["type"] == "repartee.pong"
    assert gateway.server.partials.num_bytes == 0
