"""Tokens made ahead of the plan that asks for them, so that the GPU doesn't wait for the host.

After the steps that a plan asks for, a few more are launched for the same sequences, as
many as take about the time that the host needs until the next plan. What they sample
depends on nothing but the tokens before, so the next plan finds them done, or, where it
holds other sequences, they are dropped and made again. They write KV only into blocks
that their own sequence held when they were launched; whoever is given those blocks later
writes later too, for the GPU runs one thing after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda_chunk import DecodeChunk, Segment
from engine.cuda_rows import Rows

_NEW_SHARE = 0.25


@dataclass(slots=True)
class Ahead:
    """Steps under way that no plan has asked for.

    Attributes:
        chunk: Whose rows they are.
        segment: The steps.
        rows: Which row is whose: by the sequence's id, how often it had been suspended,
            and the position that the first of these steps computes.
    """

    chunk: DecodeChunk
    segment: Segment
    rows: dict[tuple[int, int, int], int]

    def find(self, work: Rows) -> list[int | None]:
        """Which row each of `work` is, in order; None where its tokens are not there."""
        found: list[int | None] = []
        for item in work:
            row = self.rows.get((item.sequence.id, item.sequence.num_suspensions, item.start))
            last = item.start + self.segment.num_steps - 1
            # A row that came to its limit repeats itself from there on.
            found.append(row if row is not None and self.chunk.reaches(row, last) else None)
        return found

    def tokens(self, found: list[int | None]) -> list[list[int]]:
        """The tokens of the rows in `found`; waits for them."""
        made = self.segment.wait()
        return [[] if row is None else made[row] for row in found]

    def can_go_on(self, work: Rows, found: list[int | None]) -> bool:
        """Whether the device itself has put each found row where its next step begins."""
        return all(
            row is None or self.chunk.reaches(row, item.start + self.segment.num_steps)
            for item, row in zip(work, found, strict=True)
        )


class AheadLength:
    """How many steps are launched ahead, from the times of steps and of the host.

    Args:
        most: Steps at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._host_s = 0.0
        self._step_s = 0.0
        self._returned_at: float | None = None

    def plan_came(self, now: float) -> None:
        """A plan came that goes on where the last one ended."""
        if self._returned_at is not None:
            self._host_s += _NEW_SHARE * (now - self._returned_at - self._host_s)

    def plan_done(self, now: float, took_s: float, num_steps: int) -> None:
        """A plan's steps are done, `num_steps` in `took_s`; 0 for one of another kind."""
        self._returned_at = now if num_steps else None
        if num_steps:
            self._step_s += _NEW_SHARE * (took_s / num_steps - self._step_s)

    @property
    def num_steps(self) -> int:
        """Steps to launch ahead: what covers the host's time, and one at least."""
        if self._step_s <= 0.0:
            return min(1, self._most)
        return max(min(1, self._most), min(self._most, -int(-self._host_s // self._step_s)))
