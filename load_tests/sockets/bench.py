"""Memory, processor time and latency of many sockets, beside plain servers.

python -m load_tests.sockets.bench --idle 10000 --streaming 1000

For each server in turn: sockets that do nothing are opened and their memory is read from
the kernel; then others stream at once, and the processor time of every process on a
delta's way is divided by the deltas that arrived. Latency is from the making of a chunk's
last token to the client's reading of it, on the machine's one monotonic clock. The client
runs on the same cores. With several numbers for --streaming, each is measured in its turn.
Ends with a table, and JSON with --out.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from load_tests.measure import percentile, table
from load_tests.processes import cpu_s
from load_tests.sockets.socket_client import SocketClient, connect
from load_tests.sockets.targets import TARGETS, Target, memory_bytes

OPENING = 64
SETTLE_S = 3.0
# Requests are spread out, for a burst longer than a worker's queue is refused.
STAGGER_S = 0.004
_STAMP = re.compile(rb"@(\d+) ")


@dataclass
class Result:
    """One server.

    Attributes:
        name: Which.
        idle: Sockets opened.
        opened_per_s: Sockets opened a second.
        idle_kib: Memory of the server for each of them.
        idle_cpu_percent: Of one core, while they do nothing.
        streaming: Sockets that streamed.
        streaming_kib: Further memory of the server for each of those.
        deltas: Deltas received.
        deltas_per_s: Over all sockets, while all stream.
        cpu_us: Processor time for each delta, by process; that of the engine's thread, which
            makes deltas and isn't on their way, apart.
        latency_p50_ms: See the module.
        latency_p99_ms: See the module.
    """

    name: str
    idle: int = 0
    opened_per_s: float = 0.0
    idle_kib: float = 0.0
    idle_cpu_percent: float = 0.0
    streaming: int = 0
    streaming_kib: float = 0.0
    deltas: int = 0
    deltas_per_s: float = 0.0
    cpu_us: dict[str, float] = field(default_factory=dict)
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0


class Stream:
    """One socket's answer: counted, timed, awaited."""

    __slots__ = ("_target", "client", "done", "greeted", "latencies", "num_deltas")

    def __init__(self, target: Target, latencies: list[float]) -> None:
        self._target = target
        self.latencies = latencies
        self.num_deltas = 0
        self.done = asyncio.get_running_loop().create_future()
        self.greeted = asyncio.get_running_loop().create_future()
        self.client: SocketClient

    def on_text(self, data: bytes) -> None:
        """Take one message in."""
        if not self.greeted.done():
            self._greet(data)
        elif self._target.is_delta(data):
            self.num_deltas += 1
            stamps = _STAMP.findall(data)
            self.latencies.append((time.monotonic_ns() - int(stamps[-1])) / 1e6)
        elif self._target.is_done(data):
            self.done.set_result(None)
        elif b'"error"' in data[:20]:
            self.done.set_exception(RuntimeError(data[:300].decode()))

    def _greet(self, data: bytes) -> None:
        if b'"error"' in data[:20]:
            self.greeted.set_exception(RuntimeError(data[:300].decode()))
        else:
            self.greeted.set_result(None)


async def open_sockets(target: Target, number: int) -> list[Stream]:
    """Open sockets, some at a time."""
    latencies: list[float] = []
    limit = asyncio.Semaphore(OPENING)

    async def one() -> Stream:
        stream = Stream(target, latencies)
        async with limit:
            stream.client = await connect("127.0.0.1", target.port, target.target, stream.on_text)
            await stream.greeted
        for text in target.hello:
            stream.client.send_text(text)
        return stream

    return list(await asyncio.gather(*(one() for _ in range(number))))


