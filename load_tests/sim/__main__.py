"""`python -m load_tests.sim`: policies on the same traces; table, CSV and plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.contract import Tier
from engine.scheduler import Scheduler
from load_tests.measure import percentile
from load_tests.sim import report
from load_tests.sim.machine import Costs
from load_tests.sim.policies import POLICIES
from load_tests.sim.simulate import Run, Simulation, capacity_requests_per_s, without_refusals
from load_tests.sim.trace import make_trace

UNLOADED = 0.2


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m load_tests.sim", description=__doc__)
    parser.add_argument("--loads", type=float, nargs="+", default=[UNLOADED, 1.0, 4.0])
    parser.add_argument("--seeds", type=int, default=3, help="traces for each load")
    parser.add_argument("--seconds", type=float, default=90.0, help="length of a trace")
    parser.add_argument("--blocks", type=int, default=1024, help="KV blocks of 16 tokens")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--output", type=Path, default=Path("build/sim"))
    return parser.parse_args(argv)


def simulate(
    policy: type[Scheduler],
    load: float,
    options: argparse.Namespace,
    config: EngineConfig,
    tier: Tier | None = None,
) -> list[Run]:
    """One policy at one load, a run for each trace; of one tier alone if so asked."""
    costs = Costs()
    if policy is not Scheduler:
        config = without_refusals(config)
    rate = load * capacity_requests_per_s(costs)
    runs = []
    for seed in range(options.seeds):
        trace = make_trace(seed, requests_per_s=rate, duration_s=options.seconds)
        if tier is not None:
            trace = [arrival for arrival in trace if arrival.tier is tier]
        runs.append(Simulation(policy, config, costs, seed).run(trace))
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run all and say what came of it."""
    options = _parse(argv)
    config = EngineConfig(num_blocks=options.blocks)
    options.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[float, list[Run]]] = {}
    lines: list[list[str]] = []
    worst = max(options.loads)
    alone = simulate(Scheduler, worst, options, config, tier=Tier.VIP)
    lines += [line for line in report.rows(worst, "vip alone", alone) if line[2] == Tier.VIP.value]
    for load in options.loads:
        for name in options.policies:
            runs = simulate(POLICIES[name], load, options, config)
            results.setdefault(name, {})[load] = runs
            lines += report.rows(load, name, runs)
    sys.stdout.write(report.as_table(lines))
    report.write_csv(options.output / "policies.csv", lines)
    by_policy = {name: by_load[worst] for name, by_load in results.items()}
    report.plot_ttft(options.output / "ttft.png", worst, by_policy)
    report.plot_by_load(
        options.output / "vip_ttft.png", "VIP p99 time to first text, s", results, _vip_p99_s
    )
    report.plot_by_load(options.output / "goodput.png", "answer tokens a second", results, _goodput)
    return 0


def _vip_p99_s(runs: Sequence[Run]) -> float:
    vips = [o for run in runs for o in run.outcomes if o.arrival.tier is Tier.VIP]
    return percentile(report.ttfts(vips), 0.99)


def _goodput(runs: Sequence[Run]) -> float:
    return sum(run.goodput for run in runs) / len(runs)


if __name__ == "__main__":
    sys.exit(main())
