"""Whole conversations on their way to clients, page by page as each is read.

A conversation may be megabytes. Written at once it would wait in memory for a client that
never reads, and for as many clients as an attacker cares to open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from app.gateway.writer import SLOW_CODE, SLOW_REASON

# How long a client may take to read a page.
PAGE_TIMEOUT_S = 10.0
# Pages that wait for their client to read those before, on all sockets together.
MAX_WAITING_BYTES = 64 * 1024 * 1024


class Reader(Protocol):
    """A socket's connection.

    Attributes:
        is_congested: Whether its peer has yet to read what was written.
    """

    @property
    def is_congested(self) -> bool:
        """See above."""

    async def drained(self) -> None:
        """Wait until it has, or the socket has ended."""


class PageWriter(Protocol):
    """A socket's writer."""

    def send(self, frame: bytes) -> None:
        """Write one frame, or queue it."""

    def close(self, code: int, reason: str) -> None:
        """End the socket."""


class Snapshots:
    """Those of all sockets.

    Args:
        page_timeout_s: How long a client may take to read a page.
        max_waiting_bytes: Bound of all pages that wait.

    Attributes:
        page_timeout_s: See above.
        max_waiting_bytes: See above.
        waiting_bytes: Pages that wait now.
    """

    def __init__(
        self,
        page_timeout_s: float = PAGE_TIMEOUT_S,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.page_timeout_s = page_timeout_s
        self.max_waiting_bytes = max_waiting_bytes
        self.waiting_bytes = 0

    async def send(self, reader: Reader, writer: PageWriter, pages: Sequence[bytes]) -> None:
        """Write pages in order; a client that doesn't read them is closed.

        Args:
            reader: Reads them.
            writer: Its socket's.
            pages: One frame each.
        """
        waiting = list(reversed(pages))
        while waiting:
            if reader.is_congested and not await self._wait(reader, waiting):
                writer.close(SLOW_CODE, SLOW_REASON)
                return
            writer.send(waiting.pop())

    async def _wait(self, reader: Reader, pages: Sequence[bytes]) -> bool:
        """Whether the reader has read what was written before these pages, in time."""
        num_bytes = sum(len(page) for page in pages)
        if self.waiting_bytes + num_bytes > self.max_waiting_bytes:
            return False
        self.waiting_bytes += num_bytes
        try:
            async with asyncio.timeout(self.page_timeout_s):
                await reader.drained()
        except TimeoutError:
            return False
        finally:
            self.waiting_bytes -= num_bytes
        return True
