"""A gateway on this loop and on a real port, with a real Redis and a fake engine."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from app.gateway.config import GatewayConfig
from app.gateway.server import Gateway, GatewayServer, create_gateway
from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.spine import running_worker, until

MODEL = "repartee-fake"


def say(text: str) -> str:
    """A message that is answered with exactly `text`."""
    return "!text " + base64.b64encode(text.encode()).decode()


def script(**fields: Any) -> str:
    """A message that is answered by a `Script`."""
    return "!json " + json.dumps(fields)


@dataclass
class LiveGateway:
    """What a test needs of a running gateway."""

    port: int
    gateway: Gateway
    server: GatewayServer
    worker: Worker | None
    engine: FakeEngine
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def socket(self, query: str = "", **options: Any) -> connect:
        """A raw WebSocket to the Realtime route."""
        url = f"ws://127.0.0.1:{self.port}/v1/realtime{query}"
        return connect(url, max_size=None, **options)

    async def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        """A chat completion, plain unless asked otherwise."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"model": MODEL, "messages": messages, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        text = (await self.http.get("/metrics")).text
        total = 0.0
        for line in text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            if all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items()):
                total += float(match[3])
        return total

    async def running(self, number: int) -> None:
        """Wait until the engine makes so many answers."""
        await until(lambda: self.engine.stats().num_running == number)

    async def settled(self) -> None:
        """Wait until no answer runs, here or in the worker."""
        await until(lambda: self.gateway.responses.num_running == 0)
        await until(lambda: not self.engine.has_work())


@asynccontextmanager
async def running_gateway(
    redis_url: str, *, engine: FakeEngine | None = None, worker: bool = True, **settings: Any
) -> AsyncIterator[LiveGateway]:
    """A gateway and, unless told otherwise, a worker."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    listener.setblocking(False)
    port = listener.getsockname()[1]
    settings.setdefault("grace_s", 0.0)
    gateway = create_gateway(GatewayConfig(redis_url=redis_url, **settings))
    server = GatewayServer(gateway)
    engine = engine or FakeEngine()
    async with AsyncExitStack() as stack:
        running = None
        if worker:
            running = await stack.enter_async_context(running_worker(redis_url, engine))
        serving = asyncio.create_task(server.serve_on(listener))
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        await stack.enter_async_context(http)
        await until(lambda: server.started or serving.done())
        live = LiveGateway(port, gateway, server, running, engine, http)
        if worker:
            await until(lambda: gateway.responses.engine.ready())
        try:
            yield live
        finally:
            server.stop()
            await serving
            listener.close()


async def receive(socket: ClientConnection, timeout_s: float = 10.0) -> dict[str, Any]:
    """The next event."""
    async with asyncio.timeout(timeout_s):
        event: dict[str, Any] = json.loads(await socket.recv())
    return event


async def receive_until(
    socket: ClientConnection, kind: str | tuple[str, ...], timeout_s: float = 10.0
) -> list[dict[str, Any]]:
    """Events up to the first of a kind, or of some kinds, that one included."""
    kinds = (kind,) if isinstance(kind, str) else kind
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(timeout_s):
        while not events or events[-1]["type"] not in kinds:
            events.append(json.loads(await socket.recv()))
    return events
