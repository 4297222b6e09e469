"""A socket that has ended is freed at once, without the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from app.gateway.conversation import Conversation
from app.gateway.realtime_socket import RealtimeSocket
from app.gateway.responses_socket import ResponsesSocket
from app.gateway.running import RunningResponse
from app.gateway.socket_connection import SocketConnection
from app.gateway.tab_sync import TabSync
from app.gateway.writer import SocketWriter
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say
from tests.gateway.test_realtime import ask
from tests.spine import until

KINDS = (
    SocketConnection,
    RealtimeSocket,
    ResponsesSocket,
    SocketWriter,
    Conversation,
    TabSync,
    RunningResponse,
)


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    async with running_gateway(redis_url) as live:
        yield live


@pytest.fixture
def _no_collections() -> AsyncIterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """Objects of a socket's that have not been freed."""
    # Asking each for its class would wake lazy objects of other libraries.
    kinds = (type(each) for each in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if kind in KINDS)


async def idle(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        await receive(socket)


async def answered(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        await receive(socket)
        await ask(socket, say("a few words"))
        await receive_until(socket, "response.done")


async def two_tabs(gateway: LiveGateway) -> None:
    async with gateway.socket() as one:
        session_id = (await receive(one))["session"]["id"]
        async with gateway.socket(f"?session_id={session_id}") as two:
            await receive(two)
            await ask(one, say("for both"))
            await receive_until(two, "response.done")


async def cut(gateway: LiveGateway) -> None:
    async with gateway.socket(close_timeout=0.1) as socket:
        await receive(socket)
        socket.transport.abort()


async def refused(gateway: LiveGateway) -> None:
    async with gateway.socket("?session_id=sess_nobody") as socket:
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()


async def broken(gateway: LiveGateway) -> None:
    async with gateway.socket(close_timeout=0.1) as socket:
        await receive(socket)
        socket.transport.write(b"\xff\xff\xff")
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("live", [idle, answered, two_tabs, cut, refused, broken])
async def test_an_ended_socket_leaves_nothing(gateway: LiveGateway, live: object) -> None:
    assert callable(live)
    for _ in range(3):
        await live(gateway)
    await gateway.settled()
    await until(lambda: not alive(), 5)
