"""Launch settings tried within a whole decode step, one group after the other.

    python -m load_tests.gpu.tune_step OUT.json [--kind int4] [--batches 1,8] [--seconds 60]

Kernels that start before their predecessors end share the multiprocessors with them, so
what is best alone need not be best in its place. Starts from this card's table; keeps a
change where the step gets shorter by more than the noise. Trials: `step_trials.py`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import engine.loading  # noqa: F401 - before engine.model, which it imports back
from engine.model.llama import CausalLM
from kernels.cuda import launch
from load_tests.gpu.decode_step import make_caches, step_time
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint
from load_tests.gpu.step_trials import TRIALS, Trial
from load_tests.gpu.timing import machine

CONTEXT = 640
# Shorter by less than this share is noise.
LEAST_GAIN = 0.0015
SHAPE = SHAPES["llama3-8b"]


def use(trial: Trial) -> None:
    """Make the step's kernels use a trial's settings."""
    table = launch.tuned_settings()
    for (op, key), settings in trial.items():
        entries = table.setdefault(op, {})
        entries[key] = {**entries.get(key, {}), **settings}
        if op == "rope_attention":
            # Up to this many rows, or it would not come to the fused kernel at all.
            heads, rows = key.split(",")
            table.setdefault("rope_attention_rows", {})[heads] = {"most": max(4, int(rows))}


def go_back(table: dict[str, Any]) -> None:
    """Make the step's kernels use the settings of `table` again."""
    launch.tuned_settings().clear()
    launch.tuned_settings().update(copy.deepcopy(table))


def compile_some(job: tuple[str, str, int, Trial]) -> None:
    kind, head, batch, trial = job
    config = dataclasses.replace(SHAPE, num_layers=2)
    model = CausalLM(RandomCheckpoint(config, kind, head), "cuda")
    caches = make_caches(model, batch * CONTEXT // 16)
    former = copy.deepcopy(launch.tuned_settings())
    use(trial)
    try:
        with launch.overlapped_launches():
            step_time(model, caches, batch, CONTEXT)
    finally:
        go_back(former)


def tune(model: CausalLM, kind: str, batch: int, deadline: float) -> dict[str, Any]:
    """The settings kept at one batch size, by op and key."""
    caches = make_caches(model, batch * CONTEXT // 16)

    def measure() -> float:
        with launch.overlapped_launches():
            return min(step_time(model, caches, batch, CONTEXT) for _ in range(3))

    best = measure()
    print(f"{kind} batch {batch}: {best:.1f} us before", flush=True)
    kept: dict[str, Any] = {}
    for trials in TRIALS[kind, batch]():
        for trial in trials:
            if time.monotonic() > deadline:
                break
            former = copy.deepcopy(launch.tuned_settings())
            use(trial)
            try:
                micros = measure()
            except Exception as error:
                print("FAILED", trial, repr(error)[:120], flush=True)
                micros = float("inf")
            mark = " "
            if micros < best * (1 - LEAST_GAIN):
                best, mark = micros, "*"
                for op, key in trial:
                    kept.setdefault(op, {})[key] = dict(launch.tuned(op, key))
                kept["rope_attention_rows"] = launch.tuned_settings().get("rope_attention_rows", {})
            else:
                go_back(former)
            print(f" {mark}{micros:8.1f} us {trial}", flush=True)
    print(f"{kind} batch {batch}: {best:.1f} us, {batch * 1e6 / best:.0f} tok/s", flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=sorted({kind for kind, _ in TRIALS}), default="int4")
    parser.add_argument("--head", default="bf16")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    started = time.monotonic()
    batches = [int(part) for part in options.batches.split(",")]
    jobs = [
        (options.kind, options.head, batch, trial)
        for batch in batches
        for group in TRIALS[options.kind, batch]()
        for trial in group
    ]
    with ProcessPoolExecutor(15, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_some, jobs))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    model = CausalLM(RandomCheckpoint(SHAPE, options.kind, options.head), "cuda")
    table: dict[str, Any] = {"machine": machine()}
    for index, batch in enumerate(batches):
        left = options.seconds - (time.monotonic() - started)
        deadline = time.monotonic() + max(5.0, left / (len(batches) - index))
        for op, found in tune(model, options.kind, batch, deadline).items():
            table.setdefault(op, {}).update(found)
        # Whatever comes after the limit still leaves what was found.
        options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
