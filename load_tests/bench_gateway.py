"""CPU time of one gateway per delta: a fake worker streams to many sockets.

python -m load_tests.bench_gateway --sockets 200 --rate 40

Three processes besides this one: Redis, a worker around a fake engine, the gateway. The
gateway's CPU time is read from the kernel before and after the answers; everything it
does for a delta counts: the inbox, the parsing, the accounting, the frame, the socket.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.redis_server import RedisServer

ROOT = Path(__file__).parents[1]
MODEL = "repartee-fake"
START_TIMEOUT_S = 60.0
IDLE_S = 3.0
# A worker refuses a burst that is longer than its queue.
STAGGER_S = 0.01


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        sockets: Sockets, each with one answer at a time.
        deltas: Deltas received by all of them.
        seconds: From the first request to the last end.
        cpu_us_per_delta: The gateway's CPU time, user and system, for each delta.
        deltas_per_s: Rate over all sockets.
        idle_cpu_percent: Of one core, with the sockets open and nothing asked.
        rss_mib: The gateway's resident memory at the end.
    """

    sockets: int
    deltas: int
    seconds: float
    cpu_us_per_delta: float
    deltas_per_s: float
    idle_cpu_percent: float
    rss_mib: float


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def start_worker(stack: ExitStack, redis_url: str, rate: float) -> None:
    """A worker process around a fake engine."""
    command = [sys.executable, "-m", "tests.fakes.worker", "--redis-url", redis_url]
    process = subprocess.Popen(
        [*command, "--rate", str(rate), "--model", MODEL], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)


def start_gateway(stack: ExitStack, redis_url: str) -> tuple[int, int]:
    """A gateway process; its pid and port."""
    environ = {**os.environ, "REPARTEE_REDIS_URL": redis_url, "REPARTEE_LOG_LEVEL": "info"}
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "gateway", "--port", "0", "--grace", "0"],
        cwd=ROOT,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stderr is not None
    stack.callback(process.stderr.close)
    for line in process.stderr:
        if "listening on" in line:
            return process.pid, int(line.rsplit(" ", 1)[1])
    raise RuntimeError("the gateway did not start")


async def ready(port: int) -> None:
    """Wait until the gateway would serve a request."""
    async with httpx.AsyncClient() as http:
        for _ in range(int(START_TIMEOUT_S / 0.1)):
            if (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                return
            await asyncio.sleep(0.1)
    raise TimeoutError("the gateway did not become ready")


async def answer(socket: ClientConnection, num_tokens: int, delay_s: float) -> int:
    """Ask once, after a while, and read to the end; the number of deltas."""
    await asyncio.sleep(delay_s)
    script = "!json " + json.dumps({"num_tokens": num_tokens})
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": script}],
    }
    response = {"conversation": "none", "input": [item]}
    await socket.send(json.dumps({"type": "response.create", "response": response}))
    deltas = 0
    async for frame in socket:
        if '"response.output_text.delta"' in frame[:60]:  # type: ignore[operator]
            deltas += 1
        elif '"response.done"' in frame[:60]:  # type: ignore[operator]
            return deltas
        elif '"type":"error"' in frame[:60]:  # type: ignore[operator]
            raise RuntimeError(f"refused: {frame!r}")
    raise RuntimeError("a socket ended early")


async def measure(pid: int, port: int, num_sockets: int, num_tokens: int) -> Result:
    """Open the sockets, then let all of them stream at once."""
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    sockets = [await connect(url, compression=None) for _ in range(num_sockets)]
    for socket in sockets:
        await socket.recv()
    idle = cpu_seconds(pid)
    await asyncio.sleep(IDLE_S)
    cpu, started_at = cpu_seconds(pid), time.monotonic()
    idle = cpu - idle
    counts = await asyncio.gather(
        *(answer(socket, num_tokens, i * STAGGER_S) for i, socket in enumerate(sockets))
    )
    seconds, cpu = time.monotonic() - started_at, cpu_seconds(pid) - cpu
    rss_mib = resident_mib(pid)
    for socket in sockets:
        socket.transport.abort()
    deltas = sum(counts)
    return Result(
        sockets=num_sockets,
        deltas=deltas,
        seconds=round(seconds, 2),
        cpu_us_per_delta=round(cpu / deltas * 1e6, 1),
        deltas_per_s=round(deltas / seconds, 1),
        idle_cpu_percent=round(idle / IDLE_S * 100, 1),
        rss_mib=round(rss_mib, 1),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run once and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=100)
    parser.add_argument("--rate", type=float, default=40.0, help="tokens a second of each answer")
    parser.add_argument("--tokens", type=int, default=400, help="length of each answer")
    options = parser.parse_args(argv)

    async def run(pid: int, port: int) -> Result:
        await ready(port)
        return await measure(pid, port, options.sockets, options.tokens)

    with tempfile.TemporaryDirectory(prefix="rp-") as folder, ExitStack() as stack:
        redis = RedisServer(Path(folder))
        redis.start()
        stack.callback(redis.stop)
        start_worker(stack, redis.url, options.rate)
        pid, port = start_gateway(stack, redis.url)
        result = asyncio.run(run(pid, port))
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
