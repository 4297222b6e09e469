"""One listener's ordered view of one response: each event once, in order.

Events come from two sides, the gateway's inbox and the response's log, and may be
repeated by either. The stream takes what comes next by `seq`, drops what it has, and
says when something is missing, so that its owner reads the log.

A response that another worker takes over goes on under the next epoch, from the seq
after the last. Where Redis had lost the end of the log, it goes on from before that:
the stream then starts over and leaves out the text that it has shown.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine.contract import Accepted, Cursor, Delta, Event, Failed, Finished, TakenOver

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
        expires_at: Monotonic time after which the answer is no longer wanted, if known.
        heard_at: Monotonic time of the last event taken in, or of the start.
        has_gap: An event came whose predecessor is missing.
        is_ahead: It took in what the log has lost; see `start_over`.
        is_ended: The terminal event was taken in, or the stream was closed.
    """

    __slots__ = (
        "_fault",
        "_is_accepted",
        "_num_chars",
        "_num_known",
        "_on_close",
        "_on_delta",
        "_on_moved",
        "_pending",
        "_waiter",
        "cursor",
        "expires_at",
        "has_gap",
        "heard_at",
        "is_ahead",
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
        on_moved: Callable[[ResponseStream], None],
    ) -> None:
        self.request_id = request_id
        self.cursor = after
        self.worker_id = worker_id
        self.heard_at = time.monotonic()
        # The wall's clock may be set while the answer is made.
        left_s = None if deadline_at is None else deadline_at - time.time()
        self.expires_at = None if left_s is None else self.heard_at + left_s
        self.has_gap = False
        self.is_ahead = False
        self.is_ended = False
        self._on_close = on_close
        self._on_moved = on_moved
        self._on_delta: Callable[[Delta], None] | None = None
        self._fault: Exception | None = None
        self._is_accepted = after.epoch > 0
        # Characters up to the cursor, and of those that were shown in all.
        self._num_chars = self._num_known = 0
        self._pending: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def next_seq(self) -> int:
        """The seq that comes next."""
        return self.cursor.seq + 1 if self.cursor.epoch else 0

    def deliver(self, on_delta: Callable[[Delta], None]) -> None:
        """Hand deltas over as they come in, instead of waking whoever iterates for each.

        What is pending goes to the iterator first, and so does, in its order, every event
        of another kind.

        Args:
            on_delta: What it raises is raised to the iterator.
        """
        if not self.is_ended:
            self._on_delta = on_delta

    def take(self, event: Event) -> bool:
        """Take an event in if it comes next; False if an earlier one is missing."""
        epoch, seq = self.cursor
        if self.is_ended or event.epoch < epoch:
            return True
        next_seq = seq + 1 if epoch else 0
        is_next_lease = event.epoch > epoch > 0
        if event.seq < next_seq:
            if is_next_lease:
                self.has_gap = self.is_ahead = True
            return not is_next_lease
        # A lease begins with its TakenOver, but for one that only ends the response.
        is_cut = is_next_lease and not isinstance(event, TakenOver | Finished | Failed)
        if event.seq > next_seq or is_cut:
            self.has_gap = True
            return False
        self.cursor = Cursor(event.epoch, event.seq)
        self.heard_at = time.monotonic()
        self._show(event)
        return True

    def start_over(self) -> None:
        """Take the log in from its start, without showing anything twice."""
        self.cursor = Cursor(0, 0)
        self.is_ahead = False
        self._num_chars = 0

    def _show(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._show_delta(event)
            return
        if isinstance(event, TakenOver):
            self.worker_id = event.worker_id
            self._on_moved(self)
            return
        if isinstance(event, Accepted):
            if self._is_accepted:
                return
            self._is_accepted = True
        self._put(event)

    def _show_delta(self, event: Delta) -> None:
        num_shown = self._num_known - self._num_chars
        self._num_chars += len(event.text)
        if num_shown > 0:
            self._num_known = max(self._num_known, self._num_chars)
            if num_shown >= len(event.text):
                return
            event = replace(event, text=event.text[num_shown:])
        else:
            self._num_known = self._num_chars
        if self._on_delta is None or self._pending:
            self._put(event)
            return
        try:
            self._on_delta(event)
        except Exception as error:
            self._fault = error
            self.end()

    def _put(self, event: Event) -> None:
        self._pending.append(event)
        if len(self._pending) > MERGE_ABOVE:
            self._merge()
        if isinstance(event, Finished | Failed):
            self._end()
        self._notify()

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
            if self._fault is not None:
                raise self._fault
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
            self._end()
        self._notify()

    def _end(self) -> None:
        self.is_ended = True
        # It refers to whoever holds this stream.
        self._on_delta = None
        self._on_close(self)
