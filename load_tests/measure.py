"""Medians, spreads and tables for the benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share else 0)]


def median(values: Iterable[float]) -> float:
    """The median; NaN if there are no values."""
    listed = list(values)
    return statistics.median(listed) if listed else math.nan


def spread(values: Sequence[float], digits: int = 1) -> str:
    """`median (least-most)` over the rounds."""
    if not values:
        return "-"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    texts = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]]) + "\n"
