"""Client events that have come and are not carried out yet: in order, one after the other.

Bounded in number and in size. The task that carries them out lives only while there are
any, so a socket that says nothing costs none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from app.gateway.throttle import Throttle

CarryOut = Callable[[str], Coroutine[Any, Any, None]]


class Source(Protocol):
    """Where events come from, and whose tasks carry them out."""

    def pause_reading(self) -> None:
        """No more for now."""

    def resume_reading(self) -> None:
        """There is room again."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of this source."""


class EventInbox:
    """See the module.

    Args:
        source: Where events come from.
        throttles: Each event waits for all of them first.
        max_events: Held before the source is paused.
        max_chars: Of all that are held together before the source is paused.

    Attributes:
        num_chars: Held now, with those being carried out.
    """

    __slots__ = (
        "_is_paused",
        "_max_chars",
        "_max_events",
        "_source",
        "_task",
        "_texts",
        "_throttles",
        "num_chars",
    )

    def __init__(
        self,
        source: Source,
        throttles: Sequence[Throttle],
        max_events: int,
        max_chars: int,
    ) -> None:
        self._source = source
        self._throttles = throttles
        self._max_events = max_events
        self._max_chars = max_chars
        # A deque takes 760 bytes even empty.
        self._texts: deque[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_paused = False
        self.num_chars = 0

    def put(self, text: str, carry_out: CarryOut) -> None:
        """Hold an event; the source is paused while there is no room for more.

        Args:
            text: The event.
            carry_out: Carries it out, and all that come before none is left; raises
                nothing. It is not kept beyond that: it may belong to whose inbox this is.
        """
        if self._texts is None:
            self._texts = deque()
        self._texts.append(text)
        self.num_chars += len(text)
        if not self._is_paused and self._is_full(self._texts):
            self._is_paused = True
            self._source.pause_reading()
        if self._task is None:
            self._task = self._source.spawn(self._work(carry_out))

    def _is_full(self, texts: deque[str]) -> bool:
        return len(texts) >= self._max_events or self.num_chars >= self._max_chars

    async def _work(self, carry_out: CarryOut) -> None:
        try:
            while self._texts:
                for throttle in self._throttles:
                    await throttle.wait()
                await carry_out(self._texts[0])
                self.num_chars -= len(self._texts.popleft())
                if self._is_paused and not self._is_full(self._texts):
                    self._is_paused = False
                    self._source.resume_reading()
        finally:
            self._task = self._texts = None

    async def close(self, timeout_s: float) -> None:
        """The source has ended: let what it has said be carried out, for so long."""
        task = self._task
        if task is not None:
            _, late = await asyncio.wait({task}, timeout=timeout_s)
            if late:
                task.cancel()
                await asyncio.wait(late)
