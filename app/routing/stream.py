"""One listener's ordered view of one response: each event once, in order.

Events come from two sides, the gateway's inbox and the response's log, and may be
repeated by either. The stream takes what comes next by `seq`, drops what it has, and
says when something is missing, so that its owner reads the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine.contract import Cursor, Delta, Event, Failed, Finished

# Pending events above which neighbouring deltas are merged: a listener that doesn't
# read costs the text of its answer and little more. A whole answer in chunks of four
# tokens stays below it, so that who resumes one finds every place in it.
MERGE_ABOVE = 2048


class ResponseStream:
    """Iterate for the response's events; ends after the terminal event.

    Closing stops listening and does not cancel. One task iterates at a time.

    Attributes:
        request_id: Whose events.
        cursor: The last event taken in, delivered or pending.
        worker_id: Who makes them; None if not known.
        deadline_at: Unix seconds after which the answer is no longer wanted, if known.
        heard_at: Monotonic time of the last event taken in, or of the start.
        has_gap: An event came whose predecessor is missing.
        is_ended: The terminal event was taken in, or the stream was closed.
    """

    __slots__ = (
        "_on_close",
        "_pending",
        "_waiter",
        "cursor",
        "deadline_at",
        "has_gap",
        "heard_at",
        "is_ended",
        "request_id",
        "worker_id",
    )

    def __init__(
        self,
        request_id: str,
        *,
        after: Cursor,
        worker_id: str | None,
        deadline_at: float | None,
        on_close: Callable[[ResponseStream], None],
    ) -> None:
        self.request_id = request_id
        self.cursor = after
        self.worker_id = worker_id
        self.deadline_at = deadline_at
        self.heard_at = time.monotonic()
        self.has_gap = False
        self.is_ended = False
        self._on_close = on_close
        self._pending: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def next_seq(self) -> int:
        """The seq that comes next."""
        return self.cursor.seq + 1 if self.cursor.epoch else 0

    def take(self, event: Event) -> bool:
        """Take an event in if it comes next; False if an earlier one is missing."""
        if self.is_ended or event.epoch < self.cursor.epoch or event.seq < self.next_seq:
            return True
        if event.seq > self.next_seq:
            self.has_gap = True
            return False
        self.cursor = Cursor(event.epoch, event.seq)
        self.heard_at = time.monotonic()
        self._pending.append(event)
        if len(self._pending) > MERGE_ABOVE:
            self._merge()
        if isinstance(event, Finished | Failed):
            self.is_ended = True
            self._on_close(self)
        self._notify()
        return True

    def take_last(self, event: Finished | Failed) -> None:
        """Take a terminal event in whatever came before it, unless there was one."""
        if not self.is_ended:
            epoch = max(event.epoch, self.cursor.epoch)
            self.take(replace(event, epoch=epoch, seq=self.next_seq))

    def _merge(self) -> None:
        merged: deque[Event] = deque()
        for event in self._pending:
            last = merged[-1] if merged else None
            if isinstance(event, Delta) and isinstance(last, Delta):
                merged[-1] = Delta(
                    event.request_id,
                    event.epoch,
                    event.seq,
                    last.text + event.text,
                    last.num_tokens + event.num_tokens,
                )
            else:
                merged.append(event)
        self._pending = merged

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> Event:
        while not self._pending:
            if self.is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pending.popleft()

    def drain_pending(self) -> list[Event]:
        """What has already arrived, without waiting."""
        events = list(self._pending)
        self._pending.clear()
        return events

    async def close(self) -> None:
        """Stop listening; what has not been read is dropped."""
        self._pending.clear()
        self.end()

    def end(self) -> None:
        """No more events come; what is pending can still be read."""
        if not self.is_ended:
            self.is_ended = True
            self._on_close(self)
        self._notify()
