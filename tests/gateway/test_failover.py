"""A replica takes its primary's place under live answers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes.engine import FakeEngine
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.gateway.test_realtime import ask
from tests.gateway.test_restarts import read_deltas, text_of
from tests.redis_proxy import RedisProxy, running_proxy
from tests.redis_server import RedisServer, free_port
from tests.spine import until

TEXT = " ".join(str(number) for number in range(250))


class Pair:
    """A primary, its replica, and the address that leads to whichever serves."""

    def __init__(self, folder: Path) -> None:
        self.servers = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            server = RedisServer(folder / name, append_only=True)
            port = free_port()
            server.options = ("--port", str(port), "--repl-diskless-sync-delay", "0")
            server.start()
            self.servers.append((server, port, folder / name / "redis.sock"))
        self.primary, self.replica = self.servers
        self.address: RedisProxy

    async def replicate(self) -> None:
        """The replica follows, and has all."""
        with self.replica[0].client() as outside:
            outside.replicaof("127.0.0.1", self.primary[1])
            await until(lambda: outside.info("replication")["master_link_status"] == "up")
        # The link is up some time before the first command goes over it.
        with self.primary[0].client() as outside:
            outside.set("parting", "word")
            assert await asyncio.to_thread(outside.wait, 1, 5000) == 1

    def part(self) -> None:
        """The replica hears nothing more: what is written from now on is lost with the primary."""
        with self.replica[0].client() as outside:
            outside.replicaof("no", "one")

    def fail_over(self) -> None:
        """The primary dies and the address leads to the replica."""
        self.primary[0].kill()
        self.part()
        self.address.lead_to(self.replica[2])
        self.primary, self.replica = self.replica, self.primary


@asynccontextmanager
async def replicated() -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        pair = Pair(Path(folder))
        try:
            await pair.replicate()
            async with running_proxy(pair.primary[2]) as pair.address:
                yield pair
        finally:
            for server, *_ in pair.servers:
                server.stop()


async def come_back(gateway: LiveGateway, query: str) -> tuple[ClientConnection, dict[str, Any]]:
    """A socket and its first event, as a client that tries again where it is told to."""
    async with asyncio.timeout(20):
        while True:
            socket = await gateway.socket(query)
            try:
                return socket, await receive(socket)
            except ConnectionClosed as closed:
                assert closed.rcvd is not None and closed.rcvd.code == 1013, closed
            await asyncio.sleep(0.05)


async def rest_of(socket: ClientConnection, gateway: LiveGateway) -> list[dict[str, Any]]:
    """Events to the response's end; nothing of it comes after."""
    events = await receive_until(socket, "response.done", 30)
    await until(lambda: gateway.gateway.responses.num_running == 0)
    await socket.send('{"type": "repartee.ping"}')
    after = await receive(socket)
    assert after["type"] not in ("response.output_text.delta", "response.done"), after
    return events


@pytest.mark.parametrize("lost_s", [0.0, 0.3])
async def test_an_answer_goes_on_at_the_new_primary(lost_s: float) -> None:
    async with (
        replicated() as pair,
        running_gateway(pair.address.url, engine=FakeEngine(rate=150)) as gateway,
        running_gateway(pair.address.url, worker=False) as other,
        gateway.socket() as socket,
    ):
        session_id = (await receive(socket))["session"]["id"]
        await ask(socket, script(text=TEXT))
        events = await read_deltas(socket, 5)
        if lost_s:
            pair.part()
            await asyncio.sleep(lost_s)
        pair.fail_over()
        cursor = [e for e in events if "repartee.cursor" in e][-1]["repartee.cursor"]
        query = f"?session_id={session_id}&epoch={cursor['epoch']}&starting_after={cursor['seq']}"
        again, first = await come_back(other, query)
        resumed = [first, *await rest_of(again, other)]
        await again.close()
        seen = text_of(events)
        events += await rest_of(socket, gateway)
        assert text_of(events) == TEXT
        assert seen + text_of(resumed) == TEXT
        for last in (events[-1], resumed[-1]):
            assert last["response"]["status"] == "completed"
        await until(lambda: gateway.gateway.responses.engine.ready())
        assert (await gateway.chat("hi")).status_code == 200


async def test_the_former_primary_comes_back_as_a_replica_behind_the_address() -> None:
    async with (
        replicated() as pair,
        running_gateway(pair.address.url, engine=FakeEngine(rate=150)) as gateway,
        gateway.socket() as socket,
    ):
        await receive(socket)
        await ask(socket, script(text=TEXT))
        events = await read_deltas(socket, 5)
        pair.fail_over()
        events += await read_deltas(socket, 5)
        former = pair.replica
        former[0].start()
        await pair.replicate()
        # Whoever looks the name up too early finds a server that takes no writes.
        pair.address.lead_to(former[2])
        engine = gateway.gateway.responses.engine
        await until(lambda: "read only" in (engine.health()["redis"]["refuses_writes"] or ""))
        pair.address.target = pair.primary[2]
        events += await rest_of(socket, gateway)
        assert text_of(events) == TEXT
        assert events[-1]["response"]["status"] == "completed"
