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

from engine.cuda_chunk import DecodeChunk, Rows, Segment

_NEW_SHARE = 0.25


@dataclass(slots=True)
class Ahead:
    """Steps under way that no plan has asked for.

    Attributes:
        chunk: Whose rows they are.
        segment: The steps.
        rows: Of each row: its sequence's id, how often it had been suspended, and the
            position that the first of these steps computes.
    """

    chunk: DecodeChunk
    segment: Segment
    rows: list[tuple[int, int, int]]

    def find(self, work: Rows) -> list[int] | None:
        """Which row each of `work` is, in order; None where one of them is not there."""
        places = {key: row for row, key in enumerate(self.rows)}
        found = []
        for item, _ in work:
            row = places.get((item.sequence.id, item.sequence.num_suspensions, item.start))
            if row is None or not self._is_whole(row):
                return None
            found.append(row)
        return found

    def tokens(self, places: list[int]) -> list[list[int]]:
        """The tokens of the rows at `places`; waits for them."""
        made = self.segment.wait()
        return [made[place] for place in places]

    def is_continued(self, places: list[int]) -> bool:
        """Whether the device's rows are those of `places`, and can go on as they are."""
        return len(places) == len(self.rows) and all(
            place == row and self.chunk.reaches(row, self._end(row))
            for row, place in enumerate(places)
        )

    def _end(self, row: int) -> int:
        return self.rows[row][2] + self.segment.num_steps

    def _is_whole(self, row: int) -> bool:
        # A row that came to its limit repeats itself from there on.
        return self.chunk.reaches(row, self._end(row) - 1)


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


def covered(work: Rows, chunk: DecodeChunk, num_steps: int, num_ahead: int) -> bool:
    """Whether steps ahead are of use: some sequence of `work` goes on after the plan."""
    return num_ahead > 0 and any(
        chunk.reaches(row, item.start + num_steps) for row, (item, _) in enumerate(work)
    )
