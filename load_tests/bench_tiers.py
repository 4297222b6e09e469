"""VIPs beside four times as much standard work as the machine can do, through the socket.

python -m load_tests.bench_tiers --model SmolLM2-135M-Instruct.Q4_1.gguf

Requests arrive at random, open loop (nobody waits for an answer before the next asks), each on
a socket of its own. First what the machine can do is measured with as many chats as it takes,
then VIPs alone at a tenth of it, then the same VIPs with standard requests at `--overload` times
it. A request that is refused says how long it would wait; it is counted and not sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import connect

from load_tests.measure import percentile, table
from load_tests.processes import Server, repartee
from load_tests.prompts import chat_prompt

KEYS = {"vip": "bench-vip-0123456789", "standard": "bench-standard-0123456789"}
ANSWER_TOKENS = 96
PROBE_CHATS = 16
PROBE_S = 15.0
VIP_SHARE = 0.1
# Long past every limit of waiting: whoever is still at it was starved.
LAST_S = 60.0


@dataclass(slots=True)
class Outcome:
    """What became of one tier's requests.

    Attributes:
        ttft_s: Of those that were answered.
        total_s: From the request to its end, of those.
        wait_estimates_s: What the refused were told.
        failures: Errors of any other kind.
    """

    ttft_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    wait_estimates_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def request(server: Server, tier: str, outcome: Outcome) -> None:
    """One request on a socket of its own."""
    try:
        await _request(server, tier, outcome)
    except Exception as error:
        outcome.failures.append(f"{type(error).__name__}: {error}"[:200])


async def _request(server: Server, tier: str, outcome: Outcome) -> None:
    content = [{"type": "input_text", "text": chat_prompt()}]
    response = {
        "conversation": "none",
        "input": [{"type": "message", "role": "user", "content": content}],
        "max_output_tokens": ANSWER_TOKENS,
        "repartee": {"temperature": 0, "ignore_eos": True},
    }
    url = f"ws://{server.host}:{server.port}/v1/realtime"
    headers = {"authorization": f"Bearer {KEYS[tier]}"}
    async with connect(url, additional_headers=headers, compression=None) as socket:
        await socket.recv()
        sent_at, first_at = time.monotonic(), 0.0
        await socket.send(json.dumps({"type": "response.create", "response": response}))
        async for frame in socket:
            event = json.loads(frame)
            kind = event["type"]
            if kind == "response.output_text.delta":
                first_at = first_at or time.monotonic()
            elif kind == "error" or (kind == "response.done" and not first_at):
                _refused(event, outcome)
                return
            elif kind == "response.done":
                outcome.ttft_s.append(first_at - sent_at)
                outcome.total_s.append(time.monotonic() - sent_at)
                return


def _refused(event: dict[str, object], outcome: Outcome) -> None:
    error = event.get("error")
    if error is None:
        error = event["response"]["status_details"]["error"]  # type: ignore[index]
    assert isinstance(error, dict)
    retry_ms = error.get("repartee.retry_after_ms")
    if error.get("code") == "overloaded" and retry_ms is not None:
        outcome.wait_estimates_s.append(retry_ms / 1000)
    else:
        outcome.failures.append(str(error)[:200])


async def capacity(server: Server) -> float:
    """Answers a second with many chats at once."""
    outcome = Outcome()
    deadline = time.monotonic() + PROBE_S

    async def chat() -> None:
        while time.monotonic() < deadline:
            await request(server, "standard", outcome)

    started = time.monotonic()
    await asyncio.gather(*(chat() for _ in range(PROBE_CHATS)))
    return len(outcome.ttft_s) / (time.monotonic() - started)


async def arrivals(
    server: Server, tier: str, per_s: float, seconds: float, rng: random.Random
) -> Outcome:
    """Requests of one tier for a while, at random times, awaited to their ends."""
    outcome = Outcome()
    tasks: list[asyncio.Task[None]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(rng.expovariate(per_s))
        tasks.append(asyncio.create_task(request(server, tier, outcome)))
    _, starved = await asyncio.wait(tasks, timeout=LAST_S)
    for task in starved:
        outcome.failures.append("starved: no end")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return outcome


async def measure(server: Server, seconds: float, overload: float, seed: int) -> str:
    """All phases; the report."""
    rng = random.Random(seed)
    per_s = await capacity(server)
    vip_per_s = max(per_s * VIP_SHARE, 0.2)
    alone = await arrivals(server, "vip", vip_per_s, seconds, rng)
    vip, standard = await asyncio.gather(
        arrivals(server, "vip", vip_per_s, seconds, rng),
        arrivals(server, "standard", per_s * overload, seconds, rng),
    )
    rows = [
        [
            name,
            str(len(found.ttft_s)),
            str(len(found.wait_estimates_s)),
            str(len(found.failures)),
            *(f"{percentile(found.ttft_s, share):.2f}" for share in (0.5, 0.99, 1.0)),
            f"{percentile(found.total_s, 0.99):.2f}",
            f"{percentile(found.wait_estimates_s, 0.5):.1f}",
        ]
        for name, found in (
            ("vip alone", alone),
            (f"vip beside {overload:g}x standard", vip),
            (f"standard at {overload:g}x", standard),
        )
    ]
    headings = (
        *("requests", "answered", "refused", "failed", "TTFT p50 s", "p99 s", "worst s"),
        *("whole p99 s", "wait told p50 s"),
    )
    failures = sorted({*alone.failures, *vip.failures, *standard.failures})
    return (
        f"capacity {per_s:.2f} answers/s of {ANSWER_TOKENS} tokens, {seconds:g} s each phase\n"
        + table(headings, rows)
        + "".join(f"{failure}\n" for failure in failures[:10])
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--overload", type=float, default=4.0, help="times the capacity")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = folder / "keys"
        keys.write_text("".join(f"{key}:{tier}:{tier}\n" for tier, key in KEYS.items()))
        command = ("--model", options.model, "--api-keys-file", str(keys))
        with repartee(folder / "data", folder / "log", *command) as server:
            report = asyncio.run(measure(server, options.seconds, options.overload, options.seed))
    sys.stdout.write(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
