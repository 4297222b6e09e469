"""Client events that were read and not carried out yet, bounded in number and in size.

asyncio's own queue would do, but keeps kilobytes for each socket that says nothing.
"""

from __future__ import annotations

import asyncio


class EventInbox:
    """A queue of texts between one that reads and one that carries out.

    Args:
        max_events: Held at most; further ones wait outside.
        max_chars: Of all that are held together; one alone may have more.

    Attributes:
        num_chars: Held now, with those being carried out.
    """

    __slots__ = (
        "_arrival",
        "_change",
        "_max_chars",
        "_max_events",
        "_num_open",
        "_texts",
        "num_chars",
    )

    def __init__(self, max_events: int, max_chars: int) -> None:
        self._max_events = max_events
        self._max_chars = max_chars
        self._texts: list[str] = []
        self._num_open = 0
        self._arrival: asyncio.Future[None] | None = None
        # Made by who waits first; set when an event was carried out.
        self._change: asyncio.Event | None = None
        self.num_chars = 0

    async def put(self, text: str) -> None:
        """Hold an event, once there is room for it."""
        while self._num_open and (
            len(self._texts) >= self._max_events or self.num_chars + len(text) > self._max_chars
        ):
            await self._wait_for_change()
        self._num_open += 1
        self.num_chars += len(text)
        self._texts.append(text)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> str:
        """The next event; `done` with the same one tells that it was carried out."""
        while not self._texts:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        return self._texts.pop(0)

    def done(self, text: str) -> None:
        """An event was carried out."""
        self._num_open -= 1
        self.num_chars -= len(text)
        if self._change is not None:
            self._change.set()

    async def join(self) -> None:
        """Wait until all were carried out."""
        while self._num_open:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        if self._change is None:
            self._change = asyncio.Event()
        self._change.clear()
        await self._change.wait()
