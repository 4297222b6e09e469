"""Whether the scheduler keeps its promises under overload, trace by trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.contract import Tier
from load_tests.measure import percentile, table
from load_tests.sim.report import longest_wait_s, ttfts
from load_tests.sim.simulate import Outcome, Run

HEADINGS = (
    *("aim", "limit", "median", "worst trace", "all traces together"),
    "traces within",
)
VIP_LIMIT = 1.2
GOODPUT_LIMIT = 0.97


@dataclass(frozen=True, slots=True)
class TraceRuns:
    """One trace, three ways.

    Attributes:
        loaded: All tiers.
        alone: The same VIP requests at the same times, without the other tiers: what
            is called unloaded.
        fcfs: All tiers, first come first served, nobody refused.
    """

    loaded: Run
    alone: Run
    fcfs: Run


def aims(traces: Sequence[TraceRuns], start_limit_s: float) -> str:
    """A table: VIP times, starts of standard requests, goodput.

    Args:
        traces: One entry a seed.
        start_limit_s: By when an accepted standard request must have started.
    """
    vip = [_vip_p99([t.loaded]) / _vip_p99([t.alone]) for t in traces]
    vip_all = _vip_p99([t.loaded for t in traces]) / _vip_p99([t.alone for t in traces])
    starts = [longest_wait_s(_of(t.loaded, Tier.STANDARD)) for t in traces]
    goodput = [t.loaded.goodput / t.fcfs.goodput for t in traces]
    goodput_all = sum(t.loaded.goodput for t in traces) / sum(t.fcfs.goodput for t in traces)
    return table(
        HEADINGS,
        [
            _row("VIP p99 to first text, of unloaded", VIP_LIMIT, vip, vip_all, max, "{:.2f}x"),
            _row(
                "longest wait for a start, standard",
                start_limit_s,
                starts,
                max(starts),
                max,
                "{:.1f} s",
            ),
            _row("goodput, of FCFS", GOODPUT_LIMIT, goodput, goodput_all, min, "{:.3f}x"),
        ],
    )


def _row(
    aim: str,
    limit: float,
    values: Sequence[float],
    together: float,
    worst: Callable[[Sequence[float]], float],
    form: str,
) -> list[str]:
    most = worst is max
    within = sum((value <= limit) if most else (value >= limit) for value in values)
    shown = [form.format(v) for v in (limit, percentile(values, 0.5), worst(values), together)]
    return [
        aim,
        ("at most " if most else "at least ") + shown[0],
        *shown[1:],
        f"{within} of {len(values)}",
    ]


def _of(run: Run, tier: Tier) -> list[Outcome]:
    return [outcome for outcome in run.outcomes if outcome.arrival.tier is tier]


def _vip_p99(runs: Sequence[Run]) -> float:
    return percentile(ttfts(o for run in runs for o in _of(run, Tier.VIP)), 0.99)
