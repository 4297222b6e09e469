"""Sockets that read slowly, never, or send too much; peers that vanish."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.engine import FakeEngine, Script
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say, script
from tests.gateway.test_realtime import ask, closed, done, pong, send
from tests.spine import until

NUMBERS = "".join(f"{number} " for number in range(60_000))


@asynccontextmanager
async def narrow(gateway: LiveGateway, query: str = "") -> AsyncIterator[ClientConnection]:
    """A socket with a small receive buffer, that reads only when asked to."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    url = f"ws://127.0.0.1:{gateway.port}/v1/realtime{query}"
    options: dict[str, Any] = {"max_queue": 1, "max_size": None, "ping_interval": None}
    async with connect(url, sock=raw, close_timeout=1, **options) as connection:
        yield connection
        connection.transport.abort()


@pytest.fixture
async def roomy(redis_url: str) -> AsyncIterator[LiveGateway]:
    """A gateway whose engine takes long answers, and that cuts early."""
    scripts = [("numbers", Script(text=NUMBERS))]
    engine = FakeEngine(context_window=10_000_000, scripts=scripts)
    async with running_gateway(redis_url, engine=engine, max_pending_bytes=20_000) as live:
        yield live


async def test_slw_01_a_socket_that_is_never_read_is_cut_and_resumes(roomy: LiveGateway) -> None:
    async with roomy.socket() as healthy, narrow(roomy) as silent:
        await receive(healthy)
        session_id = (await receive(silent))["session"]["id"]
        await ask(silent, "numbers")

        async def cut() -> bool:
            return await roomy.metric("repartee_slow_closes_total") == 1

        await until(cut, 30)
        assert await roomy.metric("repartee_merged_deltas_total") > 0
        await ask(healthy, say("unharmed"))
        assert (await done(healthy))["status"] == "completed"
        await until(lambda: roomy.gateway.responses.num_running == 0, 30)
        await until(lambda: len(roomy.gateway.realtime.sockets) == 1)
        assert await roomy.metric("repartee_pending_bytes") == 0
        async with roomy.socket(f"?session_id={session_id}") as again:
            assert (await receive(again))["repartee.items_remaining"] == 1
            (item,) = (await receive(again))["repartee.items"]
            assert item["content"][0]["text"] == NUMBERS


async def test_slw_01_the_close_says_why(roomy: LiveGateway) -> None:
    async with narrow(roomy) as slow:
        await receive(slow)
        await ask(slow, "numbers")

        async def cut() -> bool:
            return await roomy.metric("repartee_slow_closes_total") == 1

        await until(cut, 30)
        assert await closed(slow) == 1013


async def test_slw_03_a_slow_socket_gets_every_character(redis_url: str) -> None:
    engine = FakeEngine(context_window=10_000_000, scripts=[("numbers", Script(text=NUMBERS))])
    async with (
        running_gateway(redis_url, engine=engine, max_pending_bytes=10**9) as gateway,
        narrow(gateway) as slow,
    ):
        await receive(slow)
        await ask(slow, "numbers")
        text, seqs = "", []
        async with asyncio.timeout(60):
            while True:
                event = json.loads(await slow.recv())
                if event["type"] == "response.done":
                    break
                if event["type"] == "response.output_text.delta":
                    text += event["delta"]
                    seqs.append(event["repartee.cursor"]["seq"])
                    if len(seqs) < 300:
                        await asyncio.sleep(0.002)
        assert text == NUMBERS
        assert seqs == sorted(set(seqs))
        assert await gateway.metric("repartee_merged_deltas_total") > 0


async def test_slw_04_a_flood_is_answered_and_others_go_on(redis_url: str) -> None:
    async with (
        running_gateway(redis_url, max_events_per_s=10_000.0) as gateway,
        gateway.socket() as flooder,
        gateway.socket() as other,
    ):
        await receive(flooder)
        await receive(other)
        flood = asyncio.create_task(_flood(flooder, 20_000))
        for number in range(5):
            await ask(other, say(f"answer {number}"))
            assert (await done(other))["status"] == "completed"
        assert await flood == 20_000


async def _flood(flooder: ClientConnection, number: int) -> int:
    async def send_all() -> None:
        for _ in range(number):
            await flooder.send('{"type":"no.such"}')

    sending = asyncio.create_task(send_all())
    for _ in range(number):
        assert (await receive(flooder, 60))["type"] == "error"
    await sending
    return number


async def test_slw_04_many_creates_give_one_answer_and_coded_errors(
    gateway: LiveGateway,
) -> None:
    async with gateway.socket() as line:
        await receive(line)
        await ask(line, script(num_tokens=60, stall_after=3))
        for _ in range(300):
            await send(line, {"type": "response.create"})
        await send(line, {"type": "response.cancel"})
        events = await receive_until(line, "response.done")
        assert _errors(events) == 300
        await pong(line)


def _errors(events: list[dict[str, Any]]) -> int:
    codes = [event["error"]["code"] for event in events if event["type"] == "error"]
    assert set(codes) <= {"conversation_already_has_active_response"}
    return len(codes)


async def test_png_01_a_busy_socket_that_answers_pings_stays(redis_url: str) -> None:
    timing = {"ping_interval_s": 0.1, "ping_timeout_s": 0.3}
    async with running_gateway(redis_url, **timing) as gateway, gateway.socket() as line:
        await receive(line)
        await ask(line, script(num_tokens=120, rate=100))
        reading = asyncio.create_task(receive_until(line, "response.done"))
        for _ in range(200):
            await send(line, {"type": "repartee.ping"})
            await asyncio.sleep(0.004)
        events = await reading
        assert events[-1]["response"]["status"] == "completed"


async def test_png_04_a_peer_that_vanishes_is_freed(redis_url: str) -> None:
    timing = {"ping_interval_s": 0.1, "ping_timeout_s": 0.2}
    async with running_gateway(redis_url, **timing) as gateway:
        async with gateway.socket() as line:
            session_id = (await receive(line))["session"]["id"]
            await ask(line, script(num_tokens=50, rate=50))
            await receive_until(line, "response.created")
            line.transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: not gateway.gateway.realtime.sockets)
            line.transport.abort()
        assert await gateway.metric("repartee_connections") == 0
        await gateway.settled()
        assert await gateway.metric("repartee_responses_total", outcome="completed") == 1
        async with gateway.socket(f"?session_id={session_id}") as again:
            items = (await receive(again))["repartee.items"]
            assert [item["role"] for item in items] == ["user", "assistant"]


async def test_mem_03_closed_sockets_leave_nothing(gateway: LiveGateway) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with gateway.socket() as line:
            await receive(line)
            await pong(line)
            # Compression would keep its state for as long as the socket is open.
            assert line.response is not None
            assert "sec-websocket-extensions" not in line.response.headers
    await until(lambda: not gateway.gateway.realtime.sockets)
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_socket_without_a_greeting_reader_may_leave_at_once(gateway: LiveGateway) -> None:
    for _ in range(5):
        async with gateway.socket() as line:
            line.transport.abort()
    await until(lambda: not gateway.gateway.realtime.sockets)
    with pytest.raises(ConnectionClosed):
        await line.recv()
