"""`make soak`: chats with random cancels and disconnects, then a search for leaks.

Eight chats run at once for some minutes against `repartee serve` and a Redis of their
own. Each turn is drawn at random: answered to its end, cancelled before or after its
first token, or cut off by closing the connection; over HTTP and over WebSocket. When
all is quiet again nothing may be left: no running response, KV block, connection,
task or Redis key without a lifetime, and memory must not have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis.asyncio
from websockets.asyncio.client import ClientConnection

from app.embedded_redis import EmbeddedRedis, find_redis
from load_tests.chat_client import AnswerFailedError, ask, chat_body, open_socket, stream_chat
from load_tests.measure import median, table
from load_tests.processes import Server, child_of, repartee, rss_bytes
from load_tests.prompts import chat_prompt

MAX_NEW_TOKENS = 64
SAMPLE_S = 5.0
QUIET_TIMEOUT_S = 60.0
# The allocator's own breathing; a leak shows as a trend over thousands of turns.
GROWTH_LIMIT = 0.05
GROWTH_FLOOR_BYTES = 8 << 20
MUST_BE_ZERO = (
    "repartee_responses_running",
    "repartee_responses_live",
    "repartee_worker_running",
    "repartee_worker_waiting",
    "repartee_worker_used_blocks",
    "repartee_unsent_bytes",
    "repartee_connections",
    "repartee_pending_bytes",
)
MUST_RETURN = ("repartee_asyncio_tasks", "repartee_worker_asyncio_tasks")

_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Soak:
    """One run's state.

    Attributes:
        server: Under test.
        model: The model's id.
        rng: Decides what each turn does.
        turns: What was done, and how often.
        failures: Errors that no turn provoked.
        memory: Process name to its resident bytes over time.
    """

    server: Server
    model: str
    rng: random.Random
    turns: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory: dict[str, list[int]] = field(default_factory=dict)

    async def chat(self, deadline: float) -> None:
        """Turns until the deadline."""
        kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "http answered": self._http_answered,
            "http cut off": self._http_cut_off,
            "socket answered": self._socket_answered,
            "socket cancelled": self._socket_cancelled,
            "socket cut off": self._socket_cut_off,
        }
        while time.monotonic() < deadline:
            name = self.rng.choice(list(kinds))
            try:
                await kinds[name]()
            except (AnswerFailedError, OSError) as error:
                self.failures.append(f"{name}: {error}")
            self.turns[name] += 1

    def _num_tokens(self) -> int:
        return self.rng.randint(1, MAX_NEW_TOKENS)

    async def _http_answered(self) -> None:
        tokens = self._num_tokens()
        body = chat_body(chat_prompt(), tokens, model=self.model)
        answer = await stream_chat(self.server.host, self.server.port, body)
        if answer.completion_tokens != tokens:
            raise AnswerFailedError(f"{answer.completion_tokens} tokens instead of {tokens}")

    async def _http_cut_off(self) -> None:
        body = chat_body(chat_prompt(), MAX_NEW_TOKENS, model=self.model)
        call = asyncio.create_task(stream_chat(self.server.host, self.server.port, body))
        await asyncio.wait([call], timeout=self.rng.uniform(0.0, 1.5))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _socket(self) -> AsyncIterator[ClientConnection]:
        socket = await open_socket(self.server.host, self.server.port, self.model)
        try:
            yield socket
        finally:
            await socket.close()

    async def _socket_answered(self) -> None:
        async with self._socket() as socket:
            for _ in range(self.rng.randint(1, 3)):
                await ask(socket, chat_prompt(), self._num_tokens())

    async def _socket_cancelled(self) -> None:
        async with self._socket() as socket:
            turn = asyncio.create_task(ask(socket, chat_prompt(), MAX_NEW_TOKENS))
            done, _ = await asyncio.wait([turn], timeout=self.rng.uniform(0.0, 1.0))
            if not done:
                await socket.send(json.dumps({"type": "response.cancel"}))
            try:
                await turn
            except AnswerFailedError as error:
                # The answer may end just before its cancel arrives.
                if "cancel" not in str(error):
                    raise

    async def _socket_cut_off(self) -> None:
        socket = await open_socket(self.server.host, self.server.port, self.model)
        turn = asyncio.create_task(ask(socket, chat_prompt(), MAX_NEW_TOKENS))
        await asyncio.wait([turn], timeout=self.rng.uniform(0.0, 1.0))
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        socket.transport.abort()
        await socket.wait_closed()

    async def watch_memory(self, pids: dict[str, int]) -> None:
        """Samples until cancelled."""
        while True:
            for name, pid in pids.items():
                self.memory.setdefault(name, []).append(rss_bytes(pid))
            await asyncio.sleep(SAMPLE_S)

    async def metrics(self) -> dict[str, float]:
        """`/metrics`, samples of one name added up."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        sums: dict[str, float] = {}
        for name, value in _SAMPLE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def quiet_metrics(self) -> dict[str, float]:
        """The metrics once nothing runs, or as they are when patience ends."""
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while True:
            found = await self.metrics()
            if not any(found.get(name, 0.0) for name in MUST_BE_ZERO):
                # One more heartbeat, so that every figure is from after the last turn.
                await asyncio.sleep(1.5)
                return await self.metrics()
            if time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.5)


