"""The streams of one gateway: fed from its inbox, mended from logs, ended in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import RedisError

from app.routing.log import READ_COUNT, ResponseLog
from app.routing.stream import ResponseStream
from engine.contract import (
    Cursor,
    DeadlineExceeded,
    Event,
    Failed,
    ReparteeError,
    Unavailable,
)

logger = logging.getLogger(__name__)

# How long a stream must be silent before its log is looked at, and how many at once.
SILENT_S = 2.0
MAX_SWEPT = 500

# A worker ends a response at its deadline; past this, the gateway does it in the log, and
# past that, should Redis not take it, for its own listeners alone.
DEADLINE_GRACE_S = 3.0
LAST_GRACE_S = 10.0

# A gap that neither log nor worker has filled for so long is a lost answer.
GAP_S = 8.0


class Listeners:
    """Streams by request id.

    Args:
        log: Where what is missing can be read.
        on_closed: Called with each stream that has ended or was closed.
        on_abandoned: Called with a stream that the gateway gave up on: its worker
            may still be at it.
        on_moved: Called with a stream whose response another worker took over.
        on_hole: Called with a stream that misses what its log lacks.
    """

    def __init__(
        self,
        log: ResponseLog,
        *,
        on_closed: Callable[[ResponseStream], None],
        on_abandoned: Callable[[ResponseStream], None],
        on_moved: Callable[[ResponseStream], None],
        on_hole: Callable[[ResponseStream], None],
    ) -> None:
        self._log = log
        self._on_closed = on_closed
        self._on_abandoned = on_abandoned
        self._on_moved = on_moved
        self._on_hole = on_hole
        self._streams: dict[str, list[ResponseStream]] = {}
        self._repairing: set[ResponseStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def of(self, request_id: str) -> Sequence[ResponseStream]:
        """Open streams of one response."""
        return tuple(self._streams.get(request_id, ()))

    def all(self) -> list[ResponseStream]:
        """Every open stream."""
        return [stream for streams in self._streams.values() for stream in streams]

    def open(
        self,
        request_id: str,
        *,
        after: Cursor,
        worker_id: str | None,
        deadline_at: float | None,
    ) -> ResponseStream:
        """A new stream that takes events from now on."""
        stream = ResponseStream(
            request_id,
            after=after,
            worker_id=worker_id,
            deadline_at=deadline_at,
            on_close=self._close,
            on_moved=self._on_moved,
        )
        self._streams.setdefault(request_id, []).append(stream)
        return stream

    def _close(self, stream: ResponseStream) -> None:
        streams = self._streams.get(stream.request_id, [])
        if stream in streams:
            streams.remove(stream)
        if not streams:
            self._streams.pop(stream.request_id, None)
        self._on_closed(stream)

    def feed(self, event: Event) -> None:
        """Give an event to all who listen."""
        # A copy: whoever takes its last event leaves.
        for stream in tuple(self._streams.get(event.request_id, ())):
            if not stream.take(event):
                self.mend(stream)

    def mend(self, stream: ResponseStream) -> None:
        """Read the stream's log in the background."""
        if stream in self._repairing:
            return
        self._repairing.add(stream)
        task = self.spawn(self.catch_up(stream))
        task.add_done_callback(lambda _: self._repairing.discard(stream))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background; what a failing Redis stops, the next sweep does."""

        async def guarded() -> None:
            try:
                await work
            except (RedisError, OSError) as error:
                logger.debug("put off: %s", error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def catch_up(self, stream: ResponseStream) -> None:
        """Read the log from the stream's cursor to its end.

        Raises:
            RedisError: Redis failed.
        """
        while not stream.is_ended:
            events = await self._log.read(stream.request_id, stream.cursor)
            self._take(stream, events)
            if stream.is_ahead:
                await self._start_over(stream)
            if len(events) < READ_COUNT:
                return

    async def _start_over(self, stream: ResponseStream) -> None:
        """The log had lost its end when another worker went on from it."""
        line: list[Event] = []
        for event in await self._log.read_all(stream.request_id):
            # Where a later lease begins, it goes before what it follows.
            del line[event.seq :]
            line.append(event)
        logger.warning("response %s is taken in again from its log", stream.request_id)
        stream.start_over()
        self._take(stream, line)

    @staticmethod
    def _take(stream: ResponseStream, events: Sequence[Event]) -> None:
        if events:
            stream.has_gap = False
        for event in events:
            stream.take(event)

    async def end(self, stream: ResponseStream, error: ReparteeError) -> None:
        """What the log still has, then its terminal event: `error`, if it has none.

        Raises:
            RedisError: Redis failed.
        """
        await self.catch_up(stream)
        if stream.is_ended:
            return
        final = await self._log.end(stream.request_id, error)
        await self.catch_up(stream)
        # With holes in the log, its end doesn't come next and is told all the same.
        stream.take_last(final)

    async def sweep(self) -> None:
        """Read the logs of silent streams; end those whose time is over.

        Raises:
            RedisError: Redis failed.
        """
        now = time.monotonic()
        silent = [s for s in self.all() if now - s.heard_at > SILENT_S][:MAX_SWEPT]
        if not silent:
            return
        for stream in silent:
            if stream.has_gap:
                self._on_hole(stream)
        batches = await self._log.read_many([(s.request_id, s.cursor) for s in silent])
        for stream, events in zip(silent, batches, strict=True):
            self._take(stream, events)
            error = None if stream.is_ended else _verdict(stream, now)
            if error is not None:
                self._on_abandoned(stream)
                await self.end(stream, error)

    def expire(self) -> None:
        """End what is long past its deadline, for listeners here; Redis isn't asked."""
        now = time.monotonic()
        for stream in self.all():
            expires_at = stream.expires_at
            if expires_at is not None and now > expires_at + LAST_GRACE_S:
                logger.warning("response %s ends here: Redis takes no end", stream.request_id)
                late = DeadlineExceeded("The request's deadline passed.")
                stream.take_last(Failed(stream.request_id, 1, 0, late))

    async def close(self) -> None:
        """End every stream as it is."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self.all():
            stream.end()


def _verdict(stream: ResponseStream, now: float) -> ReparteeError | None:
    """Why a silent stream is to be ended; None if it may still go on."""
    if stream.expires_at is not None and now > stream.expires_at + DEADLINE_GRACE_S:
        return DeadlineExceeded("The request's deadline passed.")
    unfillable = stream.has_gap or stream.worker_id is None
    if unfillable and now - stream.heard_at > GAP_S:
        return Unavailable("Part of the answer was lost.", code="answer_lost", retry_after_ms=1000)
    return None
