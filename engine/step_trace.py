"""Where the time of the latest steps went, and two ways to look at it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.step import StepTimes

# In the order in which they follow each other in a step.
PARTS = tuple(part.name.removesuffix("_s") for part in fields(StepTimes))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        started_s: On the engine's clock, seconds.
        times: Where its time went.
        num_sequences: Sequences that it computed something for.
        num_tokens: Tokens computed.
        num_sampled: Tokens sampled.
    """

    started_s: float
    times: StepTimes
    num_sequences: int
    num_tokens: int
    num_sampled: int

    def part_s(self, part: str) -> float:
        """Seconds of one of `PARTS`."""
        return float(getattr(self.times, f"{part}_s"))

    @property
    def total_s(self) -> float:
        return sum(self.part_s(part) for part in PARTS)


class StepTrace:
    """The latest steps; older ones fall out.

    Args:
        capacity: Steps kept.
    """

    def __init__(self, capacity: int = 512) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)
        self._num_added = 0

    def add(self, record: StepRecord) -> None:
        """Add the step that just ended."""
        self._records.append(record)
        self._num_added += 1

    @property
    def num_added(self) -> int:
        """Steps since the start, those that fell out included."""
        return self._num_added

    @property
    def records(self) -> list[StepRecord]:
        """Oldest first."""
        return list(self._records)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine looked at between two steps.

    Attributes:
        records: Its latest steps, oldest first.
        fault: What its invariant checker found; empty if all agrees.
    """

    records: list[StepRecord]
    fault: str


def with_publishes(
    records: Sequence[StepRecord], publishes: Iterable[tuple[float, float]]
) -> list[StepRecord]:
    """The steps, each with the time of the writes that began after it and before the next.

    Args:
        records: Oldest first.
        publishes: (start, length) of each write, seconds on the engine's clock. A write
            goes on beside the next step; in the trace it follows its own.
    """
    starts = [record.started_s for record in records]
    lengths = [0.0] * len(records)
    for started_s, length_s in publishes:
        index = bisect_right(starts, started_s) - 1
        if index >= 0:
            lengths[index] += length_s
    return [
        replace(record, times=replace(record.times, publish_s=length_s))
        for record, length_s in zip(records, lengths, strict=True)
    ]


def breakdown(records: Iterable[StepRecord]) -> str:
    """A Markdown table of the parts: total, share, median and 99th percentile a step."""
    listed = list(records)
    whole_s = sum(record.total_s for record in listed) or 1.0
    lines = [
        "| part     | total ms | share  | p50 ms  | p99 ms  |",
        "|----------|----------|--------|---------|---------|",
    ]
    for part in (*PARTS, "step"):
        times = sorted(r.total_s if part == "step" else r.part_s(part) for r in listed)
        lines.append(
            f"| {part:<8} | {sum(times) * 1000:>8.1f} | {sum(times) / whole_s:>6.1%} "
            f"| {_at(times, 0.5) * 1000:>7.3f} | {_at(times, 0.99) * 1000:>7.3f} |"
        )
    return "\n".join(lines) + "\n"


def chrome_trace(records: Iterable[StepRecord]) -> dict[str, Any]:
    """The steps for chrome://tracing or Perfetto: a slice for each step and each part."""
    events: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        sizes = {
            "sequences": record.num_sequences,
            "tokens": record.num_tokens,
            "sampled": record.num_sampled,
        }
        at_s = record.started_s
        events.append(_slice(f"step {number}", at_s, record.total_s, 0, sizes))
        for part in PARTS:
            events.append(_slice(part, at_s, record.part_s(part), 1, {}))
            at_s += record.part_s(part)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(name: str, at_s: float, length_s: float, thread: int, args: dict[str, int]) -> Any:
    microseconds = {"ts": at_s * 1e6, "dur": length_s * 1e6}
    return {"name": name, "ph": "X", "pid": 0, "tid": thread, "args": args, **microseconds}


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
