"""Chats through the socket: Repartee over SSE and WebSocket, llama-server beside it.

Both servers run for the whole benchmark and take turns, round by round, so that the
machine's moods meet them alike; whoever isn't being measured is idle. Every prompt is
distinct. llama-server's prompt cache is off; Repartee shares the system prompt's first
block between requests, as it always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.chat_client import Answer, ask, chat_body, open_socket, stream_chat
from load_tests.measure import median, percentile, spread, table
from load_tests.processes import (
    Server,
    child_of,
    cpu_s,
    llama_server,
    peak_rss_bytes,
    repartee,
    rss_bytes,
)
from load_tests.prompts import chat_prompt, long_prompt, short_prompt

NEW_TOKENS = 96
CHATS = (1, 4, 8)
PREFILL_TOKENS = (512, 2048)

Ask = Callable[[str, int], Awaitable[Answer]]


@dataclass(slots=True)
class Level:
    """What was seen with one number of chats at once, over all rounds."""

    tokens_per_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class System:
    """One thing under test.

    Attributes:
        name: In the tables.
        connect: Opens what one chat needs and returns how to ask.
        engine_pid: Whose memory is shown.
        gateway_pid: Whose processor time a delta is charged to; None if it is the
            engine's own process.
    """

    name: str
    connect: Callable[[contextlib.AsyncExitStack], Awaitable[Ask]]
    engine_pid: int
    gateway_pid: int | None = None
    levels: dict[int, Level] = field(default_factory=dict)
    prefill_tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    short_ttft_s: list[float] = field(default_factory=list)
    gateway_us_per_delta: list[float] = field(default_factory=list)
    rss_bytes: int = 0
    peak_rss_bytes: int = 0


def _over_sse(server: Server, **extra: Any) -> Callable[..., Awaitable[Ask]]:
    async def connect(_: contextlib.AsyncExitStack) -> Ask:
        return lambda prompt, max_tokens: stream_chat(
            server.host, server.port, chat_body(prompt, max_tokens, **extra)
        )

    return connect


def _over_websocket(server: Server, model: str) -> Callable[..., Awaitable[Ask]]:
    async def connect(stack: contextlib.AsyncExitStack) -> Ask:
        socket = await open_socket(server.host, server.port, model)
        stack.push_async_callback(socket.close)
        return lambda prompt, max_tokens: ask(socket, prompt, max_tokens)

    return connect


async def _wave(system: System, num_chats: int, max_tokens: int) -> tuple[float, list[Answer]]:
    """`num_chats` answers at once; returns the seconds that all took, and the answers."""
    async with contextlib.AsyncExitStack() as stack:
        asks = [await system.connect(stack) for _ in range(num_chats)]
        started = time.monotonic()
        answers = await asyncio.gather(*(one(chat_prompt(), max_tokens) for one in asks))
        return time.monotonic() - started, list(answers)


async def _measure_chats(system: System, num_chats: int) -> None:
    level = system.levels.setdefault(num_chats, Level())
    before_s = cpu_s(system.gateway_pid) if system.gateway_pid else 0.0
    elapsed_s, answers = await _wave(system, num_chats, NEW_TOKENS)
    short = [a.completion_tokens for a in answers if a.completion_tokens != NEW_TOKENS]
    if short:
        raise RuntimeError(f"{system.name}: answers of {short} tokens instead of {NEW_TOKENS}")
    level.tokens_per_s.append(num_chats * NEW_TOKENS / elapsed_s)
    level.ttft_s += [answer.ttft_s for answer in answers]
    level.gaps_s += [gap for answer in answers for gap in answer.gaps_s]
    level.prompt_tokens += [answer.prompt_tokens for answer in answers]
    if system.gateway_pid and num_chats == max(CHATS):
        num_deltas = sum(len(answer.chunk_times) for answer in answers)
        spent_s = cpu_s(system.gateway_pid) - before_s
        system.gateway_us_per_delta.append(spent_s / num_deltas * 1e6)


async def _measure_prompts(system: System) -> None:
    async with contextlib.AsyncExitStack() as stack:
        one = await system.connect(stack)
        system.short_ttft_s.append((await one(short_prompt(), 1)).ttft_s)
    for num_tokens in PREFILL_TOKENS:
        async with contextlib.AsyncExitStack() as stack:
            one = await system.connect(stack)
            answer = await one(long_prompt(num_tokens), 1)
        rates = system.prefill_tokens_per_s.setdefault(num_tokens, [])
        rates.append(answer.prompt_tokens / answer.ttft_s)


async def measure(systems: list[System], rounds: int, say: Callable[[str], None]) -> None:
    """All systems in turn, `rounds` times, after one round that is thrown away."""
    for system in systems:
        await _wave(system, max(CHATS), 8)
    for number in range(rounds):
        for system in systems:
            say(f"round {number + 1} of {rounds}: {system.name}")
            for num_chats in CHATS:
                await _measure_chats(system, num_chats)
            await _measure_prompts(system)
    for system in systems:
        system.rss_bytes = rss_bytes(system.engine_pid)
        system.peak_rss_bytes = peak_rss_bytes(system.engine_pid)


def run(
    model: Path, peer: Path | None, threads: int, rounds: int, say: Callable[[str], None]
) -> list[System]:
    """Start the servers, measure, stop them.

    Args:
        model: The GGUF file that both serve.
        peer: The llama-server binary; None leaves it out.
        threads: CPU threads for each engine.
        rounds: How often everything is measured.
        say: Told what is going on.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="repartee-bench-")))
        say("starting repartee serve")
        options = ("--model", str(model), "--threads", str(threads))
        ours = stack.enter_context(repartee(folder / "data", folder / "repartee.log", *options))
        worker = child_of(ours.pid, "engine.worker")
        gateway = child_of(ours.pid, "app.cli")
        systems = [
            System("Repartee, SSE", _over_sse(ours, model=ours.model), worker, gateway),
            System("Repartee, WebSocket", _over_websocket(ours, ours.model), worker, gateway),
        ]
        say(f"ready after {ours.start_s:.1f} s")
        if peer is not None:
            say("starting llama-server")
            log = folder / "llama.log"
            theirs = stack.enter_context(llama_server(peer, model, log, threads, max(CHATS)))
            systems.append(
                System("llama-server", _over_sse(theirs, cache_prompt=False), theirs.pid)
            )
        asyncio.run(measure(systems, rounds, say))
        return systems


