"""The servers under load, started one at a time, and how a client speaks to each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.processes import (
    ROOT,
    ServerFailedError,
    cpu_s,
    free_port,
    main_thread_cpu_s,
)
from tests.redis_server import RedisServer

MODEL = "repartee-fake"
START_TIMEOUT_S = 60.0
MAX_RUNNING = 20_000
# A question that spells its answer out is long, and the answer is to end by itself.
CONTEXT_WINDOW = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """A running server.

    Attributes:
        name: For the table.
        port: TCP port on loopback.
        target: Path and query of its socket.
        server_pid: The process that holds the sockets.
        other_pids: Further processes on a delta's way, by name.
        engine_pids: Processes of which only the first thread is on a delta's way; the others
            make it. By the name of what makes it.
        question: Text to send for an answer of (tokens, tokens a second).
        is_delta: Whether a message holds tokens.
        is_done: Whether a message ends an answer.
        hello: Texts that open a conversation, after the handshake.
    """

    name: str
    port: int
    target: str
    server_pid: int
    question: Callable[[int, float], str]
    is_delta: Callable[[bytes], bool]
    is_done: Callable[[bytes], bool]
    other_pids: dict[str, int] = field(default_factory=dict)
    engine_pids: dict[str, int] = field(default_factory=dict)
    hello: tuple[str, ...] = ()

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far, in seconds, of each process, and of what makes deltas."""
        used = {name: cpu_s(pid) for name, pid in self.other_pids.items()}
        for name, pid in self.engine_pids.items():
            used[name] = cpu_s(pid) - main_thread_cpu_s(pid)
        for name, pid in self.other_pids.items():
            if pid in self.engine_pids.values():
                used[name] = main_thread_cpu_s(pid)
        return {"server": cpu_s(self.server_pid), **used}


def _ask_repartee(num_tokens: int, rate: float) -> str:
    script = {"num_tokens": num_tokens, "rate": rate, "stamped": True}
    content = [{"type": "input_text", "text": "!json " + json.dumps(script)}]
    item = {"type": "message", "role": "user", "content": content}
    response = {"conversation": "none", "input": [item], "max_output_tokens": "inf"}
    return json.dumps({"type": "response.create", "response": response})


@contextmanager
def repartee() -> Iterator[Target]:
    """One gateway, one worker around a fake engine, one Redis."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        redis = RedisServer(Path(folder))
        redis.start()
        port = free_port()
        worker = _start(
            "tests.fakes.worker",
            "--redis-url",
            redis.url,
            "--model",
            MODEL,
            "--max-running",
            str(MAX_RUNNING),
            "--context-window",
            str(CONTEXT_WINDOW),
        )
        gateway = _start("app.cli", "gateway", "--port", str(port), REPARTEE_REDIS_URL=redis.url)
        try:
            _wait_for(f"http://127.0.0.1:{port}/readyz")
            yield Target(
                name="repartee",
                port=port,
                target="/v1/realtime",
                server_pid=gateway.pid,
                other_pids={"worker": worker.pid, "redis": redis.pid},
                engine_pids={"fake engine": worker.pid},
                question=_ask_repartee,
                is_delta=lambda data: b'"response.output_text.delta"' in data[:60],
                is_done=lambda data: b'"response.done"' in data[:60],
            )
        finally:
            for process in (gateway, worker):
                process.kill()
                process.wait()
            redis.stop()


def starlette() -> AbstractContextManager[Target]:
    """starlette on uvicorn, with nothing behind it."""
    return _plain(
        "starlette",
        name="starlette + uvicorn, bare",
        target="/socket",
        question=lambda tokens, rate: json.dumps({"num_tokens": tokens, "rate": rate}),
        is_delta=lambda data: b"output_text.delta" in data[:60],
        is_done=lambda data: b"response.done" in data[:60],
    )


def socketio() -> AbstractContextManager[Target]:
    """python-socketio on uvicorn, over its WebSocket transport."""
    return _plain(
        "socketio",
        name="python-socketio",
        target="/socket.io/?EIO=4&transport=websocket",
        question=lambda tokens, rate: (
            "42" + json.dumps(["ask", {"num_tokens": tokens, "rate": rate}])
        ),
        is_delta=lambda data: data.startswith(b'42["delta"'),
        is_done=lambda data: data.startswith(b'42["done"'),
        hello=("40",),
    )


@contextmanager
def _plain(kind: str, **fields: Any) -> Iterator[Target]:
    port = free_port()
    server = _start("load_tests.sockets.plain_servers", kind, "--port", str(port))
    try:
        _wait_for(f"http://127.0.0.1:{port}/", any_status=True)
        yield Target(port=port, server_pid=server.pid, **fields)
    finally:
        server.kill()
        server.wait()


TARGETS = {"repartee": repartee, "starlette": starlette, "socketio": socketio}


def _start(module: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for(url: str, *, any_status: bool = False) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                answer.read()
                return
        except urllib.error.HTTPError:
            if any_status:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise ServerFailedError(f"{url} did not answer within {START_TIMEOUT_S:g} s")


def memory_bytes(pid: int) -> int:
    """Proportional set size: what the process itself holds, shared pages shared out."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(pss.split()[1]) * 1024
