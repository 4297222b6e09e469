"""Where the time of a step goes on the card: kernels, the gaps between them, the host.

    python -m load_tests.gpu.step_profile SHAPE KIND [--batches 1,8,32] [--pieces 128]

The profiler's own times of each kernel in a replayed graph; a gap is from the end of one
to the start of the next, below 0 where programmatic launch lets them overlap. Beside them
the step's time without the profiler.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.cuda_runner import CudaRunner
from engine.model.llama import CausalLM
from engine.sequence import Sequence
from engine.step import StepPlan, Work
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint
from load_tests.gpu.timing import machine

BLOCK = 16
CONTEXT = 640
STEPS = 4

Event = tuple[str, float, float]


def make_sequence(number: int, length: int, blocks_each: int) -> Any:
    """A sequence of `length` known tokens with blocks of its own."""
    generator = torch.Generator().manual_seed(number)
    first = number * blocks_each
    return Sequence(
        id=number,
        request=SimpleNamespace(sampling=SamplingParams(temperature=0.0), request_id=f"r{number}"),
        tokens=torch.randint(0, 1000, (length,), generator=generator).tolist(),
        num_prompt_tokens=length, max_tokens=blocks_each * BLOCK, seed=number,
        end_ids=frozenset(), masked_ids=(), block_names=[], root_name=b"", stream=None,
        arrived_at=0.0, enqueued_at=0.0, block_table=list(range(first, first + blocks_each)),
    )  # fmt: skip


def kernel_times(run: Callable[[], object]) -> list[Event]:
    """(name, start, end) of each kernel that `run` launches, microseconds, in order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = [
        (_short(event.name()), event.start_ns() / 1000, event.end_ns() / 1000)
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    return sorted(events, key=lambda event: event[1])


def _by_place(events: list[Event], num_steps: int, num_layers: int) -> list[Event]:
    """Kernels that a layer launches several times, told apart by their order in it."""
    counts = Counter(name for name, _, _ in events)
    seen: Counter[str] = Counter()
    placed = []
    for name, start, stop in events:
        a_layer = counts[name] // (num_steps * num_layers)
        place = f" {seen[name] % a_layer + 1} of {a_layer}" if a_layer > 1 else ""
        seen[name] += 1
        placed.append((name + place, start, stop))
    return placed


def summary(events: list[Event], num_steps: int, num_layers: int) -> list[dict[str, Any]]:
    """By kernel: how many a step, median time, median gap before it, and the sum a step."""
    times: dict[str, list[float]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    end = events[0][1]
    for name, start, stop in _by_place(events, num_steps, num_layers):
        times[name].append(stop - start)
        gaps[name].append(start - end)
        end = max(end, stop)
    rows = [
        {
            "kernel": name,
            "a_step": round(len(taken) / num_steps, 1),
            "us": round(statistics.median(taken), 2),
            "gap_us": round(statistics.median(gaps[name]), 2),
            "sum_us": round((sum(taken) + sum(gaps[name])) / num_steps, 1),
        }
        for name, taken in times.items()
    ]
    return sorted(rows, key=lambda row: -row["sum_us"])


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(title, flush=True)
    for row in rows[:14]:
        print(
            f"  {row['sum_us']:8.1f} us a step: {row['a_step']:6.1f} x {row['us']:8.2f} us, "
            f"gap {row['gap_us']:6.2f}  {row['kernel']}",
            flush=True,
        )


def profile_decode(runner: CudaRunner, batch: int) -> dict[str, Any]:
    """One batch's steps."""
    seqs = [make_sequence(i, CONTEXT, CONTEXT // BLOCK + 8) for i in range(batch)]
    work = [Work(seq, CONTEXT - 1, 1, True, num_decode_steps=STEPS) for seq in seqs]
    chunk = runner.decoder.chunk(batch, CONTEXT + 32, False)

    def steps() -> None:
        chunk.start(work)
        chunk.launch(STEPS).wait()

    steps()
    walls, hosts = [], []
    for _ in range(12):
        started = time.perf_counter()
        chunk.start(work)
        segment = chunk.launch(STEPS)
        hosts.append((time.perf_counter() - started) * 1e6)
        segment.wait()
        walls.append((time.perf_counter() - started) * 1e6)
    rows = summary(kernel_times(steps), STEPS, runner.model_config.num_layers)
    wall, host = statistics.median(walls) / STEPS, statistics.median(hosts)
    show(f"batch {batch}: {wall:.1f} us a step, host {host:.0f} us a chunk of {STEPS}", rows)
    return {"batch": batch, "step_us": round(wall, 1), "chunk_host_us": round(host), "rows": rows}


def profile_piece(runner: CudaRunner, length: int) -> dict[str, Any]:
    """One prompt, as a plan of its own."""
    seq = make_sequence(0, length, length // BLOCK + 1)
    plan = StepPlan((Work(seq, 0, length, True),))
    walls = []
    for _ in range(12):
        started = time.perf_counter()
        runner.run(plan)
        walls.append((time.perf_counter() - started) * 1e6)
    rows = summary(kernel_times(lambda: runner.run(plan)), 1, runner.model_config.num_layers)
    wall = statistics.median(walls)
    show(f"prompt of {length}: {wall:.0f} us", rows)
    return {"prompt": length, "us": round(wall), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=["bf16", "int4", "int8", "fp8"])
    parser.add_argument("--head", default="bf16")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--pieces", default="128")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [int(part) for part in options.batches.split(",") if part]
    pieces = [int(part) for part in options.pieces.split(",") if part]
    model = CausalLM(RandomCheckpoint(SHAPES[options.shape], options.kind, options.head), "cuda")
    blocks = max([*(batch * (CONTEXT // BLOCK + 8) for batch in batches), 513])
    config = EngineConfig(num_blocks=blocks, block_size=BLOCK, max_step_tokens=8192)
    runner = CudaRunner(model, config, "cuda", max_decode_steps=8)
    result = {
        "machine": machine(), "shape": options.shape, "kind": options.kind,
        "decode": [profile_decode(runner, batch) for batch in batches],
        "prefill": [profile_piece(runner, length) for length in pieces],
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _short(name: str) -> str:
    """A kernel's name without template arguments."""
    return re.sub(r"<.*", "", name).removeprefix("void ")[:60]


if __name__ == "__main__":
    main()
