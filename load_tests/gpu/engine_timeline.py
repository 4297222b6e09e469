"""Where the time of a whole batch goes on the card: the GPU's idle time, by kind of plan.

    python -m load_tests.gpu.engine_timeline SHAPE KIND [--batches 32,128] [--mixed-ms 50]

The batch of `engine_decode` once more, each plan from its step's start to the next one's:
how long the GPU worked in it, how long it stood, and what the host did meanwhile. With the
profiler on, which takes a few per cent; the wall's time without it stands beside.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from engine.step import StepOutput, StepPlan
from load_tests.gpu.engine_decode import NEW_TOKENS, Bench
from load_tests.gpu.shapes import KINDS, SHAPES

# Shorter gaps are between the kernels of a graph.
GAP_NS = 15_000


@dataclass(slots=True)
class Plan:
    """One step of the engine, times in nanoseconds since 1970."""

    started: int
    kind: str = ""
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_sampled: int = 0
    ran: int = 0
    returned: int = 0
    setup_s: float = 0.0


@dataclass(slots=True)
class Sums:
    """Of one kind of plan."""

    plans: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    sampled: int = 0
    wall: float = 0.0
    busy: float = 0.0
    schedule: float = 0.0
    run: float = 0.0
    text: float = 0.0
    setup: float = 0.0
    gaps: list[float] = field(default_factory=list)


class Watch:
    """Notes each step of a bench's engine."""

    def __init__(self, bench: Bench, batch: int) -> None:
        self.plans: list[Plan] = []
        self._batch = batch
        engine: Any = bench.engine
        self._step = engine.step
        self._run = engine._runner.run
        engine.step = self.step
        engine._runner.run = self.run

    def step(self) -> Any:
        self.plans.append(Plan(time.time_ns()))
        return self._step()

    def run(self, plan: StepPlan) -> StepOutput:
        row = self.plans[-1]
        row.ran = time.time_ns()
        output: StepOutput = self._run(plan)
        row.returned = time.time_ns()
        decodes = [item for item in plan.work if item.samples and item.num_tokens == 1]
        row.num_prompt_tokens = plan.num_tokens - len(decodes)
        row.num_steps = max(item.num_decode_steps for item in plan.work)
        row.num_sampled = sum(map(len, output.tokens.values()))
        row.setup_s = output.setup_s
        if not decodes:
            row.kind = "prompts"
        elif len(decodes) < len(plan.work):
            row.kind = "mixed"
        else:
            row.kind = "decodes, all" if len(decodes) == self._batch else "decodes, fewer"
        return output


def busy_spans(events: list[tuple[int, int]]) -> np.ndarray:
    """[spans, 2] start and end of the times in which any kernel runs; short gaps closed."""
    spans: list[list[int]] = []
    for start, end in sorted(events):
        if spans and start - spans[-1][1] < GAP_NS:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end])
    return np.array(spans, np.int64)


def sums(plans: list[Plan], spans: np.ndarray, end: int) -> dict[str, Sums]:
    """The plans' times by their kind, milliseconds."""
    by_kind: dict[str, Sums] = defaultdict(Sums)
    ends = [plan.started for plan in plans[1:]] + [end]
    for plan, until in zip(plans, ends, strict=True):
        clipped = np.clip(spans, plan.started, until)
        lengths = clipped[:, 1] - clipped[:, 0]
        row = by_kind[plan.kind]
        row.plans += 1
        row.steps += plan.num_steps
        row.prompt_tokens += plan.num_prompt_tokens
        row.sampled += plan.num_sampled
        row.wall += (until - plan.started) / 1e6
        row.busy += lengths.sum() / 1e6
        row.schedule += (plan.ran - plan.started) / 1e6
        row.run += (plan.returned - plan.ran) / 1e6
        row.text += (until - plan.returned) / 1e6
        row.setup += plan.setup_s * 1e3
        within = clipped[lengths > 0]
        row.gaps += ((within[1:, 0] - within[:-1, 1]) / 1e3).tolist()
    return by_kind


def show(by_kind: dict[str, Sums]) -> None:
    head = "plans steps prompt sampled   wall   busy   idle  sched    run   text  setup"
    print(f"{'ms in all':16} {head}  gaps within, us", flush=True)
    for kind, row in by_kind.items():
        gaps = [*sorted(row.gaps)[-1:], float(np.median(row.gaps or [0])), float(len(row.gaps))]
        print(
            f"{kind:16} {row.plans:5} {row.steps:5} {row.prompt_tokens:6} {row.sampled:7} "
            f"{row.wall:6.1f} {row.busy:6.1f} {row.wall - row.busy:6.1f} {row.schedule:6.1f} "
            f"{row.run:6.1f} {row.text:6.1f} {row.setup:6.1f}  "
            + ", ".join(f"{gap:.0f}" for gap in gaps),
            flush=True,
        )


def watch(bench: Bench, batch: int, new_tokens: int) -> None:
    """Print where one batch's time went."""
    walls = [bench.seconds(batch, 512, new_tokens) for _ in range(2)]
    watched = Watch(bench, batch)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        first, wall = bench.seconds(batch, 512, new_tokens)
        end = time.time_ns()
    bench.engine.step, bench.engine._runner.run = watched._step, watched._run  # type: ignore[method-assign]
    events = [
        (event.start_ns(), event.end_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    spans = busy_spans(events)
    print(
        f"batch {batch}, {new_tokens} new: {wall * 1e3:.0f} ms, to the last first token "
        f"{first * 1e3:.0f}; unwatched {', '.join(f'{w[1] * 1e3:.0f}' for w in walls)}; "
        f"first kernel {(spans[0][0] - watched.plans[0].ran) / 1e3:.0f} us after its plan began, "
        f"{len(events)} kernels",
        flush=True,
    )
    show(sums(watched.plans, spans, end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--mixed-ms", type=float, help="see EngineConfig.mixed_step_ms")
    options = parser.parse_args()
    batches = [int(part) for part in options.batches.split(",")]
    bench = Bench(options.shape, options.kind, "bf16", max(batches), 8, options.mixed_ms)
    for batch in batches:
        for new_tokens in (NEW_TOKENS, 1):
            watch(bench, batch, new_tokens)


if __name__ == "__main__":
    main()
