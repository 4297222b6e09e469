"""What people say and what they show stays out of logs, metrics, spans and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.gateway.live import receive, receive_until, script
from tests.gateway.test_realtime import user_item
from tests.gateway.test_secrets import KEY, WRONG_KEY, Caller, GatewayProcess, _ready
from tests.gateway.test_tokens import token
from tests.gateway.test_tracing import Collector, collector
from tests.redis_server import RedisServer
from tests.spine import ROOT, until

__all__ = ["collector"]

PASSWORD = "redis-0123456789abcdef"
NEXT_PASSWORD = "redis-fedcba9876543210"
OPS_TOKEN = "ops-0123456789abcdef-token"
WRONG_OPS_TOKEN = "ops-0123456789abcdef-wrong"
ASKED, ANSWERED = "zebra-asks-7731", "walrus-answers-4452"
_WORKER = """
import logging
logging.basicConfig(level=logging.DEBUG)
from tests.fakes.worker import main
main(["--rate", "0"])
"""


@contextmanager
def locked_redis(folder: Path) -> Iterator[RedisServer]:
    """A Redis that wants a password."""
    server = RedisServer(folder, append_only=True)
    server.options = ("--requirepass", PASSWORD)
    server.url = f"unix://:{PASSWORD}@{folder}/redis.sock"
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Stack:
    """A gateway and a worker at their most talkative."""

    redis: RedisServer
    gateway: GatewayProcess
    worker_log: Path

    def logs(self) -> str:
        return self.gateway.log() + self.worker_log.read_text()


@pytest.fixture(params=["traced", "untraced"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, collector: Collector) -> Iterator[Stack]:
    ops = tmp_path / "ops"
    ops.write_text(OPS_TOKEN)
    more = {"--ops-token-file": str(ops)}
    if request.param == "traced":
        more["--otlp-endpoint"] = collector.url
    with ExitStack() as holding:
        folder = Path(holding.enter_context(tempfile.TemporaryDirectory(prefix="rp-")))
        server = holding.enter_context(locked_redis(folder))
        worker_log = tmp_path / "worker-log"
        with worker_log.open("wb") as out:
            worker = subprocess.Popen(
                [sys.executable, "-c", _WORKER],
                cwd=ROOT,
                env={**os.environ, "REPARTEE_REDIS_URL": server.url},
                stdout=out,
                stderr=out,
            )
        holding.callback(worker.wait)
        holding.callback(worker.kill)
        gateway = GatewayProcess(server.url, tmp_path, **more)
        holding.callback(gateway.kill)
        gateway.limits_file.write_text("")
        yield Stack(server, gateway, worker_log)


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{await stack.gateway.port()}"
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        await until(lambda: _ready(client), 60)
        yield client


ANSWER = script(text=f"{ANSWERED} {ANSWERED}")


async def talk(http: httpx.AsyncClient) -> None:
    """Say things in every way; they are answered."""
    headers = {"authorization": f"Bearer {KEY}"}
    messages = [{"role": "system", "content": ASKED}, {"role": "user", "content": ANSWER}]
    for stream in (False, True):
        body = {"model": "repartee-fake", "messages": messages, "stream": stream}
        chat = await http.post("/v1/chat/completions", json=body, headers=headers)
        assert ANSWERED in chat.text.replace('"}', "") or stream
        body = {"input": ANSWER, "instructions": ASKED, "stream": stream}
        answer = await http.post("/v1/responses", json=body, headers=headers)
        assert answer.status_code == 200
    url = f"{str(http.base_url).replace('http', 'ws', 1)}/v1/realtime"
    async with connect(url, additional_headers=headers) as socket:
        await receive(socket)
        for frame in (
            {"type": "session.update", "session": {"instructions": ASKED}},
            {"type": "repartee.input_draft", "text": ASKED},
            user_item(ASKED),
            user_item(ANSWER),
            {"type": "response.create"},
        ):
            await socket.send(json.dumps(frame))
        await receive_until(socket, "response.done")


async def be_refused(http: httpx.AsyncClient, caller: Caller) -> None:
    """Say things that are not answered, for one reason or another."""
    failing = script(text=ANSWERED, fail_after=1)
    bodies: list[Any] = [
        {"messages": [{"role": "user", "content": ASKED}], "temperature": "hot"},
        {"messages": [{"role": "nobody", "content": ASKED}]},
        {"messages": [{"role": "user", "content": ASKED + " a" * 9000}]},
        {"messages": [{"role": "user", "content": failing}]},
        {"messages": [{"role": "user", "content": ASKED + "\ud800"}]},
    ]
    for path in ("/v1/chat/completions", "/v1/responses"):
        for body in bodies:
            as_input = {"input": body["messages"][0]["content"], **body}
            content = json.dumps({"model": "repartee-fake", **as_input}).encode()
            await caller.ask("POST", path, KEY, content=content)
        await caller.ask("POST", path, KEY, content=f'{{"input": "{ASKED}'.encode())
        await caller.ask("POST", path, KEY, content=b"\xff" + ASKED.encode())
    wrong = [{**user_item(ASKED), "previous_item_id": 7}, {"type": "nothing", "text": ASKED}]
    await caller.offer(KEY, *map(json.dumps, wrong), f'{{"{ASKED}')


async def show_credentials(caller: Caller) -> list[str]:
    """Every kind of credential in every place that takes one, good and bad; all of them."""
    good = token()
    secret = (await caller.ask("POST", "/v1/realtime/client_secrets", good))["value"]
    tickets = [(await caller.ask("POST", "/v1/realtime/tickets", KEY))["ticket"] for _ in range(2)]
    caller.heard.clear()
    shown = [KEY, WRONG_KEY, good, good[:-4] + "AAAA", secret, secret[:-4] + "AAAA", *tickets]
    shown += [OPS_TOKEN, WRONG_OPS_TOKEN]
    for credential in shown:
        await caller.offer(credential)
        await caller.open(f"?ticket={credential}")
        for path in ("/ops/state", "/metrics", "/v1/models", "/readyz"):
            await caller.ask("GET", f"{path}?ticket={credential}", credential)
    return shown


async def test_aut_04_neither_words_nor_secrets_are_in_logs_metrics_spans_or_the_board(
    stack: Stack, http: httpx.AsyncClient, collector: Collector, request: pytest.FixtureRequest
) -> None:
    caller = Caller(http)
    await talk(http)
    await be_refused(http, caller)
    refusals = list(caller.heard)
    shown = await show_credentials(caller)
    board = json.dumps(await caller.ask("GET", "/ops/state", OPS_TOKEN))
    metrics = await caller.ask("GET", "/metrics", OPS_TOKEN)
    assert '"gateways"' in board
    assert "repartee_redis_seconds_count" in metrics
    # Redis comes back with another password, which refuses both processes.
    stack.redis.kill()
    stack.redis.options = ("--requirepass", NEXT_PASSWORD)
    stack.redis.url = stack.redis.url.replace(PASSWORD, NEXT_PASSWORD)
    stack.redis.start()
    await until(lambda: "username-password" in stack.gateway.log(), 30)
    await caller.ask("POST", "/v1/responses", KEY, json={"input": ASKED})
    stack.gateway.end()
    spans = b"".join(collector.bodies).decode("latin-1")
    assert bool(spans) == ("untraced" not in request.node.name)
    logs = stack.logs()
    assert logs.count('"response ended"') >= 5
    assert "Traceback" not in stack.gateway.log()
    private = [ASKED, ANSWERED, PASSWORD, NEXT_PASSWORD, *shown]
    places = {
        "logs": logs,
        "metrics": metrics,
        "board": board,
        "spans": spans,
        "answers": "\n".join(caller.heard),
        # The answer that failed half way has its words, which are the caller's.
        "refusals": "\n".join(each for each in refusals if ANSWERED not in each),
    }
    assert len(refusals) >= 17
    found = [
        (place, each)
        for place, text in places.items()
        for each in private
        if each in text or each[-16:] in text
    ]
    assert not found