async def keys_without_lifetime(url: str) -> list[str]:
    """Every key that would stay for ever."""
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        return [key async for key in client.scan_iter(count=1000) if await client.ttl(key) == -1]


def growth(samples: Sequence[int]) -> int:
    """Median of the last quarter less that of the second quarter, in bytes.

    The first quarter is warm-up.
    """
    quarter = max(1, len(samples) // 4)
    return int(median(samples[-quarter:]) - median(samples[quarter : 2 * quarter] or samples[:1]))


def grew(samples: Sequence[int]) -> bool:
    """Whether the growth is more than noise."""
    return growth(samples) > max(GROWTH_FLOOR_BYTES, GROWTH_LIMIT * samples[-1])


async def _soak(soak: Soak, pids: dict[str, int], chats: int, minutes: float, url: str) -> bool:
    await ask_once(soak)
    before = await soak.quiet_metrics()
    watch = asyncio.create_task(soak.watch_memory(pids))
    deadline = time.monotonic() + minutes * 60
    await asyncio.gather(*(soak.chat(deadline) for _ in range(chats)))
    after = await soak.quiet_metrics()
    watch.cancel()
    keys = await keys_without_lifetime(url)
    rows = [[name, f"{after.get(name, 0.0):g}", "0"] for name in MUST_BE_ZERO]
    rows += [[n, f"{after.get(n, 0.0):g}", f"{before.get(n, 0.0):g}"] for n in MUST_RETURN]
    rows.append(["Redis keys without lifetime", str(len(keys)), "0"])
    rows.append(["turns that failed", str(len(soak.failures)), "0"])
    passed = all(row[1] == row[2] for row in rows)
    for name, samples in soak.memory.items():
        change = f"{growth(samples) / 1e6:+.1f} MB of {samples[-1] / 1e6:.0f}"
        # Redis keeps each answer's log for its lifetime, so it alone may grow.
        rows.append([f"{name} memory", change, "" if name == "Redis" else "no growth"])
        passed = passed and (name == "Redis" or not grew(samples))
    sys.stdout.write(table(["left at the end", "found", "expected"], rows))
    done = ", ".join(f"{count} {name}" for name, count in sorted(soak.turns.items()))
    sys.stdout.write(f"\nTurns: {done}.\n")
    for text in [*soak.failures[:10], *keys[:10]]:
        sys.stdout.write(f"  {text}\n")
    return passed


async def ask_once(soak: Soak) -> None:
    """One turn each way, so that everything lazy is there before the baseline."""
    body = chat_body(chat_prompt(), 4, model=soak.model)
    await stream_chat(soak.server.host, soak.server.port, body)
    socket = await open_socket(soak.server.host, soak.server.port, soak.model)
    await ask(socket, chat_prompt(), 4)
    await socket.close()


@contextlib.contextmanager
def _private_redis(folder: Path) -> Any:
    server = EmbeddedRedis(find_redis({"PATH": ""}), folder)
    with (
        server.log_path.open("wb") as log,
        subprocess.Popen(server.command(), stdout=log, stderr=log) as process,
    ):
        try:
            asyncio.run(asyncio.wait_for(server.wait_ready(), 30))
            yield server, process.pid
        finally:
            process.terminate()
            process.wait(30)
            server.remove_socket()


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code is 1 if anything was left."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--chats", type=int, default=8, help="chats at once (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="of what the turns do (default 0)")
    parser.add_argument("--model", default="", help="as for repartee serve")
    options = parser.parse_args(argv)
    if not 0 < options.minutes <= 24 * 60 or not 1 <= options.chats <= 1000:
        parser.error("--minutes must be above 0 and at most 1440, --chats from 1 to 1000")
    with tempfile.TemporaryDirectory(prefix="repartee-soak-") as name:
        folder = Path(name)
        with _private_redis(folder) as (server, redis_pid):
            flags = ("--redis-url", server.url, "--model", options.model)
            with repartee(folder / "data", folder / "serve.log", *flags) as serving:
                pids = {
                    "worker": child_of(serving.pid, "engine.worker"),
                    "gateway": child_of(serving.pid, "app.cli"),
                    "supervisor": serving.pid,
                    "Redis": redis_pid,
                }
                soak = Soak(serving, serving.model, random.Random(options.seed))
                run = _soak(soak, pids, options.chats, options.minutes, server.url)
                passed = asyncio.run(run)
    sys.stdout.write("Nothing was left.\n" if passed else "Something was left: see above.\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