def tables(systems: list[System]) -> str:
    """The results for people: median (least-most) over the rounds."""
    chats = [
        [
            system.name,
            str(num_chats),
            spread(level.tokens_per_s),
            f"{median(level.ttft_s):.3f}",
            f"{max(level.ttft_s):.3f}",
            f"{percentile(level.gaps_s, 0.5) * 1e3:.0f}",
            f"{percentile(level.gaps_s, 0.99) * 1e3:.0f}",
        ]
        for system in systems
        for num_chats, level in system.levels.items()
    ]
    prompts = [
        [
            system.name,
            f"{median(system.short_ttft_s):.3f}",
            *(spread(rates, 0) for rates in system.prefill_tokens_per_s.values()),
            f"{system.rss_bytes / 1e6:.0f} ({system.peak_rss_bytes / 1e6:.0f})",
            spread(system.gateway_us_per_delta, 0),
        ]
        for system in systems
    ]
    prompt_tokens = [n for s in systems for level in s.levels.values() for n in level.prompt_tokens]
    return (
        f"\n## Chats: prompts of {min(prompt_tokens)} to {max(prompt_tokens)} tokens, "
        f"{NEW_TOKENS} new ones\n\n"
        + table(
            [
                *("system", "chats", "tok/s", "TTFT median, s", "TTFT worst, s"),
                *("chunk gap p50, ms", "p99, ms"),
            ],
            chats,
        )
        + "\n## Prompts, memory, gateway\n\n"
        + table(
            [
                *("system", "TTFT of 31 tokens, s"),
                *(f"prefill {n}, tok/s" for n in PREFILL_TOKENS),
                *("engine RSS (peak), MB", "gateway CPU a delta, µs"),
            ],
            prompts,
        )
    )


def as_json(systems: list[System]) -> dict[str, Any]:
    """The results for programs."""
    return {
        system.name: {
            "chats": {
                str(num_chats): {
                    "tokens_per_s": level.tokens_per_s,
                    "ttft_median_s": median(level.ttft_s),
                    "ttft_worst_s": max(level.ttft_s),
                    "gap_p50_s": percentile(level.gaps_s, 0.5),
                    "gap_p99_s": percentile(level.gaps_s, 0.99),
                }
                for num_chats, level in system.levels.items()
            },
            "prefill_tokens_per_s": system.prefill_tokens_per_s,
            "ttft_31_tokens_s": system.short_ttft_s,
            "rss_bytes": system.rss_bytes,
            "peak_rss_bytes": system.peak_rss_bytes,
            "gateway_us_per_delta": system.gateway_us_per_delta,
        }
        for system in systems
    }
