"""Time to the first token with and without what the engine already has of a prompt.

    python -m load_tests.bench_prefix [--model PATH] [--rounds 3]

In one process, one request at a time, on the default model: a system prompt that others
have used, the second turn of a long chat, a message whose draft was computed while it was
typed, and a chat that comes back from the host tier. Each against the same prompt on an
engine that has never seen it. Times are medians, milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from app.models import resolve_model
from engine.config import EngineConfig
from engine.contract import Delta, GenerateRequest, Message, SamplingParams, Tier, Warm
from engine.engine import Engine
from engine.loading import LoadedModel, load_model
from engine.runner import CpuRunner
from engine.worker.build import make_host_tier, set_threads

WORDS = "the harbour master counts nine grey boats and writes their names in a long blue book "
Turns = tuple[Message, ...]


class Bench:
    """Engines over one model, each with an empty pool."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._num_asked = 0

    def engine(self, *, num_blocks: int = 512, host_bytes: int = 0) -> Engine:
        config = EngineConfig(num_blocks=num_blocks)
        loaded = self._loaded
        engine = Engine(
            config,
            card=loaded.card,
            runner=CpuRunner(loaded.model, config, torch.bfloat16),
            vocabulary=loaded.tokenizer,
            encode_chat=loaded.chat_template.encode,
            host_tier=make_host_tier(loaded.config, torch.bfloat16, host_bytes),
        )
        # The first steps of a process and what the engine learns of their cost.
        self.ask(engine, (Message("user", "warm up"),))
        return engine

    def ask(self, engine: Engine, messages: Turns, max_tokens: int = 2) -> tuple[float, str]:
        """Milliseconds from the request to its first text, and the whole text."""
        self._num_asked += 1
        now = time.time()
        request = GenerateRequest(
            request_id=f"r{self._num_asked}",
            model=engine.card.id,
            messages=messages,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            tier=Tier.STANDARD,
            tenant="bench",
            conversation_id=None,
            reply_to="",
            created_at=now,
            deadline_at=now + 600,
        )
        started = time.perf_counter()
        first_ms, text = 0.0, ""
        events = engine.add(engine.prepare(request))
        while engine.has_work():
            events = engine.step()
            for event in events:
                if isinstance(event, Delta):
                    first_ms = first_ms or (time.perf_counter() - started) * 1000
                    text += event.text
        return first_ms, text

    def shared_system_prompt(self) -> tuple[float, float]:
        """1,000 tokens that another chat began with."""
        engine = self.engine()
        system = Message("system", WORDS * 59)
        cold, _ = self.ask(engine, (system, Message("user", "Who counts the boats?")))
        warm, _ = self.ask(engine, (system, Message("user", "What colour is the book?")))
        return cold, warm

    def second_turn(self) -> tuple[float, float]:
        """A chat of 2,000 tokens goes on."""
        first = (Message("user", WORDS * 118),)
        engine = self.engine()
        _, answer = self.ask(engine, first, max_tokens=32)
        turns = (*first, Message("assistant", answer), Message("user", "And then?"))
        warm, _ = self.ask(engine, turns)
        cold, _ = self.ask(self.engine(), turns)
        return cold, warm

    def draft(self) -> tuple[float, float]:
        """A message of 300 tokens, its draft sent every 40 characters."""
        text = WORDS * 17 + "What does he write?"
        engine = self.engine()
        for end in range(40, len(text), 40):
            warm_up = Warm("c", engine.card.id, (), text[:end], "bench", time.time())
            engine.warm_up(engine.prepare_warm_up(warm_up))
            while engine.has_work():
                engine.step()
        warm, _ = self.ask(engine, (Message("user", text),))
        cold, _ = self.ask(self.engine(), (Message("user", text),))
        return cold, warm

    def from_host(self) -> tuple[float, float]:
        """A chat of 1,000 tokens whose blocks all had to leave the pool.

        Raises:
            ValueError: it came back with another answer.
        """
        turns = (Message("user", WORDS * 59),)
        engine = self.engine(num_blocks=96, host_bytes=256 << 20)
        cold, expected = self.ask(engine, turns, max_tokens=16)
        for letter in "abc":
            self.ask(engine, (Message("user", letter + WORDS * 75),))
        warm, text = self.ask(engine, turns, max_tokens=16)
        if text != expected:
            raise ValueError("the chat came back with another answer")
        return cold, warm


def medians(run: Callable[[], tuple[float, float]], rounds: int) -> dict[str, float]:
    """Cold and warm medians, and how many times faster warm is."""
    pairs = [run() for _ in range(rounds)]
    cold, warm = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {"cold_ms": round(cold, 1), "warm_ms": round(warm, 1), "times": round(cold / warm, 1)}


def main() -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    set_threads(0)
    bench = Bench(load_model(options.model or resolve_model("", Path(".data")).path))
    runs = (bench.shared_system_prompt, bench.second_turn, bench.draft, bench.from_host)
    result: dict[str, object] = {run.__name__: medians(run, options.rounds) for run in runs}
    result["load_average"] = round(os.getloadavg()[0], 2)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
