"""Keeps strangers from filling the log: of one kind of line, a few a minute.

uvicorn warns of each request that is no HTTP, and a stranger can send thousands a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 10
WINDOW_S = 60.0


@dataclass(slots=True)
class _Window:
    began_at: float
    num_passed: int = 0
    num_dropped: int = 0


class RepeatFilter(logging.Filter):
    """Passes BURST lines of each message in a window; the next one tells how many it dropped.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By message before its arguments are filled in, of which there are few.
        self._windows: dict[str, _Window] = {}

    def forget(self) -> None:
        """Begin anew."""
        self._windows.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        now, message = self._clock(), str(record.msg)
        window = self._windows.get(message)
        dropped = 0
        if window is None or now - window.began_at >= WINDOW_S:
            dropped = 0 if window is None else window.num_dropped
            window = self._windows[message] = _Window(now)
        if window.num_passed >= BURST:
            window.num_dropped += 1
            return False
        window.num_passed += 1
        if dropped:
            record.msg = f"{message} ({dropped} more like it before)"
        return True


# uvicorn's loggers are the process's, and so is the filter.
server_lines = RepeatFilter()
