"""Launch settings tried within a whole decode step, one op after the other.

    python -m load_tests.gpu.tune_step OUT.json [--batches 1,8] [--seconds 60]

Kernels that start before their predecessors end share the multiprocessors with them, so
what is best alone need not be best in its place. Starts from this card's table; keeps a
change where the step gets shorter by more than the noise.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import engine.loading  # noqa: F401 - before engine.model, which it imports back
from engine.model.llama import CausalLM
from kernels.cuda import launch
from load_tests.gpu.decode_step import make_caches, step_time
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint
from load_tests.gpu.timing import machine

CONTEXT = 640
# Shorter by less than this share is noise.
LEAST_GAIN = 0.0015
SHAPE = SHAPES["llama3-8b"]
QKV, OUT, GATE, DOWN = (
    "6144x4096,g128", "4096x4096,g128", "28672x4096,g128,gated", "4096x14336,g128",
)  # fmt: skip
Settings = dict[str, Any]
# (op, key, settings)
Trial = tuple[str, str, Settings]


def gemv(warps: int, depth: int, programs: int, registers: int, trigger: int) -> Settings:
    made = {"warps": warps, "depth": depth, "programs": programs, "trigger": trigger}
    return made | ({"registers": registers} if registers else {})


def one_row() -> Iterator[list[Trial]]:
    """Trials at batch 1, a list an op."""
    yield [
        ("rope_attention", "8x4x128,1", {"splits": s, "tile": t, "warps": w, "early": e})
        for s, t, w, e in (
            (5, 128, 8, True), (10, 64, 4, True), (8, 64, 4, True), (12, 64, 4, True),
            (16, 64, 4, True), (20, 32, 4, True), (10, 64, 4, False), (16, 64, 4, False),
        )
    ]  # fmt: skip
    yield [
        ("int4_gemv", QKV, gemv(4, *rest))
        for rest in (
            (2, 384, 168, 1), (2, 264, 128, 0), (3, 264, 128, 0), (3, 264, 168, 0),
            (2, 264, 168, 0), (3, 384, 128, 0), (2, 192, 168, 0), (3, 192, 168, 0),
        )
    ]  # fmt: skip
    yield [
        ("int4_gemv", OUT, gemv(4, *rest))
        for rest in ((3, 256, 128, 0), (2, 256, 168, 1), (2, 256, 128, 1), (1, 256, 128, 1))
    ]
    yield [
        ("int4_gemv", GATE, gemv(4, *rest))
        for rest in ((3, 264, 0, 0), (2, 264, 0, 1), (4, 264, 0, 1), (2, 264, 168, 1))
    ]
    yield [
        ("int4_gemv", DOWN, gemv(8, *rest))
        for rest in ((2, 256, 128, 0), (1, 256, 128, 1), (1, 256, 128, 0))
    ]


def eight_rows() -> Iterator[list[Trial]]:
    """Trials at batch 8."""
    yield [
        ("rope_attention", "8x4x128,8", {"splits": s, "tile": 64, "warps": 4, "early": True})
        for s in (5, 6, 8, 10)
    ]
    yield [
        ("paged_attention_decode", "8x4x128,8", {"splits": s, "stages": 3}) for s in (4, 5, 8, 10)
    ]
    for key, split in ((QKV, 4), (OUT, 5), (DOWN, 5)):
        yield [
            (
                "int4_wgmma", f"{key},8",
                {"stages": 3, "split": count, "depth": 2, "groups": 1, "trigger": trigger},
            )
            for count, trigger in ((split, 1), (split - 1, 0), (split + 1, 0))
        ]  # fmt: skip


TRIALS = {1: one_row, 8: eight_rows}


def use(trial: Trial) -> None:
    """Make the step's kernels use a trial's settings."""
    op, key, settings = trial
    table = launch.tuned_settings()
    table.setdefault(op, {})[key] = settings
    if op == "rope_attention":
        # Up to this many rows, or it would not come to the fused kernel at all.
        heads, rows = key.split(",")
        table.setdefault("rope_attention_rows", {})[heads] = {"most": max(4, int(rows))}


def compile_some(job: tuple[int, list[Trial]]) -> None:
    batch, trials = job
    config = dataclasses.replace(SHAPE, num_layers=1)
    model = CausalLM(RandomCheckpoint(config, "int4"), "cuda")
    caches = make_caches(model, batch * CONTEXT // 16)
    for trial in trials:
        use(trial)
        with launch.overlapped_launches():
            step_time(model, caches, batch, CONTEXT)


def tune(model: CausalLM, batch: int, deadline: float) -> dict[str, Any]:
    """The settings kept at one batch size, by op and key."""
    caches = make_caches(model, batch * CONTEXT // 16)

    def measure() -> float:
        with launch.overlapped_launches():
            return min(step_time(model, caches, batch, CONTEXT) for _ in range(2))

    best = measure()
    print(f"batch {batch}: {best:.1f} us before", flush=True)
    kept: dict[str, Any] = {}
    for trials in TRIALS[batch]():
        for trial in trials:
            if time.monotonic() > deadline:
                break
            op, key, settings = trial
            former = copy.deepcopy(launch.tuned_settings())
            use(trial)
            try:
                micros = measure()
            except Exception as error:
                print("FAILED", trial, repr(error)[:120], flush=True)
                micros = float("inf")
            if micros < best * (1 - LEAST_GAIN):
                best = micros
                kept.setdefault(op, {})[key] = settings
                rows = launch.tuned_settings().get("rope_attention_rows", {})
                kept["rope_attention_rows"] = dict(rows)
            else:
                launch.tuned_settings().clear()
                launch.tuned_settings().update(former)
            print(f"  {micros:8.1f} us {op} {key} {settings} best {best:.1f}", flush=True)
    print(f"batch {batch}: {best:.1f} us, {batch * 1e6 / best:.0f} tok/s; {kept}", flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    started = time.monotonic()
    batches = [int(part) for part in options.batches.split(",")]
    trials = [(batch, trial) for batch in batches for part in TRIALS[batch]() for trial in part]
    jobs = [(batch, [trial]) for batch, trial in trials]
    with ProcessPoolExecutor(15, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_some, jobs))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    model = CausalLM(RandomCheckpoint(SHAPE, "int4"), "cuda")
    table: dict[str, Any] = {"machine": machine()}
    for index, batch in enumerate(batches):
        left = options.seconds - (time.monotonic() - started)
        deadline = time.monotonic() + max(5.0, left / (len(batches) - index))
        for op, found in tune(model, batch, deadline).items():
            table.setdefault(op, {}).update(found)
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
