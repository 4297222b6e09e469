"""`python -m load_tests.plot_steps trace.json steps.png`: the parts of each step, stacked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.step_trace import PARTS


def plot(trace: dict[str, Any], path: Path) -> None:
    """Write a PNG.

    Args:
        trace: As `engine.step_trace.chrome_trace` makes it.
        path: Where to.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    panel = figure.subplots()
    slices = {part: _lengths_ms(trace, part) for part in PARTS}
    numbers = range(len(slices[PARTS[0]]))
    panel.stackplot(numbers, list(slices.values()), labels=PARTS, step="mid")
    panel.set_xlabel("step")
    panel.set_ylabel("milliseconds")
    panel.legend(fontsize="small", loc="upper right")
    figure.savefig(path, dpi=110)


def _lengths_ms(trace: dict[str, Any], part: str) -> list[float]:
    return [event["dur"] / 1000 for event in trace["traceEvents"] if event["name"] == part]


def main(argv: Sequence[str] | None = None) -> int:
    """Read, plot, write."""
    parser = argparse.ArgumentParser(prog="python -m load_tests.plot_steps", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("plot", type=Path)
    options = parser.parse_args(argv)
    plot(json.loads(options.trace.read_text()), options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
