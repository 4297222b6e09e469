"""Find launch settings of the CUDA kernels on this card; write them as kernels/tuning data.

    python -m load_tests.gpu.tune OUT.json [--quick]

Candidates compile in worker processes first; then each is checked against the plain
Triton path and timed over rotated weights (cold L2). Prints the table it chose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kernels.cuda import launch
from kernels.cuda.linear import _int4_dot, _shape, linear
from kernels.cuda.packed import CudaWeight
from kernels.cuda.swiglu import swiglu
from load_tests.gpu.timing import COLD_BYTES, machine, read_bandwidth, time_chain

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One matrix at one row count.

    Attributes:
        op: The table of settings: int4_gemv, int4_wgmma or row_gemv.
        rows: Outputs.
        columns: Inputs.
        group: Columns that share a scale.
        num_tokens: Rows of x.
        gated: Whether SwiGLU follows.
        normed: Whether the norm is fused (M = 1).
        added: Whether the residual is added.
    """

    op: str
    rows: int
    columns: int
    group: int
    num_tokens: int
    gated: bool = False
    normed: bool = False
    added: bool = False

    def weight(self) -> CudaWeight:
        if self.op == "row_gemv":
            data = torch.randn(self.rows, self.columns, dtype=torch.bfloat16, device="cuda")
            return CudaWeight("bf16", self.rows, self.columns, data / self.columns**0.5)
        plane = 64 if self.group >= 64 else 32
        tiles = -(-self.columns // (4 * plane))
        row_tiles = -(-self.rows // 64) * 4
        words = torch.randint(
            -(2**15), 2**15, (row_tiles, tiles, 16 * plane), dtype=torch.int16, device="cuda"
        )
        shape = (row_tiles, tiles, 4 * plane // self.group, 16)
        scale = (torch.rand(shape, device="cuda") + 0.5).half() / 64
        pair = torch.stack((scale, -7.5 * scale), dim=-1)
        pairs = pair.view(torch.int32).squeeze(-1).contiguous()
        return CudaWeight("int4", self.rows, self.columns, words, pairs, self.group, plane)

    def key(self, weight: CudaWeight) -> str:
        key = _shape(weight, self.gated)
        if self.op == "int4_gemv":
            return key
        if self.op == "row_gemv":
            return f"bf16,{key}"
        return f"{key},{max(8, 1 << (self.num_tokens - 1).bit_length())}"

    def call(self, weight: CudaWeight, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        residual = None
        if self.added:
            # Made once: filling it each time would be a kernel of its own.
            residual = _residual(self.num_tokens, self.rows)
        return linear(
            x, norm if self.normed else None, 1e-5, weight, residual=residual, gated=self.gated
        )


@cache
def _residual(rows: int, columns: int) -> torch.Tensor:
    """What the products are added to; grows from call to call, which costs no time."""
    return torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")


def gemv_candidates(case: Case, quick: bool) -> Iterator[Settings]:
    """Settings of the M = 1 kernel."""
    tiles = case.rows // 32 if case.gated else case.rows // 16
    grids = sorted({min(tiles, programs) for programs in (264, 396)})
    depths = (2, 3, 4) if case.gated else (1, 2, 3)
    for depth, programs, registers, trigger in itertools.product(
        depths, grids, (None, 168) if case.gated else (128, 168), (0, 1)
    ):
        if depth > 1 or registers == 128:
            yield _settings(
                warps=4, depth=depth, programs=programs, registers=registers, trigger=trigger
            )
        if not case.gated and depth < 3 and registers == 128:
            yield _settings(
                warps=8, depth=depth, programs=programs, registers=registers, trigger=trigger
            )


def row_candidates(case: Case, quick: bool) -> Iterator[Settings]:
    """Settings of the M = 1 kernel on bf16."""
    for rows, warps in itertools.product((1, 2, 4), (2, 4, 8, 16)):
        if 256 <= rows * case.columns // warps <= 16384:
            yield _settings(rows=rows, warps=warps)


def wgmma_candidates(case: Case, quick: bool) -> Iterator[Settings]:
    """Settings of the batch kernel."""
    tile = max(8, 1 << (case.num_tokens - 1).bit_length())
    groups = 2 if case.gated else 1
    for stages, split, depth, registers, trigger in itertools.product(
        (3,) if quick else (2, 3, 4), (1, 2, 3, 4, 5, 7), (2,) if quick else (1, 2), (None, 168),
        (0, 1),
    ):  # fmt: skip
        programs = case.rows // (64 * groups) * split
        if not 200 <= programs <= 500 or stages * tile > 256:
            continue
        if (registers == 168) != (tile >= 32 and not case.gated):
            continue
        yield _settings(
            stages=stages, split=split, depth=depth, groups=groups, registers=registers,
            trigger=trigger,
        )  # fmt: skip


def _settings(**values: Any) -> Settings:
    return {name: value for name, value in values.items() if value is not None}


CANDIDATES: dict[str, Callable[[Case, bool], Iterator[Settings]]] = {
    "int4_gemv": gemv_candidates,
    "int4_wgmma": wgmma_candidates,
    "row_gemv": row_candidates,
}


def with_settings(case: Case, weight: CudaWeight, settings: Settings) -> None:
    """Make the kernels use `settings` for this case."""
    launch.tuned_settings().setdefault(case.op, {})[case.key(weight)] = settings


def _compile(job: tuple[Case, list[Settings]]) -> int:
    case, candidates = job
    weight = case.weight()
    x = torch.randn(case.num_tokens, case.columns, device="cuda").bfloat16()
    norm = torch.ones(case.columns, device="cuda", dtype=torch.bfloat16)
    done = 0
    for settings in candidates:
        with_settings(case, weight, settings)
        with launch.overlapped_launches(case.num_tokens < 64):
            try:
                case.call(weight, x, norm)
                torch.cuda.synchronize()
                done += 1
            except Exception as error:
                print("compile", case.op, settings, repr(error)[:200], file=sys.stderr)
    return done


def reference(case: Case, weight: CudaWeight, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """The same by the plain path in fp32 sums."""
    if case.normed:
        x = x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-5)
        x = (x * norm.float()).bfloat16()
    if case.op == "row_gemv":
        out = x.float() @ weight.data.float().T
    else:
        out = torch.empty(case.num_tokens, case.rows, dtype=torch.float32, device="cuda")
        _int4_dot(x, weight, None, None, out)
    if case.gated:
        gated = torch.empty(case.num_tokens, case.rows // 2, dtype=torch.float32, device="cuda")
        swiglu(out, gated)
        return gated
    return out


def tune(
    case: Case, candidates: list[Settings], ceiling: float, deadline: float
) -> tuple[str, list[Any]]:
    """All candidates' times, best first: (microseconds, settings)."""
    first = case.weight()
    copies = max(2, int(COLD_BYTES / first.nbytes))
    weights = [first] + [case.weight() for _ in range(copies - 1)]
    x = torch.randn(case.num_tokens, case.columns, device="cuda").bfloat16()
    norm = torch.rand(case.columns, device="cuda").bfloat16() + 0.5
    expected = reference(case, first, x, norm)
    results = []
    for settings in candidates:
        if time.monotonic() > deadline:
            break
        with_settings(case, first, settings)
        try:
            with launch.overlapped_launches(case.num_tokens < 64):
                if case.added:
                    _residual(case.num_tokens, case.rows).zero_()
                actual = case.call(first, x, norm)
                error = float((actual.float() - expected).norm() / expected.norm())
                if not error < 8e-3:
                    print(f"WRONG {case} {settings}: {error:.3e}", file=sys.stderr)
                    continue
                calls = [lambda weight=weight: case.call(weight, x, norm) for weight in weights]
                micros = time_chain(calls, repeats=-(-60 // copies), rounds=5)
        except Exception as failure:
            print(f"FAILED {case} {settings}: {repr(failure)[:160]}", file=sys.stderr)
            continue
        results.append((micros, settings))
    results.sort(key=lambda result: result[0])
    if results:
        with_settings(case, first, results[0][1])
        gbs = first.nbytes / results[0][0] / 1000
        print(
            f"{case.op:11s} {case.key(first):30s} M={case.num_tokens:<4d} {results[0][0]:7.2f} us "
            f"{gbs:6.0f} GB/s {gbs / ceiling:5.1%}  {results[0][1]}  "
            f"(next {[(round(t, 2), s) for t, s in results[1:3]]})",
            flush=True,
        )
    return case.key(first), results


def cases(quick: bool) -> list[Case]:
    """The matrices of the 8B and 7B shapes."""
    found = []
    for rows, columns, gated, normed, added in (
        (6144, 4096, False, True, False), (4096, 4096, False, False, True),
        (28672, 4096, True, True, False), (4096, 14336, False, False, True),
    ):  # fmt: skip
        found.append(Case("int4_gemv", rows, columns, 128, 1, gated, normed, added))
        found.append(Case("row_gemv", rows, columns, 0, 1, gated, normed, added))
        for num_tokens in (8, 32) if quick else (8, 16, 32, 64):
            found.append(Case("int4_wgmma", rows, columns, 128, num_tokens, gated, False, added))
    found.append(Case("row_gemv", 128256, 4096, 0, 1, False, True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="part of the op's name")
    parser.add_argument("--tokens", default="", help="row counts, comma-separated")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=12)
    options = parser.parse_args()
    started = time.monotonic()
    tokens = [int(part) for part in options.tokens.split(",") if part]
    todo = [
        case
        for case in cases(options.quick)
        if options.only in case.op and (not tokens or case.num_tokens in tokens)
    ]
    jobs = []
    tried = {case: list(CANDIDATES[case.op](case, options.quick)) for case in todo}
    for case, candidates in tried.items():
        jobs += [(case, candidates[i : i + 6]) for i in range(0, len(candidates), 6)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        compiled = sum(pool.map(_compile, jobs))
    print(f"compiled {compiled} candidates in {time.monotonic() - started:.0f} s", flush=True)
    ceiling = read_bandwidth()
    print(f"read ceiling {ceiling:.0f} GB/s", flush=True)
    table: dict[str, Any] = {"machine": machine(), "read_gb_s": round(ceiling)}
    details = {}
    for index, case in enumerate(todo):
        left = options.seconds - (time.monotonic() - started)
        share = time.monotonic() + max(5.0, left / (len(todo) - index))
        key, results = tune(case, tried[case], ceiling, share)
        if results:
            table.setdefault(case.op, {})[key] = results[0][1]
            details[f"{case.op} {key}"] = [(round(t, 2), s) for t, s in results[:10]]
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    options.out.with_suffix(".all.json").write_text(json.dumps(details, indent=1) + "\n")


if __name__ == "__main__":
    main()
