"""A conversation of megabytes goes out page by page, and waits for nobody for long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.gateway.snapshots import Snapshots
from app.gateway.socket_connection import SocketConnection
from app.sessions import Item, SessionStore
from tests.gateway.live import LiveGateway, receive, running_gateway
from tests.gateway.test_slow_sockets import closed, narrow
from tests.spine import until

ITEM_CHARS = 100_000
NUM_ITEMS = 30


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    async with running_gateway(redis_url) as live:
        yield live


async def long_session(gateway: LiveGateway, redis_url: str) -> str:
    """The id of a conversation of three megabytes."""
    async with gateway.socket() as socket:
        session_id: str = (await receive(socket))["session"]["id"]
    store = SessionStore(redis_url)
    for number in range(NUM_ITEMS):
        await store.items.add(
            session_id, Item(f"item_{number}", "user", str(number % 10) * ITEM_CHARS)
        )
    await store.close()
    return session_id


def unsent_bytes(gateway: LiveGateway) -> int:
    """What the process holds for peers that have not read it."""
    connections = gateway.server.server_state.connections
    sockets = [each for each in connections if isinstance(each, SocketConnection)]
    return sum(socket.transport.get_write_buffer_size() for socket in sockets)


async def items_of(socket: Any) -> list[str]:
    """The items of a greeting, read to its end."""
    ids: list[str] = []
    remaining = 1
    while remaining:
        event = await receive(socket)
        ids += [item["id"] for item in event["repartee.items"]]
        remaining = event["repartee.items_remaining"]
    return ids


async def test_a_greeting_waits_for_its_reader_outside_the_socket(
    gateway: LiveGateway, redis_url: str
) -> None:
    session_id = await long_session(gateway, redis_url)
    snapshots = gateway.gateway.realtime.snapshots
    async with narrow(gateway, f"?session_id={session_id}") as silent:
        await until(lambda: snapshots.waiting_bytes > 1_000_000)
        assert unsent_bytes(gateway) < 400_000
        # Nobody else waits for that one.
        async with gateway.socket(f"?session_id={session_id}") as other:
            assert len(await items_of(other)) == NUM_ITEMS
        # And it may still read on.
        assert len(await items_of(silent)) == NUM_ITEMS
    assert snapshots.waiting_bytes == 0


async def test_a_reader_that_never_reads_its_greeting_is_closed(
    gateway: LiveGateway, redis_url: str
) -> None:
    session_id = await long_session(gateway, redis_url)
    gateway.gateway.realtime.snapshots.page_timeout_s = 0.2
    async with narrow(gateway, f"?session_id={session_id}") as silent:
        await until(lambda: not gateway.server.server_state.connections - _http(gateway), 10)
        assert await closed(silent) in (1006, 1013)
    await until(lambda: not gateway.gateway.realtime.sockets)


def _http(gateway: LiveGateway) -> set[Any]:
    connections = gateway.server.server_state.connections
    return {each for each in connections if not isinstance(each, SocketConnection)}


class SlowReader:
    """A connection and writer of which every page fills the buffer."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self.is_congested = False
        self.code: int | None = None
        self.read = asyncio.Event()

    async def drained(self) -> None:
        await self.read.wait()
        self.read.clear()
        self.is_congested = False

    def send(self, frame: bytes) -> None:
        self.pages.append(frame)
        self.is_congested = True

    def close(self, code: int, reason: str) -> None:
        self.code = code


async def test_pages_go_out_one_by_one_as_they_are_read() -> None:
    reader, snapshots = SlowReader(), Snapshots()
    pages = [b"a", b"b", b"c"]
    sending = asyncio.create_task(snapshots.send(reader, reader, pages))
    for number in range(1, 3):
        await until(lambda number=number: len(reader.pages) == number)  # type: ignore[misc]
        assert snapshots.waiting_bytes == 3 - number
        reader.read.set()
    await sending
    assert reader.pages == pages
    assert reader.code is None
    assert snapshots.waiting_bytes == 0


async def test_those_that_wait_are_bounded_together() -> None:
    snapshots = Snapshots(max_waiting_bytes=250)
    first, second = SlowReader(), SlowReader()
    pages = [bytes(100), bytes(100), bytes(100)]
    sending = asyncio.create_task(snapshots.send(first, first, pages))
    await until(lambda: snapshots.waiting_bytes == 200)
    await snapshots.send(second, second, pages)
    assert second.code == 1013
    assert first.code is None
    for _ in range(2):
        first.read.set()
        await until(lambda: not first.read.is_set())
    await sending
    assert first.pages == pages


async def test_a_short_conversation_goes_out_at_once() -> None:
    reader = SlowReader()
    sending = Snapshots().send(reader, reader, [json.dumps({}).encode()])
    with pytest.raises(StopIteration):
        sending.send(None)
