"""Find launch settings of the INT8 and FP8 products on this card, and when the library wins.

    python -m load_tests.gpu.tune_bytes OUT.json [--kinds fp8,w8a8,int8] [--tokens 1,8,32,128]

Candidates compile in worker processes first; then each is checked against a float32 product
and timed over rotated weights (cold L2). Times hold what is fused (norm, residual, SwiGLU)
and the rounding of x. Prints a table; OUT.json has the entries of kernels/tuning.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kernels.cuda import byte_linear, launch
from kernels.cuda.linear import linear
from kernels.cuda.packed import CudaWeight, pack_weight
from kernels.cuda.quantize_rows import quantize_rows
from load_tests.gpu.shapes import random_weight
from load_tests.gpu.timing import COLD_BYTES, machine, read_bandwidth, time_chain

Settings = dict[str, Any]
# rows, columns, whether SwiGLU follows; of llama3-8b: qkv, o, gate and up, down, output.
MATRICES = ((6144, 4096, False), (4096, 4096, False), (28672, 4096, True), (4096, 14336, False))
HEAD = (128256, 4096, False)
# Rows of x below which a decode step starts kernels early.
OVERLAP_ROWS = 64
TOLERANCE = 6e-3


@dataclass(frozen=True)
class Case:
    """One matrix at one row count: as the layer uses it, with norm or residual."""

    kind: str
    rows: int
    columns: int
    gated: bool
    num_tokens: int

    @property
    def op(self) -> str:
        return "byte_mma" if self.num_tokens == 1 else "byte_dot"

    @property
    def normed(self) -> bool:
        return self.rows != 4096

    def weight(self) -> CudaWeight:
        weight = random_weight(self.kind, self.rows, self.columns, "cuda")
        return pack_weight(weight, torch.device("cuda"), keep_dense=False)

    def key(self, weight: CudaWeight) -> str:
        if self.op == "byte_mma":
            return byte_linear.weight_key(weight, self.gated)
        return byte_linear.dot_key(weight, self.class_m, self.gated)

    @property
    def class_m(self) -> int:
        return min(512, max(16, 1 << (self.num_tokens - 1).bit_length()))


@dataclass
class Arguments:
    """What one case multiplies; made once."""

    x: torch.Tensor
    norm: torch.Tensor | None
    residual: torch.Tensor | None

    @classmethod
    def of(cls, case: Case) -> Arguments:
        x = torch.randn(case.num_tokens, case.columns, device="cuda").bfloat16()
        if case.normed:
            return cls(x, torch.rand(case.columns, device="cuda").bfloat16() + 0.5, None)
        shape = (case.num_tokens, case.rows)
        return cls(x, None, torch.zeros(shape, device="cuda", dtype=torch.bfloat16))

    def call(self, case: Case, weight: CudaWeight) -> torch.Tensor:
        return linear(self.x, self.norm, 1e-5, weight, residual=self.residual, gated=case.gated)


def single_row_candidates(case: Case, limit: int) -> Iterator[Settings]:
    """Settings of the M = 1 kernel for `limit` row tiles."""
    grids = sorted({min(limit, programs) for programs in (132, 264, 384, 448, 528, 896)})
    for warps, segments, depth, programs, trigger in itertools.product(
        (4, 8), (1, 2, 4), (1, 2, 3, 4), grids, (0, 1, 2)
    ):
        # Registers a lane that wait for their words, and the program's.
        held = 8 * segments * depth * (2 if case.gated else 1)
        steps = -(-case.columns // (64 * warps * segments))
        if not 32 <= held <= 128 or steps < depth or steps > 16 or (held == 32 and segments == 1):
            continue
        # What a multiprocessor has under way must be enough, and fit.
        flying = min(programs / 132, 64 * 1024 / (32 * warps * (100 + held))) * warps * held
        if flying < 320 or (warps == 8 and programs > 264):
            continue
        if trigger == 2 and programs >= limit:
            continue
        yield {
            "warps": warps, "segments": segments, "depth": depth, "programs": programs,
            "trigger": trigger,
        }  # fmt: skip


def candidates(case: Case) -> Iterator[Settings]:
    outputs = case.rows // 2 if case.gated else case.rows
    if case.op == "byte_mma":
        yield from single_row_candidates(case, outputs // 16)
        return
    class_m = case.class_m
    tiles = [(16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (256, 128)]
    halves = 2 if case.kind == "int8" else 1
    exacts = (True,) if case.kind != "fp8" or class_m < 128 else (True, False)
    if case.kind == "fp8" and class_m > 128:
        exacts = (False,)
    for (block_m, block_n), block_k, split, warps, stages, exact in itertools.product(
        tiles, (128, 256), (1, 2, 3, 4, 7), (4, 8), (3, 4, 5), exacts
    ):
        if not min(class_m, 64) <= block_m <= class_m:
            continue
        # Sums that a lane holds; where they need no copy, tiles may be larger.
        sums = block_m * block_n * (2 if case.gated else 1) * halves // (32 * warps)
        if not 4 <= sums <= 128 or (warps == 8 and sums < 32):
            continue
        if not exact and sums < (128 if class_m == 128 else 64):
            continue
        held = (block_m * halves + block_n * (2 if case.gated else 1)) * block_k
        if held * stages > 200_000 or (held * stages < 60_000 and stages == 3 and block_k == 128):
            continue
        programs = -(-case.num_tokens // block_m) * -(-outputs // block_n) * split
        if (split > 1 and programs > 400) or (programs < 100 and split < 7):
            continue
        yield {
            "block_m": block_m, "block_n": block_n, "block_k": block_k, "split": split,
            "warps": warps, "stages": stages, "exact": exact,
        }  # fmt: skip


def with_settings(case: Case, weight: CudaWeight, settings: Settings | None) -> None:
    """Make the kernels use `settings` for this case; None is the default."""
    launch.tuned_settings().setdefault(case.op, {})[case.key(weight)] = settings or {}


def library_from(rows: int) -> None:
    """Let the library multiply from `rows` rows on."""
    byte_linear.LIBRARY_ROWS = rows


def overlap(case: Case) -> Any:
    return launch.overlapped_launches(case.num_tokens < OVERLAP_ROWS)


def _compile(job: tuple[Case, list[Settings]]) -> int:
    case, chosen = job
    library_from(1 << 30)
    weight, arguments = case.weight(), Arguments.of(case)
    done = 0
    for settings in chosen:
        with_settings(case, weight, settings)
        with overlap(case):
            try:
                arguments.call(case, weight)
                torch.cuda.synchronize()
                done += 1
            except Exception as error:
                print("compile", case, settings, repr(error)[:200], file=sys.stderr)
    return done


def expected(case: Case, weight: CudaWeight, arguments: Arguments) -> torch.Tensor:
    """The same from float32 products, after the same rounding of x."""
    x = arguments.x
    rounding = byte_linear.rounding_of(weight)
    if case.num_tokens > 1 and rounding is not None:
        q, scale = quantize_rows(x, arguments.norm, 1e-5, rounding)
        q = q.float()
        if rounding == "int16":
            q = 256 * q[: case.num_tokens] + q[case.num_tokens :]
        x = q * scale.unsqueeze(1)
    else:
        x = x.float()
        if arguments.norm is not None:
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5) * arguments.norm.float()
    assert weight.scale is not None
    product = x @ (weight.data.float() * weight.scale.T).T
    if not case.gated:
        return product
    gate, up = product.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def timed(
    case: Case, weights: list[CudaWeight], arguments: Arguments, wanted: torch.Tensor
) -> float | None:
    """Microseconds a call with the settings in force; None where the result is wrong."""
    with overlap(case):
        if arguments.residual is not None:
            arguments.residual.zero_()
        actual = arguments.call(case, weights[0])
        error = float((actual.float() - wanted).norm() / wanted.norm())
        if not error < TOLERANCE:
            print(f"WRONG {case}: {error:.3e}", file=sys.stderr)
            return None
        calls: list[Callable[[], Any]] = [
            lambda weight=weight: arguments.call(case, weight) for weight in weights
        ]
        repeats = -(-(40 if case.num_tokens <= 256 else 6) // len(calls))
        return time_chain(calls, repeats=repeats, rounds=4)


def tune(case: Case, chosen: list[Settings], ceiling: float, deadline: float) -> list[Any]:
    """(microseconds, settings) of all candidates and of the library, best first."""
    first = case.weight()
    weights = [first] + [case.weight() for _ in range(int(COLD_BYTES / first.nbytes))]
    arguments = Arguments.of(case)
    wanted = expected(case, first, arguments)
    results: list[tuple[float, Any]] = []
    library_from(1 << 30)
    for settings in [None, *chosen]:
        if time.monotonic() > deadline:
            break
        with_settings(case, first, settings)
        try:
            micros = timed(case, weights, arguments, wanted)
        except Exception as failure:
            print(f"FAILED {case} {settings}: {repr(failure)[:160]}", file=sys.stderr)
            continue
        if micros is not None:
            results.append((micros, settings))
    results.sort(key=lambda result: result[0])
    library = None
    if case.kind == "fp8" and case.num_tokens > 1:
        library_from(2)
        library = timed(case, weights, arguments, wanted)
    gbs = first.nbytes / results[0][0] / 1000
    flops = 2e-6 * case.num_tokens * case.rows * case.columns / results[0][0]
    default = next((micros for micros, settings in results if settings is None), 0.0)
    print(
        f"{case.kind:4s} {case.rows:6d}x{case.columns:<5d} M={case.num_tokens:<4d} "
        f"{results[0][0]:7.2f} us {gbs:5.0f} GB/s {gbs / ceiling:4.0%} {flops:5.0f} TF "
        f"default {default:7.2f} library {library or 0:7.2f} {results[0][1]}",
        flush=True,
    )
    return [*results, *([(library, "library")] if library else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", default="fp8")
    parser.add_argument("--tokens", default="1,8,32,128")
    parser.add_argument("--cases", default="", help="rows@tokens, comma-separated; empty is all")
    parser.add_argument("--head", action="store_true", help="the output layer's matrix alone")
    parser.add_argument("--limit", type=int, default=24, help="candidates a case at most")
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--workers", type=int, default=14)
    options = parser.parse_args()
    started = time.monotonic()
    todo = [
        Case(kind, *matrix, int(tokens))
        for kind in options.kinds.split(",")
        for tokens in options.tokens.split(",")
        for matrix in ((HEAD,) if options.head else MATRICES)
        if not options.cases or f"{matrix[0]}@{tokens}" in options.cases.split(",")
    ]
    tried = {}
    for case in todo:
        found = list(candidates(case))
        if len(found) > options.limit:
            found = random.Random(len(found)).sample(found, options.limit)
        known = launch.tuned_settings().get(case.op, {}).get(case.key(case.weight()))
        tried[case] = [*([known] if known else []), *found]
    jobs = [
        (case, chosen[i : i + 4])
        for case, chosen in tried.items()
        for i in range(0, len(chosen), 4)
    ]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        compiled = sum(pool.map(_compile, jobs))
    print(f"compiled {compiled} candidates in {time.monotonic() - started:.0f} s", flush=True)
    ceiling = read_bandwidth()
    print(f"read ceiling {ceiling:.0f} GB/s", flush=True)
    table: dict[str, Any] = {"machine": machine(), "read_gb_s": round(ceiling)}
    details = {}
    for index, case in enumerate(todo):
        left = options.seconds - (time.monotonic() - started)
        deadline = time.monotonic() + max(1.0, left / (len(todo) - index))
        results = tune(case, tried[case], ceiling, deadline)
        key = case.key(case.weight())
        best = next((s for _, s in results if isinstance(s, dict)), None)
        if best:
            table.setdefault(case.op, {})[key] = best
        details[f"{case.op} {key} M={case.num_tokens}"] = results[:6] + results[-1:]
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    options.out.with_suffix(".all.json").write_text(json.dumps(details, indent=1) + "\n")


if __name__ == "__main__":
    main()
