"""Fill Triton's disk cache for one shape from many processes, before anything is timed.

python -m load_tests.gpu.precompile SHAPE KIND
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

# Row counts that need kernels of their own, and those of prefill pieces.
ROW_COUNTS = (1, 2, 12, 24, 48, 64, 128)
PIECES = (32, 128)


def _warm_up(job: tuple[str, str, str, tuple[int, ...], tuple[int, ...]]) -> float:
    from engine.config import EngineConfig
    from engine.cuda_runner import CudaRunner
    from engine.model.llama import CausalLM
    from load_tests.gpu.shapes import SHAPES, RandomCheckpoint

    shape, kind, head, row_counts, pieces = job
    started = time.perf_counter()
    # Every layer runs the same kernels.
    config = dataclasses.replace(SHAPES[shape], num_layers=1)
    model = CausalLM(RandomCheckpoint(config, kind, head), "cuda")
    runner = CudaRunner(model, EngineConfig(num_blocks=1024), "cuda", max_decode_steps=8)
    runner.warm_up(row_counts, pieces)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("kind")
    parser.add_argument("--head", default="bf16")
    options = parser.parse_args()
    started = time.perf_counter()
    jobs = [(options.shape, options.kind, options.head, (count,), ()) for count in ROW_COUNTS]
    jobs += [(options.shape, options.kind, options.head, (), (length,)) for length in PIECES]
    with ProcessPoolExecutor(len(jobs), mp_context=get_context("spawn")) as pool:
        slowest = max(pool.map(_warm_up, jobs))
    took = time.perf_counter() - started
    print(f"{options.shape} {options.kind}: compiled in {took:.1f} s, slowest {slowest:.1f} s")


if __name__ == "__main__":
    main()
