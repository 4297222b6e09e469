"""CPU per delta and latency of the way from an engine through Redis to a gateway.

Two processes: a worker whose engine does nothing but emit deltas at a pace, and a
client that listens to all of them. What is counted is the CPU time of each side's event
loop thread, so neither the engine nor Redis. Ends with one JSON line.

    python -m load_tests.bench_spine --redis-url redis://127.0.0.1:6379/0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

from app.routing import EngineClient, ResponseStream
from engine.contract import (
    Accepted,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    ModelCard,
    SamplingParams,
    Tier,
    Usage,
)
from engine.stats import EngineStats
from engine.worker.worker import Worker

MODEL = "paced"
READY_S = 20.0


class PacedEngine:
    """Gives every request one delta a step; its text is the time of its making."""

    card = ModelCard(MODEL, 0, 8192, 1, 1, "none")

    def __init__(self, num_deltas: int, step_s: float) -> None:
        self._num_deltas = num_deltas
        self._step_s = step_s
        self._made: dict[str, int] = {}
        self._next_at = 0.0

    def prepare(self, request: GenerateRequest) -> GenerateRequest:
        return request

    def add(self, prepared: GenerateRequest) -> list[Event]:
        self._made[prepared.request_id] = 0
        return [Accepted(prepared.request_id, 1, 0, 1)]

    def cancel(self, request_id: str) -> list[Event]:
        made = self._made.pop(request_id, None)
        if made is None:
            return []
        return [Finished(request_id, 1, made + 1, FinishReason.CANCELLED, Usage(1, made))]

    def has_work(self) -> bool:
        return bool(self._made)

    def step(self) -> list[Event]:
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._next_at = max(self._next_at, time.monotonic() - self._step_s) + self._step_s
        events: list[Event] = []
        for request_id, made in list(self._made.items()):
            if made == self._num_deltas:
                del self._made[request_id]
                usage = Usage(1, made)
                events.append(Finished(request_id, 1, made + 1, FinishReason.STOP, usage))
            else:
                self._made[request_id] = made + 1
                events.append(Delta(request_id, 1, made + 1, f"{time.time():.6f} and so on", 4))
        return events

    def stats(self) -> EngineStats:
        return EngineStats(len(self._made), 0, 0, 1, 0.0, {})


def _serve(options: argparse.Namespace, result: Connection) -> None:
    """The worker's process; sends the CPU seconds of its loop thread when told to stop."""

    async def serve() -> float:
        engine = PacedEngine(options.deltas, options.step_ms / 1000)
        worker = Worker(engine, options.redis_url, grace_s=0.0)
        task = asyncio.create_task(worker.run())
        await asyncio.to_thread(result.recv)
        started = time.thread_time()
        await asyncio.to_thread(result.recv)
        used = time.thread_time() - started
        worker.stop()
        await task
        return used

    result.send(asyncio.run(serve()))


async def _listen(stream: ResponseStream, latencies: list[float]) -> int:
    num_deltas = 0
    async for event in stream:
        if isinstance(event, Delta):
            num_deltas += 1
            latencies.append(time.time() - float(event.text.split(" ", 1)[0]))
    return num_deltas


def _request(number: int, gateway_id: str) -> GenerateRequest:
    now = time.time()
    return GenerateRequest(
        request_id=f"bench_{time.time_ns()}_{number}",
        model=MODEL,
        messages=(Message("user", "go"),),
        sampling=SamplingParams(),
        tier=Tier.STANDARD,
        tenant="bench",
        conversation_id=None,
        reply_to=gateway_id,
        created_at=now,
        deadline_at=now + 600,
    )


async def _drive(options: argparse.Namespace, worker: Connection) -> dict[str, float]:
    gateway_id = f"bench{time.time_ns()}"
    client = EngineClient(options.redis_url, gateway_id, max_waiting=1_000_000)
    await client.start()
    async with asyncio.timeout(READY_S):
        while True:
            if client.ready() and client.card(None).id == MODEL:
                break
            await asyncio.sleep(0.05)
    worker.send("start")
    streams = [await client.submit(_request(n, gateway_id)) for n in range(options.streams)]
    latencies: list[float] = []
    started, cpu_started = time.monotonic(), time.thread_time()
    counts = await asyncio.gather(*(_listen(stream, latencies) for stream in streams))
    cpu_s, wall_s = time.thread_time() - cpu_started, time.monotonic() - started
    worker.send("stop")
    worker_cpu_s = await asyncio.to_thread(worker.recv)
    await client.close()
    num_deltas = sum(counts)
    expected = options.streams * options.deltas
    if num_deltas != expected:
        raise RuntimeError(f"{num_deltas} deltas arrived, {expected} were made")
    quantiles = statistics.quantiles(latencies, n=100)
    return {
        "deltas": num_deltas,
        "deltas_per_s": round(num_deltas / wall_s),
        "worker_us_per_delta": round(worker_cpu_s / num_deltas * 1e6, 1),
        "client_us_per_delta": round(cpu_s / num_deltas * 1e6, 1),
        "latency_p50_ms": round(quantiles[49] * 1000, 2),
        "latency_p99_ms": round(quantiles[98] * 1000, 2),
    }


def main() -> int:
    """Run once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--deltas", type=int, default=200, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=40.0, help="between a stream's deltas")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(options, theirs))
    process.start()
    try:
        result = asyncio.run(_drive(options, ours))
    finally:
        process.join(10)
        process.kill()
    sys.stdout.write(json.dumps({"streams": options.streams, **result}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
