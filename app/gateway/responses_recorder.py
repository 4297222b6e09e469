"""Answers of the Responses API on their way to a reader, kept at their end.

What an answer came to is stored before its reader hears of the end, and also when the
reader has left: a response that is stored goes on, one that is not ends with its reader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from app.gateway.responses import Answer, Responses
from app.sessions.stored import ResponseEnd, ResponseStore
from engine.contract import Event, Failed, Finished, ReparteeError

logger = logging.getLogger(__name__)

STORE_TRIES = 4
STORE_RETRY_S = 0.5


class RecordedAnswer:
    """See the module.

    Args:
        answer: The events.
        responses: Where work that outlives the reader runs.
        store: Keeps the end; None for a response that is not stored.
        is_first: It was asked for here, so it is read to its end whoever leaves.

    Attributes:
        end: How it ended, once it has.
    """

    def __init__(
        self,
        answer: Answer,
        responses: Responses,
        store: ResponseStore | None,
        *,
        is_first: bool = True,
    ) -> None:
        self._answer = answer
        self._responses = responses
        self._store = store
        self._is_first = is_first
        self._events: list[Event] = []
        self._terminal: Event | None = None
        self.end: ResponseEnd | None = None

    def __aiter__(self) -> RecordedAnswer:
        return self

    async def __anext__(self) -> Event:
        """The next event; the terminal one comes once the end is kept."""
        event, self._terminal = self._terminal, None
        if event is None:
            event = await anext(self._answer)
        self._events.append(event)
        if isinstance(event, Finished | Failed):
            rid = self._answer.request_id
            self.end = ResponseEnd.of_events(rid, self._events, time.time())
            if self._store is not None:
                # Who is cancelled here leaves; the end is kept all the same.
                await asyncio.shield(self._responses.spawn(self._keep(self._store, self.end)))
            self._events.clear()
        return event

    def drain_pending(self) -> list[Event]:
        """Events that have arrived, without waiting; the terminal one is waited for."""
        events = self._answer.drain_pending()
        if events and isinstance(events[-1], Finished | Failed):
            self._terminal = events.pop()
        self._events += events
        return events

    def leave(self) -> None:
        """The reader reads no more."""
        if self.end is not None:
            return
        if self._store is None:
            self._answer.abandon()
        elif self._is_first:
            self._responses.spawn(self._read_on())
        else:
            self._responses.spawn(self._answer.detach())

    async def _read_on(self) -> None:
        async for _ in self:
            pass

    @property
    def ended_at(self) -> float | None:
        """Unix seconds of the end, once it has ended."""
        return None if self.end is None else self.end.ended_at

    async def _keep(self, store: ResponseStore, end: ResponseEnd) -> None:
        for number in range(1, STORE_TRIES + 1):
            try:
                await store.finish(self._answer.request_id, end)
                return
            except ReparteeError as error:
                logger.warning("%s is not kept yet: %s", self._answer.request_id, error)
                if number < STORE_TRIES:
                    await asyncio.sleep(STORE_RETRY_S * number)
        logger.error("response %s could not be kept", self._answer.request_id)


class Replay:
    """Events of a response that has ended, as if they came now.

    Args:
        response_id: Which.
        end: How it ended.

    Attributes:
        end: The same.
    """

    def __init__(self, response_id: str, end: ResponseEnd) -> None:
        self.end: ResponseEnd | None = end
        self.ended_at: float | None = end.ended_at
        self._events = deque(end.events(response_id))

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    def drain_pending(self) -> list[Event]:
        """All that is left."""
        events = list(self._events)
        self._events.clear()
        return events

    def leave(self) -> None:
        """Nothing goes on."""
