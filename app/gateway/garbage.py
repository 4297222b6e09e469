"""When the process looks for garbage: often where little is new, everything only at leisure.

A full collection of Python's stops the process for as long as it takes to visit all that
lives, a second with ten thousand open sockets, and by itself it comes whenever a quarter
was added. Here what has outlived a collection is put aside (`gc.freeze`): collections
visit what is new, which is little. References counted free nearly everything anyway, put
aside or not. Only cycles among what was put aside need a full collection. It comes when
memory has grown, but no answer runs and nothing grows any more, and at the latest when
memory has doubled since the last one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# A collection of all that is new visits about the product of these: some milliseconds.
THRESHOLDS = (1000, 5, 2)
LOOK_S = 2.0
# Growth of the number of memory blocks since the last full collection.
AT_LEISURE_GROWTH = 1.25
AT_LAST_GROWTH = 2.0
# And by so many blocks at least, some 30 MB: a small process doubles soon, but what strangers
# send and nobody uses must not add up either.
AT_LAST_BLOCKS = 300_000
# From one look to the next, where nothing is going on.
STEADY_GROWTH = 1.01


class GarbageSchedule:
    """One process's.

    Args:
        is_idle: Whether nobody waits for what this process does.
        blocks: How many blocks of memory live.
        least_blocks: See AT_LAST_BLOCKS.

    Attributes:
        longest_s: The longest full collection.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        *,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        least_blocks: int = AT_LAST_BLOCKS,
    ) -> None:
        self._is_idle = is_idle
        self._blocks = blocks
        self._least_blocks = least_blocks
        self._thresholds = gc.get_threshold()
        self._blocks_then = 0
        self._blocks_before = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        """Keep to the schedule until cancelled; Python's own returns then."""
        gc.callbacks.append(_put_aside)
        gc.set_threshold(*THRESHOLDS)
        try:
            self.collect()
            while True:
                await asyncio.sleep(LOOK_S)
                self.look()
        finally:
            gc.callbacks.remove(_put_aside)
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()

    def look(self) -> None:
        """Collect everything if it is time to."""
        blocks, before = self._blocks(), self._blocks_before
        self._blocks_before = blocks
        is_at_leisure = self._is_idle() and blocks < STEADY_GROWTH * before
        then = self._blocks_then
        due = max(AT_LAST_GROWTH * then, then + self._least_blocks)
        if blocks > (AT_LEISURE_GROWTH * then if is_at_leisure else due):
            self.collect()

    def collect(self) -> None:
        """Collect everything now."""
        started = time.perf_counter()
        gc.unfreeze()
        num_found = gc.collect()
        gc.freeze()
        took_s = time.perf_counter() - started
        self._blocks_then = self._blocks()
        self.longest_s = max(self.longest_s, took_s)
        logger.debug("full collection: %d objects in %.3f s", num_found, took_s)


def _put_aside(phase: str, info: dict[str, int]) -> None:
    """What a collection of all that is new has left, lives long."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
