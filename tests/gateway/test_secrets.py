"""No key, token, secret or ticket shows up in what the gateway says or keeps."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.auth.test_tokens import EDDSA, HS256, WRONG, key_set
from tests.gateway.test_tokens import token
from tests.spine import ROOT, until, worker_process

KEY = "sk-0123456789abcdef-of-acme"
REMOVED = "sk-0123456789abcdef-removed"
WRONG_KEY = "sk-wrong-0123456789abcdef"


class GatewayProcess:
    """`repartee gateway` as people run it, at its most talkative."""

    def __init__(self, redis_url: str, folder: Path, **more: str) -> None:
        self.keys_file, self.limits_file = folder / "keys", folder / "limits.toml"
        self.keys_file.write_text(f"{KEY}:acme\n{REMOVED}:acme\n")
        self.limits_file.write_text("[tenants.acme]\nrequests_per_min = 6\n")
        tokens = folder / "tokens.json"
        tokens.write_text(key_set(EDDSA, HS256))
        self._log = folder / "log"
        options = {
            "--redis-url": redis_url,
            "--port": "0",
            "--log-level": "debug",
            "--log-format": "json",
            "--api-keys-file": str(self.keys_file),
            "--token-keys-file": str(tokens),
            "--limits-file": str(self.limits_file),
            **more,
        }
        flat = [part for option in options.items() for part in option]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "dev", "-m", "app.cli", "gateway", *flat],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def log(self) -> str:
        return self._log.read_text()

    async def port(self) -> int:
        found = await until(lambda: re.search(r"listening on \S+ port (\d+)", self.log()), 60)
        return int(found[1])

    def end(self) -> str:
        """Stop it; everything that it said."""
        self._process.terminate()
        self._process.wait(30)
        return self.log()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def process(redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    with worker_process(redis_url):
        running = GatewayProcess(redis_url, tmp_path)
        yield running
        running.kill()


@pytest.fixture
async def http(process: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{await process.port()}"
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        await until(lambda: _ready(client), 60)
        yield client


async def _ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/readyz")).status_code == 200


class Caller:
    """Shows credentials in every way, and notes what comes back."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._url = str(http.base_url).replace("http", "ws", 1)
        self.heard: list[str] = []

    async def ask(self, method: str, target: str, credential: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {credential}"}
        answer = await self._http.request(method, target, headers=headers, **options)
        self.heard.append(f"{answer.headers} {answer.text}")
        return answer.json() if "json" in answer.headers["content-type"] else answer.text

    async def open(self, query: str, *frames: str, **options: Any) -> None:
        try:
            async with connect(f"{self._url}/v1/realtime{query}", **options) as socket:
                self.heard += [str(socket.response.headers), str(await socket.recv())]
                for frame in frames:
                    await socket.send(frame)
                    async with asyncio.timeout(10):
                        self.heard.append(str(await socket.recv()))
        except InvalidStatus as refusal:
            self.heard.append(f"{refusal.response.headers} {refusal.response.body!r}")
        except ConnectionClosed as closed:
            self.heard.append(str(closed))

    async def offer(self, credential: str, *frames: str) -> None:
        offered = ["realtime", f"openai-insecure-api-key.{credential}"]
        await self.open("", *frames, subprotocols=offered)

    async def raw(self, data: bytes) -> None:
        port = self._http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        async with asyncio.timeout(10):
            self.heard.append((await reader.read()).decode("latin-1"))
        writer.close()


async def test_aut_04_no_secret_is_said_or_kept(
    process: GatewayProcess, http: httpx.AsyncClient, redis_url: str
) -> None:
    caller = Caller(http)
    good, swapped = token(), WRONG["alg swapped"]()
    secret = (await caller.ask("POST", "/v1/realtime/client_secrets", good))["value"]
    ticket = (await caller.ask("POST", "/v1/realtime/tickets", KEY))["ticket"]
    # What a caller hears is its own from here on; nothing may be repeated to anybody.
    caller.heard.clear()
    every = [KEY, REMOVED, WRONG_KEY, good, swapped, secret, ticket]
    renewals = [
        json.dumps({"type": "repartee.token.renew", "token": value})
        for value in (good, swapped, WRONG_KEY, [secret], ticket + "x" * 5000)
    ]
    for credential in every:
        await caller.offer(credential, *renewals)
        await caller.open(f"?api_key={credential}&token={credential}&ticket={credential}")
        await caller.open(f"?session_id={credential}&ticket=tk_{credential}")
        header = {"authorization": f"Bearer {credential}", "x-api-key": credential}
        await caller.open(f"?session_id=none&key={credential}", additional_headers=header)
        for path in ("/v1/models", "/v1/none", "/metrics", "/livez", "/v1/chat/completions"):
            await caller.ask("POST", f"{path}?api_key={credential}", credential, content=b"{")
        await caller.raw(b"GET /v1/realtime?ticket=%s\r\n\r\n" % credential.encode())
        bad = b"GET /?ticket=%s HTTP/1.1\r\nauthorization: Bearer %s\r\n\x00\r\n\r\n"
        await caller.raw(bad % (credential.encode(), credential.encode()))
    process.keys_file.write_text(f"{KEY}:acme\nshort {WRONG_KEY}\n")
    await until(lambda: "stays as it was" in process.log())
    process.keys_file.write_text(f"{KEY}:acme\n")
    await until(lambda: "was read again" in process.log())
    await caller.offer(REMOVED)
    metrics = await caller.ask("GET", "/metrics", KEY)
    assert "repartee_http_requests_total" in metrics
    said = process.end()
    kept = _everything_in(redis_url)
    for name, text in (("log", said), ("store", kept), ("answers", "\n".join(caller.heard))):
        assert text
        for each in every:
            for part in (each, each[-16:]):
                assert part not in text, name
        for material in (HS256["k"], EDDSA["d"]):
            assert material not in text, name
    assert "token refused" in said
    assert "Traceback" not in said


def _everything_in(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        keys = list(client.scan_iter("*"))
        assert keys
        dumps = [client.dump(key) or b"" for key in keys]
    return b"\n".join([*keys, *dumps]).decode("latin-1")