async def measure_idle(target: Target, number: int, result: Result) -> list[Stream]:
    """Open `number` sockets and let them be."""
    before = memory_bytes(target.server_pid)
    started = time.monotonic()
    streams = await open_sockets(target, number)
    result.idle, result.opened_per_s = number, number / (time.monotonic() - started)
    await asyncio.sleep(SETTLE_S)
    result.idle_kib = (memory_bytes(target.server_pid) - before) / 1024 / number
    cpu, started = cpu_s(target.server_pid), time.monotonic()
    await asyncio.sleep(SETTLE_S)
    used_s = cpu_s(target.server_pid) - cpu
    result.idle_cpu_percent = 100 * used_s / (time.monotonic() - started)
    if closed := sum(stream.client.closed.done() for stream in streams):
        raise RuntimeError(f"{closed} of {number} idle sockets were closed")
    return streams


async def measure_streaming(
    target: Target, number: int, seconds: float, rate: float, result: Result
) -> None:
    """Open `number` sockets and let all of them stream at once."""
    before = memory_bytes(target.server_pid)
    streams = await open_sockets(target, number)
    await asyncio.sleep(SETTLE_S)
    latencies = streams[0].latencies
    gc.freeze()
    stagger_s = number * STAGGER_S
    num_tokens = int((seconds + stagger_s) * rate)
    for stream in streams:
        stream.client.send_text(target.question(num_tokens, rate))
        await asyncio.sleep(STAGGER_S)
    # All of them stream now; what is measured lies between here and the first end.
    del latencies[:]
    counted = sum(stream.num_deltas for stream in streams)
    started, cpu = time.monotonic(), target.cpu_s()
    await asyncio.sleep(seconds * 0.8)
    elapsed_s = time.monotonic() - started
    deltas = sum(stream.num_deltas for stream in streams) - counted
    result.cpu_us = {
        name: round((used_s - cpu[name]) / deltas * 1e6, 1)
        for name, used_s in target.cpu_s().items()
    }
    result.streaming, result.deltas = number, deltas
    result.deltas_per_s = deltas / elapsed_s
    result.streaming_kib = (memory_bytes(target.server_pid) - before) / 1024 / number
    result.latency_p50_ms = percentile(latencies, 0.5)
    result.latency_p99_ms = percentile(latencies, 0.99)
    await asyncio.gather(*(stream.done for stream in streams))
    for stream in streams:
        stream.client.transport.abort()


async def measure(name: str, options: argparse.Namespace) -> list[Result]:
    """All of one server: a result for each number of sockets that stream."""
    with TARGETS[name]() as target:
        results = [Result(target.name) for _ in options.streaming]
        idle = await measure_idle(target, options.idle, results[0]) if options.idle else []
        for number, result in zip(options.streaming, results, strict=True):
            if number:
                await measure_streaming(target, number, options.seconds, options.rate, result)
        for stream in idle:
            stream.client.transport.abort()
        await asyncio.sleep(0)
    return results


def report(results: Sequence[Result]) -> str:
    """The table."""
    rows = [
        [
            result.name,
            f"{result.idle_kib:.1f}",
            f"{result.idle_cpu_percent:.1f}",
            f"{result.opened_per_s:.0f}",
            f"{result.streaming_kib:.1f}",
            f"{result.streaming}",
            f"{result.deltas_per_s:.0f}",
            " + ".join(f"{value:.0f} {name}" for name, value in result.cpu_us.items()),
            f"{result.latency_p50_ms:.2f}",
            f"{result.latency_p99_ms:.2f}",
        ]
        for result in results
    ]
    headings = (
        *("server", "KiB/idle socket", "idle CPU %", "opened/s", "KiB/streaming socket"),
        *("streaming", "deltas/s", "CPU us/delta", "latency p50 ms", "p99 ms"),
    )
    return table(headings, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--servers", default=",".join(TARGETS), help="names joined by commas")
    parser.add_argument("--idle", type=int, default=10_000, help="sockets that do nothing")
    parser.add_argument(
        "--streaming",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[1_000],
        help="sockets that stream; several numbers joined by commas, one after the other",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of streaming by all")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = options.idle + max(options.streaming) + 200
    if wanted > hard:
        parser.error(f"{wanted} sockets need as many open files; this process may have {hard}")
    measured = [asyncio.run(measure(name, options)) for name in options.servers.split(",")]
    results = [result for of_server in measured for result in of_server]
    sys.stdout.write(report(results))
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
