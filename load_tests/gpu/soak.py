"""Mixed load on the card with cancels: memory flat, no block left over.

    python -m load_tests.gpu.soak SHAPE KIND [--seconds 120] [--chats 64]

Prompts, answers and sampling of all kinds, a fifth of the answers cancelled on the way. The
card's free memory is read every two seconds; once the graphs are there it must not move.
Exits 1 where it does, or where a block is in use at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.contract import Failed, Finished, GenerateRequest, Message, SamplingParams, Tier
from engine.contract.registry import ModelCard
from engine.cuda_memory import step_work_bytes
from engine.cuda_runner import CudaRunner
from engine.engine import Engine
from engine.model.llama import CausalLM
from engine.worker.build_cuda import gpu_config
from load_tests.gpu.engine_decode import Ids
from load_tests.gpu.shapes import KINDS, SHAPES, RandomCheckpoint
from load_tests.gpu.timing import machine

MIB = 1 << 20
# Memory may still grow by graphs until this share of the time has passed.
WARM_SHARE = 0.6
MOST_DRIFT_MIB = 64


class Soak:
    """Keeps a number of chats going.

    Args:
        engine: Under load.
        vocab_size: Of its model.
        chats: How many at once.
        seed: Of what they ask.
    """

    def __init__(self, engine: Engine, vocab_size: int, chats: int, seed: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._chats = chats
        self._random = random.Random(seed)
        self._live: set[str] = set()
        self.counts = {"asked": 0, "finished": 0, "cancelled": 0, "failed": 0, "tokens": 0}

    def turn(self) -> None:
        """Ask where a chat is free, cancel now and then, run a step."""
        while len(self._live) < self._chats:
            self._ask()
        if self._random.random() < 0.05 and self._live:
            victim = self._random.choice(sorted(self._live))
            self._take(self._engine.cancel(victim))
            self.counts["cancelled"] += 1
        self._take(self._engine.step())

    def drain(self) -> None:
        """Run what lives to its end."""
        while self._engine.has_work():
            self._take(self._engine.step())

    def _ask(self) -> None:
        self.counts["asked"] += 1
        name = f"r{self.counts['asked']}"
        pick = self._random
        penalty = pick.choice([0.0, 0.0, 0.0, 0.5])
        sampling = SamplingParams(
            temperature=pick.choice([0.0, 0.7, 1.0]), top_p=pick.choice([1.0, 0.9]),
            top_k=pick.choice([0, 40]), frequency_penalty=penalty, seed=pick.randrange(1 << 31),
            max_tokens=pick.randint(1, 300), ignore_eos=True,
        )  # fmt: skip
        request = GenerateRequest(
            request_id=name, model="m",
            messages=(Message("user", f"{pick.randrange(1 << 30)}:{pick.randint(4, 1500)}"),),
            sampling=sampling, tier=pick.choice(list(Tier)), tenant=f"t{pick.randrange(4)}",
            conversation_id=None, reply_to="", created_at=0.0, deadline_at=1e12,
        )  # fmt: skip
        self._engine.add(self._engine.prepare(request))
        self._live.add(name)

    def _take(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Finished | Failed):
                self._live.discard(event.request_id)
                kind = "finished" if isinstance(event, Finished) else "failed"
                self.counts[kind] += 1
                self.counts["tokens"] += event.usage.completion_tokens


def encoder(vocab_size: int) -> Any:
    """Random tokens of a length, by the seed and length in the message."""

    def encode(messages: tuple[Message, ...]) -> list[int]:
        seed, length = map(int, messages[0].content.split(":"))
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, vocab_size, (length,), generator=generator).tolist()

    return encode


def memory() -> dict[str, int]:
    free, _ = torch.cuda.mem_get_info()
    return {
        "free_mib": free // MIB,
        "allocated_mib": torch.cuda.memory_allocated() // MIB,
        "reserved_mib": torch.cuda.memory_reserved() // MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--chats", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    model = CausalLM(RandomCheckpoint(shape, options.kind), "cuda")
    config = gpu_config(options.chats * 120, options.chats)
    config = replace(config, **{f"{tier.value}_max_wait_ms": 1e9 for tier in Tier})
    runner = CudaRunner(model, config, "cuda", max_decode_steps=8)
    # As a worker does: what compiles within a step teaches the scheduler that it is slow.
    step_work_bytes(model, config, torch.bfloat16)
    runner.warm_up()
    card = ModelCard("m", 0, shape.context_window, shape.vocab_size, 1, options.kind)
    engine = Engine(
        config, card=card, runner=runner, vocabulary=Ids(), encode_chat=encoder(shape.vocab_size)
    )
    soak = Soak(engine, shape.vocab_size, options.chats, 1)
    started = time.perf_counter()
    samples: list[dict[str, Any]] = []
    while time.perf_counter() - started < options.seconds:
        now = time.perf_counter() - started
        if not samples or now - samples[-1]["s"] > 2:
            blocks = engine.scheduler.blocks
            samples.append({"s": round(now, 1), **memory(), "used_blocks": blocks.num_used})
            print(samples[-1], soak.counts, flush=True)
        soak.turn()
    soak.drain()
    late = [row["free_mib"] for row in samples if row["s"] > WARM_SHARE * options.seconds]
    drift = max(late) - min(late)
    left = engine.scheduler.blocks.num_used
    steps = engine.stats().counters
    faults = steps["repartee_engine_step_faults_total"]
    rate = soak.counts["tokens"] / options.seconds
    print(
        f"drift {drift} MiB over the last {len(late)} samples, {left} blocks left, "
        f"{soak.counts}, {faults:.0f} faults, {rate:.0f} tok/s"
    )
    if options.out:
        result = {
            "machine": machine(), "counts": soak.counts, "drift_mib": drift, "blocks_left": left,
            "faults": faults, "samples": samples,
        }  # fmt: skip
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(left or faults or soak.counts["failed"] or drift > MOST_DRIFT_MIB))


if __name__ == "__main__":
    main()
