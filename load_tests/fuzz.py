"""Inputs of every kind that nobody should send, over HTTP and WebSocket, and what they break.

python -m load_tests.fuzz --inputs 100000 --seed 1

A gateway, a worker around a fake engine and Redis run as processes of their own. Lanes
send one input after the other: sound ones, spoiled ones, bytes. Nothing may bring a 5xx,
an internal error, a line of fault into a log, or silence; each response has one end; and
once everybody has gone nothing is left: no socket, task, response, place in a limit, key
without a lifetime, or memory that grows with the inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from load_tests.chaos_processes import MODEL, Gateway, Worker
from load_tests.fuzzing import leftovers
from load_tests.fuzzing.bodies import Known
from load_tests.fuzzing.findings import Findings
from load_tests.fuzzing.http_inputs import Caller
from load_tests.fuzzing.http_lane import HttpLane
from load_tests.fuzzing.socket_lane import SocketLane
from load_tests.processes import ServerFailedError, rss_bytes
from tests.redis_server import RedisServer

logger = logging.getLogger(__name__)

HTTP_LANES = 24
SOCKET_LANES = 24
# Tokens a second of an answer: long enough to be cancelled in its midst.
RATE = 1000
# Inputs of the warm-up, as a part of all; memory counts from its end.
WARM_UP = 0.2
MAX_GROWTH_BYTES = 48 << 20
# Answers, by inputs, that may find Redis too slow.
MAX_UNAVAILABLE = 0.002
_KEYS = "\n".join(
    f"fuzz-key-{tenant}-{tier}:{tenant}:{tier}"
    for tenant, tier in (
        ("acme", "vip"),
        ("acme", "standard"),
        ("umbra", "standard"),
        ("umbra", "batch"),
    )
)
_OPS_TOKEN = "fuzz-operator-0123456789"
_LIMITS = """[default]
requests_per_min = 10000000
tokens_per_min = 1000000000
concurrent_responses = 100000
connections = 100000
"""


@dataclass
class Result:
    """One run.

    Attributes:
        seed: What everything follows from, but for the machine's speed.
        findings: What was sent, what came, what was wrong.
        left: What was left at the end that should not have been.
        memory: The gateway's resident MiB after the warm-up, and at the end.
        num_logs: Responses whose log was read.
        seconds: Time of sending.
    """

    seed: int
    findings: Findings
    left: list[str] = field(default_factory=list)
    memory: tuple[float, float] = (0.0, 0.0)
    num_logs: int = 0
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings.wrong and not self.left

    def summary(self) -> dict[str, object]:
        """For people and for JSON."""
        sent = sum(self.findings.sent.values())
        return {
            "seed": self.seed,
            "inputs": sent,
            "seconds": round(self.seconds, 1),
            "inputs_per_s": round(sent / max(self.seconds, 1e-9), 1),
            "gateway_mib": self.memory,
            "logs_read": self.num_logs,
            "redis_unavailable": self.findings.num_unavailable,
            "sent": dict(self.findings.sent.most_common()),
            "answers": dict(self.findings.answers.most_common()),
            "wrong": self.findings.wrong,
            "left": self.left[:40],
        }


async def run(folder: Path, inputs: int, seed: int) -> Result:
    """Send so many inputs to processes whose files are in `folder`."""
    findings = Findings(inputs)
    result = Result(seed, findings)
    server = RedisServer(folder)
    gateway, worker = _processes(folder, server.url)
    try:
        await asyncio.to_thread(server.start)
        await asyncio.gather(gateway.start(), worker.start())
        async with asyncio.timeout(60):
            await asyncio.gather(gateway.up.wait(), worker.up.wait())
        headers = {"authorization": f"Bearer {_OPS_TOKEN}"}
        url = f"http://127.0.0.1:{gateway.port}"
        async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
            await _fuzz(result, http, server, gateway)
        result.left += [f"{p.kind} log: {each}" for p in (gateway, worker) for each in _faults(p)]
    finally:
        await asyncio.gather(gateway.stop(), worker.stop())
        await asyncio.to_thread(server.stop)
    return result


def _processes(folder: Path, redis_url: str) -> tuple[Gateway, Worker]:
    files = {"keys": _KEYS, "limits.toml": _LIMITS, "ops": _OPS_TOKEN}
    for name, text in files.items():
        (folder / name).write_text(text)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("REPARTEE_")}
    environ |= {"REPARTEE_REDIS_URL": redis_url, "REPARTEE_LOG_LEVEL": "info"}
    serve = [sys.executable, "-m", "app.cli", "gateway", "--port", "0", "--grace", "0"]
    serve += ["--api-keys-file", str(folder / "keys"), "--limits-file", str(folder / "limits.toml")]
    serve += ["--ops-token-file", str(folder / "ops")]
    work = [sys.executable, "-m", "tests.fakes.worker", "--model", MODEL, "--rate", str(RATE)]
    return (
        Gateway(serve, environ, folder / "gateway.log"),
        Worker(work, environ, folder / "worker.log"),
    )


def _faults(process: Gateway | Worker) -> list[str]:
    return leftovers.bad_lines(process.log)


async def _fuzz(
    result: Result, http: httpx.AsyncClient, server: RedisServer, gateway: Gateway
) -> None:
    await _ready(http)
    num_tasks = (await leftovers.metrics(http))["repartee_asyncio_tasks"]
    callers = _callers()
    findings, total = result.findings, result.findings.left
    started = time.monotonic()
    for part in (WARM_UP, 1 - WARM_UP):
        findings.left = int(total * part)
        await _lanes(gateway.port, callers, random.Random(f"{result.seed} {part}"), findings)
        result.memory = (*result.memory[1:], round(rss_bytes(gateway.pid) / 2**20, 1))
    result.seconds = time.monotonic() - started
    with server.client() as client:
        result.left += await leftovers.settled(http, client, num_tasks)
        wrong, result.num_logs = await asyncio.to_thread(leftovers.bad_keys, client)
        result.left += wrong
    if findings.num_unavailable > MAX_UNAVAILABLE * total:
        result.left.append(f"{findings.num_unavailable} times Redis was not to be had")
    if (result.memory[1] - result.memory[0]) * 2**20 > MAX_GROWTH_BYTES:
        result.left.append(f"memory grew from {result.memory[0]} to {result.memory[1]} MiB")
    if (await http.get("/readyz")).status_code != 200:
        result.left.append("not ready any more")


async def _ready(http: httpx.AsyncClient) -> None:
    for _ in range(1200):
        if (await http.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.05)
    raise ServerFailedError("the gateway does not become ready")


def _callers() -> list[Caller]:
    known = {"acme": Known(), "umbra": Known()}
    callers = [Caller((), Known(), Known())]
    for line in _KEYS.splitlines():
        key, tenant, _ = line.split(":")
        other = known["umbra" if tenant == "acme" else "acme"]
        callers += [Caller((f"authorization: Bearer {key}",), known[tenant], other)] * 4
    operator = (f"authorization: Bearer {_OPS_TOKEN}",)
    return [*callers, Caller(operator, Known(), known["acme"])]


async def _lanes(port: int, callers: list[Caller], rng: random.Random, findings: Findings) -> None:
    lanes: list[HttpLane | SocketLane] = []
    for kind, count in ((HttpLane, HTTP_LANES), (SocketLane, SOCKET_LANES)):
        lanes += [kind(port, callers, random.Random(rng.random()), findings) for _ in range(count)]
    watching = asyncio.create_task(_watch(findings))
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.run())
    finally:
        watching.cancel()


async def _watch(findings: Findings) -> None:
    while True:
        await asyncio.sleep(10)
        wrong = {kind: len(examples) for kind, examples in findings.wrong.items()}
        logger.info("%d inputs left, wrong: %s", findings.left, wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result as JSON; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m load_tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--keep", type=Path, help="folder for the logs; a new one by default")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="rp-fuzz-") as name:
        result = asyncio.run(run(options.keep or Path(name), options.inputs, options.seed))
    sys.stdout.write(json.dumps(result.summary(), indent=2) + "\n")
    return 0 if result.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
