"""SIGTERM: no new work, running answers end, every socket is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.gateway.test_realtime import ask, closed, done
from tests.spine import running_worker, until

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def stopping(redis_url: str) -> AsyncIterator[LiveGateway]:
    async with running_gateway(redis_url, grace_s=10.0) as gateway:
        yield gateway


async def test_sht_01_idle_sockets_close_with_1012(redis_url: str) -> None:
    async with stopping(redis_url) as gateway:
        sockets = [await gateway.socket() for _ in range(20)]
        for socket in sockets:
            await receive(socket)
        gateway.server.stop()
        assert {await closed(socket) for socket in sockets} == {1012}


async def test_sht_02_running_answers_end_and_new_work_is_refused(redis_url: str) -> None:
    async with stopping(redis_url) as gateway, gateway.socket() as busy:
        await receive(busy)
        await ask(busy, script(num_tokens=80, rate=80))
        asking = asyncio.create_task(gateway.chat(script(num_tokens=80, rate=80), stream=True))
        await gateway.running(2)
        gateway.server.stop()
        await until(lambda: gateway.gateway.responses.is_draining)
        ready = await gateway.http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["draining"] is True
        assert (await gateway.http.get("/livez")).status_code == 200
        refused = await gateway.chat("hi")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        with pytest.raises(InvalidStatus) as caught:
            async with gateway.socket():
                pass
        assert caught.value.response.status_code == 503
        assert (await done(busy))["status"] == "completed"
        assert await closed(busy) == 1012
        assert (await asking).text.endswith("data: [DONE]\n\n")


async def test_sht_02_the_second_signal_ends_the_grace(redis_url: str) -> None:
    async with stopping(redis_url) as gateway:
        asking = asyncio.create_task(gateway.chat(script(num_tokens=1000, rate=20), stream=True))
        async with gateway.socket() as busy:
            await receive(busy)
            await ask(busy, script(num_tokens=1000, rate=20))
            await gateway.running(2)
            gateway.server.stop()
            gateway.server.stop()
            assert await closed(busy) == 1012
        *_, error, done_line, end = (await asking).text.split("\n\n")
        assert '"code":"draining"' in error
        assert (done_line, end) == ("data: [DONE]", "")


async def test_sht_01_the_process_exits_with_0(redis_url: str) -> None:
    environ = {**os.environ, "REPARTEE_REDIS_URL": redis_url, "REPARTEE_LOG_LEVEL": "info"}
    command = [sys.executable, "-m", "app.cli", "gateway", "--port", "0", "--grace", "5"]
    async with running_worker(redis_url):
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environ, stderr=subprocess.PIPE
        )
        try:
            assert process.stderr is not None
            port = 0
            async with asyncio.timeout(30):
                while not port:
                    line = (await process.stderr.readline()).decode()
                    if "listening on" in line:
                        port = int(line.rsplit(" ", 1)[1])
            url = f"ws://127.0.0.1:{port}/v1/realtime"

            async def ready() -> bool:
                async with httpx.AsyncClient() as http:
                    reply = await http.get(f"http://127.0.0.1:{port}/readyz")
                return reply.status_code == 200

            await until(ready)
            async with connect(url) as idle, connect(url) as busy:
                await receive(idle)
                await receive(busy)
                await ask(busy, script(num_tokens=30, rate=60))
                await receive_until(busy, "response.created")
                process.send_signal(signal.SIGTERM)
                assert await closed(idle) == 1012
                assert (await done(busy))["status"] == "completed"
                assert await closed(busy) == 1012
            async with asyncio.timeout(10):
                rest = await process.stderr.read()
                assert await process.wait() == 0
            assert b"Traceback" not in rest
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
