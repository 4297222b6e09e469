"""`python -m load_tests.sim`: policies on the same traces; table, CSV and plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from engine.config import EngineConfig
from engine.contract import Tier
from load_tests.measure import percentile
from load_tests.sim import report
from load_tests.sim.aims import TraceRuns, aims
from load_tests.sim.jobs import Job, run_job
from load_tests.sim.policies import POLICIES
from load_tests.sim.simulate import Run

UNLOADED = 0.2
# The same VIP requests at the same times without the other tiers.
ALONE = "vip alone"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m load_tests.sim", description=__doc__)
    parser.add_argument("--loads", type=float, nargs="+", default=[UNLOADED, 1.0, 4.0])
    parser.add_argument("--seeds", type=int, default=3, help="traces for each load")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first trace")
    parser.add_argument("--seconds", type=float, default=90.0, help="length of a trace")
    parser.add_argument("--blocks", type=int, default=1024, help="KV blocks of 16 tokens")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--processes", type=int, default=1, help="traces run at once")
    parser.add_argument("--output", type=Path, default=Path("build/sim"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all and say what came of it."""
    options = _parse(argv)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    worst = max(options.loads)
    kinds: dict[tuple[float, str], list[Job]] = {}
    for load in options.loads:
        for name in options.policies:
            kinds[load, name] = [
                Job(name, load, seed, options.seconds, options.blocks) for seed in seeds
            ]
    kinds[worst, ALONE] = [replace(job, tier=Tier.VIP) for job in kinds[worst, "Repartee"]]
    jobs = [job for listed in kinds.values() for job in listed]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        runs = iter(list(pool.map(run_job, jobs)))
    results = {kind: [next(runs) for _ in listed] for kind, listed in kinds.items()}
    _report(options, results, worst)
    return 0


def _report(
    options: argparse.Namespace, results: dict[tuple[float, str], list[Run]], worst: float
) -> None:
    lines = [
        line for (load, name), runs in results.items() for line in report.rows(load, name, runs)
    ]
    lines = [line for line in lines if line[1] != ALONE or line[2] == Tier.VIP.value]
    sys.stdout.write(report.as_table(lines))
    if "FCFS" in options.policies:
        three = (results[worst, name] for name in ("Repartee", ALONE, "FCFS"))
        traces = [TraceRuns(*runs) for runs in zip(*three, strict=True)]
        start_limit_s = EngineConfig(num_blocks=1).ageing_ms / 1000
        sys.stdout.write(f"\nAt {worst:g}x:\n\n" + aims(traces, start_limit_s))
    options.output.mkdir(parents=True, exist_ok=True)
    report.write_csv(options.output / "policies.csv", lines)
    by_policy = {name: results[worst, name] for name in options.policies}
    report.plot_ttft(options.output / "ttft.png", worst, by_policy)
    by_load = {
        name: {load: results[load, name] for load in options.loads} for name in options.policies
    }
    report.plot_by_load(
        options.output / "vip_ttft.png", "VIP p99 time to first text, s", by_load, _vip_p99_s
    )
    report.plot_by_load(options.output / "goodput.png", "answer tokens a second", by_load, _goodput)


def _vip_p99_s(runs: Sequence[Run]) -> float:
    vips = [o for run in runs for o in run.outcomes if o.arrival.tier is Tier.VIP]
    return percentile(report.ttfts(vips), 0.99)


def _goodput(runs: Sequence[Run]) -> float:
    return sum(run.goodput for run in runs) / len(runs)


if __name__ == "__main__":
    sys.exit(main())
