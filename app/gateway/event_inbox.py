"""Client events that were read and not carried out yet, bounded in number and in size."""

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

    def __init__(self, max_events: int, max_chars: int) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue(max_events)
        self._max_chars = max_chars
        self._room = asyncio.Event()
        self.num_chars = 0

    async def put(self, text: str) -> None:
        """Hold an event, once there is room for it."""
        while self.num_chars and self.num_chars + len(text) > self._max_chars:
            self._room.clear()
            await self._room.wait()
        self.num_chars += len(text)
        await self._queue.put(text)

    async def get(self) -> str:
        """The next event; `done` with the same one tells that it was carried out."""
        return await self._queue.get()

    def done(self, text: str) -> None:
        """An event was carried out."""
        self.num_chars -= len(text)
        self._room.set()
        self._queue.task_done()

    async def join(self) -> None:
        """Wait until all were carried out."""
        await self._queue.join()
