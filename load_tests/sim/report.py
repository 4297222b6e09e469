"""What the simulations say: a table, a CSV file and two plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from engine.contract import Tier
from load_tests.measure import percentile, table
from load_tests.sim.simulate import Outcome, Run

HEADINGS = (
    *("load", "policy", "tier", "requests", "refused", "TTFT p50 s", "TTFT p99 s"),
    *("wait max s", "gap p99 ms", "goodput tok/s", "suspensions"),
)


def rows(load: float, policy: str, runs: Sequence[Run]) -> list[list[str]]:
    """One line for each tier."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    goodput = sum(run.goodput for run in runs) / len(runs)
    suspensions = sum(run.num_suspensions for run in runs)
    lines = []
    for tier in Tier:
        those = [outcome for outcome in outcomes if outcome.arrival.tier is tier]
        gaps = [gap for outcome in those for gap in outcome.gaps_s]
        lines.append(
            [
                f"{load:g}x",
                policy,
                tier.value,
                str(len(those)),
                str(sum(outcome.refused_retry_ms is not None for outcome in those)),
                f"{percentile(ttfts(those), 0.5):.2f}",
                f"{percentile(ttfts(those), 0.99):.2f}",
                f"{longest_wait_s(those):.1f}",
                f"{percentile(gaps, 0.99) * 1000:.0f}",
                f"{goodput:.0f}",
                str(suspensions),
            ]
        )
    return lines


def ttfts(outcomes: Iterable[Outcome]) -> list[float]:
    """Seconds to the first text, of those that got there."""
    return [outcome.ttft_s for outcome in outcomes if not math.isnan(outcome.ttft_s)]


def longest_wait_s(outcomes: Iterable[Outcome]) -> float:
    """The longest wait for a start; 0 if none started."""
    waits = [o.start_wait_s for o in outcomes if not math.isnan(o.start_wait_s)]
    return max(waits, default=0.0)


def as_table(lines: Iterable[Sequence[str]]) -> str:
    """The table as Markdown."""
    return table(HEADINGS, lines)


def write_csv(path: Path, lines: Iterable[Sequence[str]]) -> None:
    """The same lines for programs."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADINGS)
        writer.writerows(lines)


def plot_ttft(path: Path, load: float, runs: Mapping[str, Sequence[Run]]) -> None:
    """Share of requests with a first text by then, one panel a tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, tier in zip(panels, Tier, strict=True):
        for policy, policy_runs in runs.items():
            outcomes = [o for run in policy_runs for o in run.outcomes if o.arrival.tier is tier]
            values = sorted(ttfts(outcomes))
            if values:
                shares = [(i + 1) / len(values) for i in range(len(values))]
                panel.plot(values, shares, label=policy)
        panel.set_title(f"{tier.value}, {load:g}x load")
        panel.set_xlabel("time to first text, s")
        panel.set_xscale("log")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share of answered requests")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def plot_by_load(
    path: Path,
    label: str,
    results: Mapping[str, Mapping[float, Sequence[Run]]],
    value: Callable[[Sequence[Run]], float],
) -> None:
    """One figure of merit over the load, a line a policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    for policy, by_load in results.items():
        panel.plot(list(by_load), [value(runs) for runs in by_load.values()], "o-", label=policy)
    panel.set_xlabel("load, multiples of the capacity")
    panel.set_ylabel(label)
    panel.set_yscale("log")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)
