"""W4A16 products at the 8B shapes with cold caches, the library's bf16 products beside them.

    python -m load_tests.gpu.kernel_table [OUT.json]

Ours with all that is fused: norm (one row), residual, SwiGLU. The library's alone, and
with the launches that the same work takes after it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from kernels.cuda.launch import overlapped_launches
from kernels.cuda.linear import linear
from kernels.cuda.packed import CudaWeight
from load_tests.gpu.timing import COLD_BYTES, machine, read_bandwidth, time_chain
from load_tests.gpu.tune import Case

ROWS = (1, 4, 16, 64)
MATRICES = (
    ("qkv", 6144, 4096, False, False), ("o", 4096, 4096, False, True),
    ("gate_up", 28672, 4096, True, False), ("down", 4096, 14336, False, True),
)  # fmt: skip


def ours(case: Case) -> tuple[float, int]:
    """(microseconds, bytes of the weight)."""
    first = case.weight()
    copies = [first] + [case.weight() for _ in range(max(1, COLD_BYTES // first.nbytes - 1))]
    x = torch.randn(case.num_tokens, case.columns, device="cuda").bfloat16()
    norm = torch.ones(case.columns, device="cuda", dtype=torch.bfloat16)
    with overlapped_launches(case.num_tokens < 64):
        calls = [lambda weight=weight: case.call(weight, x, norm) for weight in copies]
        return time_chain(calls, max(1, 40 // len(calls)), 5), first.nbytes


def library(case: Case, is_fused: bool) -> float:
    """Microseconds of bf16: the product alone, or through `linear` with all that follows."""
    size = 2 * case.rows * case.columns
    weights = [
        torch.randn(case.rows, case.columns, device="cuda", dtype=torch.bfloat16)
        for _ in range(max(2, COLD_BYTES // size))
    ]
    x = torch.randn(case.num_tokens, case.columns, device="cuda").bfloat16()
    if not is_fused:
        calls = [lambda w=w: torch.mm(x, w.T) for w in weights]
        return time_chain(calls, max(1, 40 // len(calls)), 5)
    packed = [CudaWeight("bf16", case.rows, case.columns, weight) for weight in weights]
    residual = torch.zeros(case.num_tokens, case.rows, device="cuda", dtype=torch.bfloat16)
    calls = [
        lambda w=w: linear(
            x, None, 0.0, w, residual=residual if case.added else None, gated=case.gated
        )
        for w in packed
    ]
    with overlapped_launches(case.num_tokens < 64):
        return time_chain(calls, max(1, 40 // len(calls)), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    options = parser.parse_args()
    ceiling = read_bandwidth()
    rows: list[dict[str, Any]] = []
    print(f"read ceiling {ceiling:.0f} GB/s", flush=True)
    for name, outputs, columns, gated, added in MATRICES:
        for num_tokens in ROWS:
            op = "int4_gemv" if num_tokens == 1 else "int4_wgmma"
            case = Case(op, outputs, columns, 128, num_tokens, gated, num_tokens == 1, added)
            micros, size = ours(case)
            speed = size / micros / 1e3
            row = {
                "matrix": name, "rows": num_tokens, "int4_us": round(micros, 2),
                "gb_s": round(speed), "share": round(speed / ceiling, 3),
                "cublas_us": round(library(case, False), 2),
                "bf16_us": round(library(case, True), 2),
            }  # fmt: skip
            rows.append(row)
            print(row, flush=True)
    if options.out:
        result = {"machine": machine(), "read_gb_s": round(ceiling), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
