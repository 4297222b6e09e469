"""`repartee bench`: hands over to the benchmarks in `load_tests/`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app.startup_error import StartupError

CHECKOUT = Path(__file__).resolve().parents[1]
BENCH_MODULE = "load_tests.bench"


def run_bench(arguments: Sequence[str]) -> int:
    """Becomes the benchmark program, which documents its own options.

    Raises:
        StartupError: the benchmarks are not there; they come with a checkout.
    """
    if not (CHECKOUT / "load_tests" / "bench.py").is_file():
        raise StartupError(
            "The benchmarks come with a checkout of the project.", "Run `make bench` in one."
        )
    os.chdir(CHECKOUT)
    os.execv(sys.executable, [sys.executable, "-m", BENCH_MODULE, *arguments])
