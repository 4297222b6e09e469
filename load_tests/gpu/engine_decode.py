"""The whole engine on the card: decode tokens a second and time to first token.

    python -m load_tests.gpu.engine_decode SHAPE KIND [--batches 1,8,32,128] [--prompts 128,512]

As the peers were measured: distinct prompts of 512 random ids, no end of turn, 257 against
1 new tokens, the difference timed, greedy; median of 3 (of 2 at batch 128).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.contract import Delta, Finished, GenerateRequest, Message, SamplingParams, Tier
from engine.contract.registry import ModelCard
from engine.cuda_chunk import DecodeChunk
from engine.cuda_decode import ROW_COUNTS
from engine.cuda_memory import step_work_bytes
from engine.cuda_runner import CudaRunner
from engine.engine import Engine
from engine.model.llama import CausalLM
from engine.worker.build_cuda import gpu_config
from load_tests.gpu.shapes import KINDS, SHAPES, RandomCheckpoint
from load_tests.gpu.timing import machine

BLOCK = 16
NEW_TOKENS = 257


class Ids:
    """A vocabulary in which every token is one visible letter."""

    eos_ids = ()

    def token_bytes(self, token_id: int) -> bytes:
        return b"x"


class Bench:
    """One model in one engine.

    Args:
        shape: A key of SHAPES.
        kind: Of the layers' weights.
        head: Of the output layer's.
        max_batch: How many sequences will run at once.
        num_steps: Tokens a plan decodes.
        mixed_ms: Time of a step with prompts beside decodes; None is the worker's.
    """

    def __init__(
        self, shape: str, kind: str, head: str, max_batch: int, num_steps: int,
        mixed_ms: float | None,
    ) -> None:  # fmt: skip
        config = SHAPES[shape]
        self._shape = shape
        self._vocab = config.vocab_size
        started = time.perf_counter()
        model = CausalLM(RandomCheckpoint(config, kind, head), "cuda")
        torch.cuda.synchronize()
        self.load_s = time.perf_counter() - started
        self.weight_gb = model.weight_bytes / 1e9
        num_blocks = max(max_batch * (1024 // BLOCK), 8192 // BLOCK) + 64
        # As a worker sets it, but that nobody is told to come again later.
        engine_config = replace(gpu_config(num_blocks, max_batch), standard_max_wait_ms=1e9)
        if mixed_ms is not None:
            engine_config = replace(engine_config, mixed_step_ms=mixed_ms)
        card = ModelCard(shape, 0, config.context_window, config.vocab_size, 1, kind)
        runner = CudaRunner(model, engine_config, "cuda", max_decode_steps=num_steps)
        # As a worker before it is ready: what is made in the midst is no part of the figures.
        step_work_bytes(model, engine_config, torch.bfloat16)
        runner.warm_up([count for count in ROW_COUNTS if count <= max_batch])
        torch.cuda.synchronize()
        self.ready_s = time.perf_counter() - started
        self.engine = Engine(
            engine_config, card=card, runner=runner, vocabulary=Ids(), encode_chat=self._encode
        )
        self._count = 0
        # How often a batch was put in place, and how often it went on by itself.
        self._resumes: Counter[str] = Counter()
        for name in ("start", "go_on"):
            self._count_calls(name)

    def _count_calls(self, name: str) -> None:
        method = getattr(DecodeChunk, name)

        def counted(*args: Any, **options: Any) -> Any:
            self._resumes[name] += 1
            return method(*args, **options)

        setattr(DecodeChunk, name, counted)

    def _encode(self, messages: tuple[Message, ...]) -> list[int]:
        seed, length = map(int, messages[0].content.split(":"))
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, self._vocab, (length,), generator=generator).tolist()

    def seconds(self, batch: int, prompt: int, new_tokens: int) -> tuple[float, float]:
        """(until the first token of all, until the end) of a batch of distinct prompts."""
        prepared = []
        for _ in range(batch):
            self._count += 1
            prepared.append(
                self.engine.prepare(
                    GenerateRequest(
                        request_id=f"r{self._count}", model=self._shape,
                        messages=(Message("user", f"{self._count}:{prompt}"),),
                        sampling=SamplingParams(
                            temperature=0.0, max_tokens=new_tokens, ignore_eos=True
                        ),
                        tier=Tier.STANDARD, tenant="", conversation_id=None, reply_to="",
                        created_at=0.0, deadline_at=1e12,
                    )
                )
            )  # fmt: skip
        torch.cuda.synchronize()
        started = time.perf_counter()
        for item in prepared:
            self.engine.add(item)
        first: dict[str, float] = {}
        finished = 0
        while self.engine.has_work():
            events = self.engine.step()
            now = time.perf_counter() - started
            for event in events:
                if isinstance(event, Delta):
                    first.setdefault(event.request_id, now)
                elif isinstance(event, Finished):
                    finished += 1
                    assert event.usage.completion_tokens == new_tokens
        assert finished == batch
        return max(first.values()), time.perf_counter() - started

    def decode_rate(self, batch: int, repeats: int) -> dict[str, Any]:
        """Tokens a second in the decode phase, context 512 to 768."""
        # As many rows decode while others are still being read: all that has its graphs.
        self.seconds(batch, 512, NEW_TOKENS)
        rates = []
        for _ in range(repeats):
            _, short = self.seconds(batch, 512, 1)
            _, long = self.seconds(batch, 512, NEW_TOKENS)
            rates.append(batch * (NEW_TOKENS - 1) / (long - short))
        totals = self.engine.totals
        return {
            "batch": batch,
            # Where the host's time went since the start, seconds.
            "times": {
                "schedule": round(totals.times.schedule_s, 2),
                "run": round(totals.times.forward_s, 2),
                "text": round(totals.times.text_s, 2),
                "steps": totals.steps,
            },
            "resumes": dict(self._resumes),
            "rates": [round(rate, 1) for rate in rates],
            "tok_s": round(statistics.median(rates), 1),
            "spread": [round(min(rates), 1), round(max(rates), 1)],
        }

    def first_token(self, prompt: int, repeats: int = 5) -> dict[str, Any]:
        """Milliseconds to the first token, batch 1."""
        self.seconds(1, prompt, 1)
        times, runs = [], []
        for _ in range(repeats):
            times.append(self.seconds(1, prompt, 1)[0] * 1000)
            runs.append(self.engine.totals.last_step.forward_s * 1000)
        return {
            "last_step_ms": round(statistics.median(runs), 2),
            "prompt": prompt,
            "ttft_ms": round(statistics.median(times), 2),
            "spread": [round(min(times), 2), round(max(times), 2)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--head", default="bf16")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--prompts", default="128,512,4096")
    parser.add_argument("--steps", type=int, default=8, help="tokens a plan decodes")
    parser.add_argument("--mixed-ms", type=float, help="see EngineConfig.mixed_step_ms")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [int(part) for part in options.batches.split(",") if part]
    prompts = [int(part) for part in options.prompts.split(",") if part]
    bench = Bench(
        options.shape, options.kind, options.head, max(batches), options.steps, options.mixed_ms
    )  # fmt: skip
    name = f"{options.shape} {options.kind} head {options.head}"
    print(
        f"{name}: packed in {bench.load_s:.1f} s, ready in {bench.ready_s:.1f} s, "
        f"{bench.weight_gb:.2f} GB",
        flush=True,
    )
    result: dict[str, Any] = {
        "machine": machine(), "shape": options.shape, "kind": options.kind,
        "head": options.head, "steps_per_plan": options.steps, "decode": [], "ttft": [],
    }  # fmt: skip
    for prompt in prompts:
        row = bench.first_token(prompt)
        result["ttft"].append(row)
        print(
            f"{name} TTFT {prompt:5d}: {row['ttft_ms']:8.2f} ms {row['spread']}, "
            f"{row['last_step_ms']} of them in the last step",
            flush=True,
        )
    for batch in batches:
        row = bench.decode_rate(batch, options.repeats)
        result["decode"].append(row)
        print(f"{name} batch {batch:4d}: {row['tok_s']:9.1f} tok/s {row['spread']}", flush=True)
        print(row["times"], row["resumes"], flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
