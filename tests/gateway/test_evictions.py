"""A Redis that drops keys to make room, whichever they are, or takes nothing more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from websockets.exceptions import ConnectionClosed

from app.sessions import keys
from tests.fakes.engine import FakeEngine
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.gateway.test_realtime import send, user_item
from tests.gateway.test_restarts import text_of
from tests.redis_server import RedisServer
from tests.spine import until

TEXT = " ".join(str(number) for number in range(200))
NUM_CHATS = 6


@pytest.fixture
def small_redis() -> Iterator[RedisServer]:
    """Without a file, so that evictions are quick."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()


async def chat(gateway: LiveGateway) -> list[str]:
    """How each of a conversation's turns ended: a status, or the code of an error."""
    ends = []
    async with gateway.socket() as socket:
        await receive(socket)
        for _ in range(3):
            ends.append(await turn(socket))
            if ends[-1].startswith("closed"):
                break
    return ends


async def turn(socket: Any) -> str:
    try:
        await send(socket, user_item(script(text=TEXT)))
        events = await receive_until(socket, ("conversation.item.done", "error"), 20)
        if events[-1]["type"] == "error":
            return f"error {events[-1]['error']['code']}"
        await send(socket, {"type": "response.create", "response": {}})
        events = await receive_until(socket, ("response.done", "error"), 40)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return f"closed {closed.rcvd.code} {closed.rcvd.reason}"
    if events[-1]["type"] == "error":
        return f"error {events[-1]['error']['code']}"
    response = events[-1]["response"]
    if response["status"] == "completed":
        assert text_of(events) == TEXT
        return "completed"
    assert TEXT.startswith(text_of(events))
    return f"{response['status']} {json.dumps(response['status_details'])}"


async def flood(server: RedisServer, stop: asyncio.Event) -> None:
    """Others fill the memory, faster than answers do."""
    with server.client() as outside:
        number = 0
        while not stop.is_set():
            number += 1
            # With what is held for clients counted, there may be nothing left to drop.
            with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                outside.set(f"other{number % 150}", "x" * 20_000, ex=5 + number % 150)
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
async def test_whatever_is_evicted_nothing_hangs(small_redis: RedisServer, policy: str) -> None:
    with small_redis.client() as outside:
        async with running_gateway(small_redis.url, engine=FakeEngine(rate=300)) as gateway:
            used = outside.info("memory")["used_memory"]
            outside.config_set("maxmemory-policy", policy)
            outside.config_set("maxmemory", used + 1_500_000)
            stop = asyncio.Event()
            flooding = asyncio.create_task(flood(small_redis, stop))
            ends = await asyncio.gather(*(chat(gateway) for _ in range(NUM_CHATS)))
            stop.set()
            await flooding
            assert outside.info("stats")["evicted_keys"] > 0
            # Whole, or told why; a conversation that was dropped is gone, and a worker whose
            # record was dropped is not seen until it says again that it lives.
            told = (
                "completed",
                "error session_not_found",
                "error redis_unavailable",
                "error no_worker",
            )
            assert all(end.startswith(told) for chat_ends in ends for end in chat_ends), ends
            outside.config_set("maxmemory", 0)
            await gateway.settled()
            await until(lambda: gateway.gateway.responses.engine.ready())
            assert (await gateway.chat("hi")).status_code == 200


@pytest.mark.parametrize("lost", [[0], [1], [2], [1, 2]], ids=["hash", "order", "items", "both"])
async def test_a_conversation_that_lost_a_part_is_gone(
    gateway: LiveGateway, redis_server: RedisServer, lost: list[int]
) -> None:
    """Each of its keys may be evicted by itself; nobody goes on without what was said."""
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        assert await turn(socket) == "completed"
        with redis_server.client() as outside:
            outside.delete(*(keys.of(session_id)[number] for number in lost))
        assert await turn(socket) == "error session_not_found"
        await send(socket, {"type": "response.create", "response": {}})
        [*_, refused] = await receive_until(socket, ("response.done", "error"))
        assert refused["error"]["code"] == "session_not_found"
    with pytest.raises(ConnectionClosed) as caught:
        async with gateway.socket(f"?session_id={session_id}") as again:
            await receive(again)
            await receive(again)
    assert caught.value.rcvd is not None and caught.value.rcvd.reason == "session_not_found"
    assert (await gateway.http.get(f"/v1/sessions/{session_id}")).status_code == 404
