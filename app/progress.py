"""The line that shows how far start-up has come."""

from __future__ import annotations

import math
import time
from typing import TextIO

# Into a log file goes a line at most this often.
LOG_EVERY_S = 5.0


class Progress:
    """On a terminal one line that is written over; elsewhere a line now and then.

    Args:
        stream: Where it is shown; standard error, so that standard output holds
            the ready line alone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._started = time.monotonic()
        self._stage = ""
        self._done = math.nan
        self._width = 0
        self._logged_at = -LOG_EVERY_S

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def show(self, stage: str, done: float = math.nan) -> None:
        """Show `stage`; `done` is its finished share from 0 to 1, NaN if unknown."""
        self._stage, self._done = stage, done
        if self._is_terminal:
            self.tick()
        elif self.elapsed_s - self._logged_at >= LOG_EVERY_S:
            self._logged_at = self.elapsed_s
            self._stream.write(f"{self._text()}\n")
            self._stream.flush()

    def tick(self) -> None:
        """Bring the seconds on a terminal up to date."""
        if not self._is_terminal:
            return
        text = self._text()
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _text(self) -> str:
        share = "" if math.isnan(self._done) else f" {min(max(self._done, 0.0), 1.0):4.0%}"
        return f"{self._stage}{share}  {self.elapsed_s:.0f} s"

    def clear(self) -> None:
        """Leave the terminal's line empty for whatever comes next."""
        if self._is_terminal and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
