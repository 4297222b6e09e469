"""The engine alone, without Redis and sockets; llama.cpp's own benchmarks beside it.

The one program here that does not talk through the wire: it exists to tell the
engine's share of a figure from the rest. llama-bench and llama-batched-bench, which
lie beside llama-server, take turns with it round by round.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from engine.contract import (
    Accepted,
    Delta,
    Failed,
    GenerateRequest,
    Message,
    SamplingParams,
    Tier,
)
from engine.engine import Engine
from load_tests.measure import spread, table
from load_tests.prompts import chat_prompt, long_prompt

NEW_TOKENS = 96
PROMPT_TOKENS = 45
BATCHES = (1, 4, 8)
PREFILL_TOKENS = (512, 2048)
DEADLINE_S = 600.0

_numbers = count()


@dataclass(slots=True)
class Rates:
    """Tokens a second, one figure a round."""

    decode: dict[int, list[float]] = field(default_factory=dict)
    prefill: dict[int, list[float]] = field(default_factory=dict)


def run(
    model: Path, peer: Path | None, threads: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Rates]:
    """Measure; see `load_tests.bench_chat.run` for the arguments."""
    from engine.worker.build import build_engine

    say("loading the engine")
    engine = build_engine(model, threads=threads)
    results = {"Repartee": Rates()}
    tools = peer.parent if peer else None
    if tools and (tools / "llama-bench").is_file():
        results["llama.cpp"] = Rates()
    decode(engine, max(BATCHES), 8)
    for number in range(rounds):
        say(f"engine alone, round {number + 1} of {rounds}")
        _measure_ours(engine, results["Repartee"])
        if tools and "llama.cpp" in results:
            _measure_peer(tools, model, threads, results["llama.cpp"])
    return results


def _measure_ours(engine: Engine, rates: Rates) -> None:
    for batch in BATCHES:
        rates.decode.setdefault(batch, []).append(decode(engine, batch, NEW_TOKENS))
    for num_tokens in PREFILL_TOKENS:
        rates.prefill.setdefault(num_tokens, []).append(prefill(engine, num_tokens))


def decode(engine: Engine, batch: int, num_tokens: int) -> float:
    """Tokens a second of `batch` answers from the moment that all have begun."""
    begun: set[str] = set()
    for _ in range(batch):
        engine.add(engine.prepare(_request(engine, chat_prompt(), num_tokens)))
    while len(begun) < batch:
        begun |= {event.request_id for event in _step(engine) if isinstance(event, Delta)}
    before = engine.totals.sampled_tokens
    started = time.perf_counter()
    while engine.has_work():
        _step(engine)
    return (engine.totals.sampled_tokens - before) / (time.perf_counter() - started)


def prefill(engine: Engine, num_tokens: int) -> float:
    """Prompt tokens a second, tokenising included, up to the first token."""
    started = time.perf_counter()
    prepared = engine.prepare(_request(engine, long_prompt(num_tokens), 1))
    engine.add(prepared)
    while engine.has_work():
        _step(engine)
    return len(prepared.tokens) / (time.perf_counter() - started)


def _step(engine: Engine) -> list[Any]:
    events = engine.step()
    for event in events:
        if isinstance(event, Failed):
            raise event.error
    return [event for event in events if not isinstance(event, Accepted)]


def _request(engine: Engine, prompt: str, max_tokens: int) -> GenerateRequest:
    now = time.time()
    return GenerateRequest(
        request_id=f"bench-{next(_numbers)}",
        model=engine.card.id,
        messages=(Message("user", prompt),),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        tier=Tier.STANDARD,
        tenant="bench",
        conversation_id=None,
        reply_to="",
        created_at=now,
        deadline_at=now + DEADLINE_S,
    )


def _measure_peer(tools: Path, model: Path, threads: int, rates: Rates) -> None:
    sizes = ",".join(map(str, PREFILL_TOKENS))
    for found in _json_lines(
        *(str(tools / "llama-bench"), "-m", str(model), "-t", str(threads)),
        *("-p", sizes, "-n", "0", "-r", "1", "-o", "jsonl"),
    ):
        rates.prefill.setdefault(found["n_prompt"], []).append(found["avg_ts"])
    batches = ",".join(map(str, BATCHES))
    context = max(BATCHES) * (PROMPT_TOKENS + NEW_TOKENS + 16)
    for found in _json_lines(
        *(str(tools / "llama-batched-bench"), "-m", str(model), "-t", str(threads)),
        *("-c", str(context), "-npp", str(PROMPT_TOKENS), "-ntg", str(NEW_TOKENS)),
        *("-npl", batches, "--output-format", "jsonl"),
    ):
        rates.decode.setdefault(found["pl"], []).append(found["speed_tg"])


def _json_lines(*command: str) -> list[dict[str, Any]]:
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def tables(results: dict[str, Rates]) -> str:
    """The results for people: median (least-most) over the rounds."""
    rows = [
        [
            name,
            *(spread(rates.decode.get(batch, [])) for batch in BATCHES),
            *(spread(rates.prefill.get(size, []), 0) for size in PREFILL_TOKENS),
        ]
        for name, rates in results.items()
    ]
    headings = [
        "engine alone, tok/s",
        *(f"decode, {batch} at once" for batch in BATCHES),
        *(f"prefill {size}" for size in PREFILL_TOKENS),
    ]
    return "\n## Engine alone\n\n" + table(headings, rows)


def as_json(results: dict[str, Rates]) -> dict[str, Any]:
    """The results for programs."""
    return {
        name: {"decode_tokens_per_s": rates.decode, "prefill_tokens_per_s": rates.prefill}
        for name, rates in results.items()
    }
