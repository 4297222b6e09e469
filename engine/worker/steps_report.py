"""On SIGUSR2: where the latest steps' time went, and whether the bookkeeping agrees.

Written into a new folder of the system's temporary directory: `steps.json`, a trace for
chrome://tracing or Perfetto, `steps.svg`, a drawing, and `steps.md`, a table. The log says
where, and what the engine's invariant checker found.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections import deque
from pathlib import Path

from engine.step_plot import svg
from engine.step_trace import EngineReport, breakdown, chrome_trace, with_publishes

logger = logging.getLogger(__name__)

# Writes remembered; as many as steps.
_MAX_WRITES = 512


class StepsReport:
    """Remembers when events were written, and writes reports."""

    def __init__(self) -> None:
        self._writes: deque[tuple[float, float]] = deque(maxlen=_MAX_WRITES)

    def note_write(self, started_s: float) -> None:
        """Events were handed to Redis, from `started_s` of the monotonic clock until now."""
        self._writes.append((started_s, time.monotonic() - started_s))

    def write(self, report: EngineReport) -> Path | None:
        """Write files for one report; None if they can't be written."""
        if report.fault:
            logger.error("the engine's bookkeeping disagrees: %s", report.fault)
        else:
            logger.info("the engine's bookkeeping agrees")
        records = with_publishes(report.records, self._writes)
        try:
            folder = Path(tempfile.mkdtemp(prefix="repartee-steps-"))
            (folder / "steps.json").write_text(json.dumps(chrome_trace(records)))
            (folder / "steps.svg").write_text(svg(records))
            (folder / "steps.md").write_text(breakdown(records))
        except OSError as error:
            logger.error("no report of the steps: %s", error)
            return None
        logger.info("%d steps in %s", len(records), folder)
        return folder
