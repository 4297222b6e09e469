"""Launch settings of a decode step's fused attention on the card.

    python -m load_tests.gpu.tune_attention OUT.json [--seconds 60]

Beside the best settings, the two launches that it takes the place of.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kernels.cuda import launch
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention.triton import paged_attention
from kernels.rope_attention.triton import rope_attention
from kernels.rope_kv_write import rope_table
from kernels.rope_kv_write.triton import rope_kv_write
from load_tests.gpu.timing import machine, read_bandwidth, time_chain

BLOCK = 16
Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One decode batch.

    Attributes:
        num_kv: KV heads.
        group: Query heads of each.
        head_dim: Their width.
        batch: Sequences.
        context: Tokens of each.
    """

    num_kv: int
    group: int
    head_dim: int
    batch: int
    context: int = 640

    @property
    def key(self) -> str:
        return f"{self.num_kv}x{self.group}x{self.head_dim},{self.batch}"

    @property
    def kv_bytes(self) -> int:
        return 2 * self.batch * self.context * self.num_kv * self.head_dim * 2

    def inputs(self, cold: bool) -> dict[str, Any]:
        """What both ways take; several layers' caches, so that nothing is in the L2."""
        blocks = -(-self.context // BLOCK)
        layers = max(2, min(64, 420_000_000 // self.kv_bytes)) if cold else 1
        shape = (self.batch * blocks, self.num_kv, BLOCK, self.head_dim)
        width = self.num_kv * (self.group + 2) * self.head_dim
        tables = torch.randperm(self.batch * blocks, device="cuda").int().view(self.batch, blocks)
        positions = torch.full((self.batch,), self.context - 1, device="cuda")
        return {
            "caches": [
                LayerCache(
                    torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
                    torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
                )
                for _ in range(layers)
            ],
            "qkv": torch.randn(self.batch, width, dtype=torch.bfloat16, device="cuda"),
            "positions": positions,
            "rope": rope_table(torch.ones(self.head_dim // 2), 8192).cuda(),
            "slots": (tables[:, -1].long() * BLOCK + (self.context - 1) % BLOCK).contiguous(),
            "batch": AttentionBatch(
                torch.arange(self.batch + 1, dtype=torch.int32, device="cuda"),
                torch.full((self.batch,), self.context, dtype=torch.int32, device="cuda"),
                tables, 1, self.context,
            ),
        }  # fmt: skip

    def candidates(self) -> Iterator[Settings]:
        for splits, tile, warps, early in itertools.product(
            (4, 5, 6, 8, 10, 12, 16, 20), (32, 64, 128), (4, 8), (True, False)
        ):
            tokens = -(-self.context // splits)
            # One tile a program, or two where more is in vain.
            if not 120 <= splits * self.batch * self.num_kv * self.group <= 3000:
                continue
            if not tile // 2 <= tokens <= 2 * tile or (warps == 8 and tile < 128):
                continue
            if not early and tile != 64:
                continue
            yield {"splits": splits, "tile": tile, "warps": warps, "early": early}


CASES = (
    Case(8, 4, 128, 1),
    Case(8, 4, 128, 4),
    Case(8, 4, 128, 8),
    Case(3, 3, 64, 1),
)


def fused(inputs: dict[str, Any], cache: LayerCache) -> torch.Tensor:
    return rope_attention(
        inputs["qkv"], inputs["positions"], inputs["rope"], cache, inputs["slots"],
        inputs["batch"], 0.09,
    )  # fmt: skip


def apart(inputs: dict[str, Any], cache: LayerCache) -> torch.Tensor:
    q = rope_kv_write(inputs["qkv"], inputs["positions"], inputs["rope"], cache, inputs["slots"])
    return paged_attention(q, cache, inputs["batch"], 0.09)


def use(case: Case, settings: Settings) -> None:
    launch.tuned_settings().setdefault("rope_attention", {})[case.key] = settings


def compile_some(job: tuple[Case, list[Settings]]) -> None:
    case, candidates = job
    inputs = case.inputs(cold=False)
    for settings in candidates:
        use(case, settings)
        for overlap in (True, False):
            with launch.overlapped_launches(overlap):
                fused(inputs, inputs["caches"][0])
    torch.cuda.synchronize()


def tune(case: Case, ceiling: float, deadline: float) -> list[tuple[float, Settings]]:
    """Every candidate's microseconds a layer, best first."""
    inputs = case.inputs(cold=True)
    with launch.overlapped_launches(case.batch < 64):
        two = time_chain([lambda c=cache: apart(inputs, c) for cache in inputs["caches"]], 1, 5)
        expected = apart(inputs, inputs["caches"][0]).float()
        results = []
        for settings in case.candidates():
            if time.monotonic() > deadline:
                break
            use(case, settings)
            error = (fused(inputs, inputs["caches"][0]).float() - expected).norm()
            if not float(error / expected.norm()) < 1e-2:
                print(f"WRONG {case} {settings}")
                continue
            calls = [lambda c=cache: fused(inputs, c) for cache in inputs["caches"]]
            results.append((round(time_chain(calls, 1, 5), 2), settings))
    results.sort(key=lambda result: result[0])
    best = results[0]
    print(
        f"{case.key:14s} {best[0]:7.2f} us {case.kv_bytes / best[0] / 1e3:6.0f} GB/s "
        f"{case.kv_bytes / best[0] / 1e3 / ceiling:4.0%} {best[1]} next {results[1:4]}; "
        f"two launches {two:.2f}",
        flush=True,
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    started = time.monotonic()
    jobs = []
    for case in CASES:
        candidates = list(case.candidates())
        jobs += [(case, candidates[i : i + 5]) for i in range(0, len(candidates), 5)]
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_some, jobs))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    ceiling = read_bandwidth()
    found = {}
    for index, case in enumerate(CASES):
        left = options.seconds - (time.monotonic() - started)
        deadline = time.monotonic() + max(3.0, left / (len(CASES) - index))
        found[case.key] = tune(case, ceiling, deadline)
    table = {"machine": machine(), "read_gb_s": round(ceiling)}
    table["rope_attention"] = {key: results[0][1] for key, results in found.items()}
    table["times"] = {key: results[:12] for key, results in found.items()}
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
