"""Events to response logs and to listening gateways.

All that the engine made since the last write goes out in one pipeline (see `batch`).
While a write is in flight, further events gather, and for GATHER_S after a write that took
new ones: writes that come faster wake Redis and gateways for less each time.

A response's events stay in memory until some seconds after its end. After any lost
connection the publisher asks each log for its last id and writes what comes after
it: nothing is doubled if the lost write was applied, nothing is missing if it was
not, and a Redis that came back empty gets the whole log again, and the lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from redis.exceptions import ResponseError

from engine.contract import (
    Cursor,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    ReparteeError,
    Usage,
    keys,
)
from engine.worker import leases
from engine.worker.batch import Batch
from engine.worker.metrics import outcome_name
from engine.worker.redis_client import RedisDownError, RedisLine
from engine.worker.route import MAX_LISTENERS, Route

logger = logging.getLogger(__name__)

# How long an ended response can still be written again or sent to a late listener, and
# how many of them.
RETAIN_S = 10.0
MAX_RETAINED = 4000

# Events in one pipeline.
MAX_BATCH_EVENTS = 2000

# At least so long between the writes that take new events. What gateways are owed never waits.
GATHER_S = 0.003

# Unwritten bytes above which the engine is held until Redis takes them.
MAX_UNSENT_BYTES = 64 * 1024 * 1024

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0

_NONE = Usage(0, 0)


class Publisher:
    """Writes events; the only writer of logs and of gateway streams in this process.

    Args:
        line: A connection of the publisher's own.
        worker_id: Whose leases and logs.
        on_lost: Called with a request id whose log another writer has taken over, or
            whose event couldn't be written: the engine is to stop it.
        on_full: Called with True when too much is unwritten, with False afterwards.
        on_written: Called after each write with its start, seconds of the monotonic clock.
    """

    def __init__(
        self,
        line: RedisLine,
        worker_id: str,
        *,
        on_lost: Callable[[str], None],
        on_full: Callable[[bool], None],
        on_written: Callable[[float], None] = lambda started_s: None,
    ) -> None:
        self._line = line
        self._worker_id = worker_id
        self._on_lost = on_lost
        self._on_full = on_full
        self._on_written = on_written
        self._routes: dict[str, Route] = {}
        self._dirty: dict[str, Route] = {}
        self._ended: dict[str, Route] = {}
        # (route, gateway, first entry): what a gateway is to be sent again.
        self._nudges: list[tuple[Route, str, int]] = []
        self._gathered_at = 0.0
        self._is_owing = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._num_unsent_bytes = 0
        self._is_full = False
        self._suspect = True
        self.counters: Counter[str] = Counter()

    @property
    def num_live(self) -> int:
        """Responses that have not ended."""
        return len(self._routes) - len(self._ended)

    def live_ids(self) -> list[str]:
        """Ids of responses that have not ended."""
        return [rid for rid, route in self._routes.items() if route.ended_at is None]

    def is_live(self, request_id: str) -> bool:
        """Whether the response was opened and has not ended."""
        route = self._routes.get(request_id)
        return route is not None and route.ended_at is None

    def is_known(self, request_id: str) -> bool:
        """Whether the response is in memory, live or just ended."""
        return request_id in self._routes

    def has(self, request_id: str, epoch: int) -> bool:
        """Whether the response lives here under this lease."""
        return self.is_live(request_id) and self._routes[request_id].epoch == epoch

    @property
    def num_unsent_bytes(self) -> int:
        """Bytes of events not yet written."""
        return self._num_unsent_bytes

    def open(
        self,
        request_id: str,
        epoch: int,
        listeners: Sequence[str],
        *,
        request: GenerateRequest | None = None,
        made: Sequence[tuple[Cursor, bytes]] = (),
        end_ttl_s: int = keys.LOG_TTL_S,
    ) -> bool:
        """Begin a response, or go on with one.

        Args:
            request_id: Whose.
            epoch: The lease that this worker has.
            listeners: Gateways that get its events.
            request: What the lease is about; None for one that could not be read.
            made: (place, event as JSON) of the events that its log holds.
            end_ttl_s: The log's lifetime after its end, in seconds.

        Returns:
            False if this worker has the response already: a command sent twice.
        """
        known = self._routes.get(request_id)
        if known is not None and known.epoch < epoch:
            # Lost to another worker, and come back.
            self._lose(known)
            known = None
        if known is not None:
            for gateway_id in listeners:
                self.listen(request_id, gateway_id)
            return False
        self._routes[request_id] = Route(
            request_id, epoch, listeners, request=request, made=made, end_ttl_s=end_ttl_s
        )
        return True

    def listen(self, request_id: str, gateway_id: str, next_seq: int | None = None) -> None:
        """Send further events to one more gateway, and some again.

        Unknown ids are ignored: their log says all.

        Args:
            request_id: Whose.
            gateway_id: Who.
            next_seq: Repeat from there; None repeats the last event, which shows the
                gateway what it missed between reading the log and now.
        """
        route = self._routes.get(request_id)
        if route is None:
            return
        if gateway_id not in route.listeners:
            route.listeners.append(gateway_id)
            del route.listeners[:-MAX_LISTENERS]
        if route.num_logged:
            first = route.num_logged - 1
            if next_seq is not None:
                first = route.num_before(next_seq)
            self._nudges.append((route, gateway_id, first))
            self._wake.set()

    def hand_over(self, request_id: str) -> Route | None:
        """Forget a live response without a word: another worker will go on with it."""
        route = self._routes.get(request_id)
        if route is None or route.ended_at is not None:
            return None
        self._drop(route)
        return route

    def offer(self, events: list[Event]) -> None:
        """Take a step's events; those of unknown or ended responses, or of a lease that this
        worker has no longer, are dropped."""
        for event in events:
            route = self._routes.get(event.request_id)
            if route is None or route.ended_at is not None or event.epoch != route.epoch:
                continue
            try:
                body = orjson.dumps(event.to_wire())
            except TypeError:
                logger.exception("an event of %s can't be written", event.request_id)
                self._on_lost(event.request_id)
                fault = EngineFault("The engine failed on this request.")
                event = Failed(event.request_id, route.epoch, route.next_seq, fault)
                body = orjson.dumps(event.to_wire())
            # A copy of its own size: orjson's result keeps the kilobyte it was written in.
            payload = b"%b" % body
            route.add(event.epoch, event.seq, payload)
            self._num_unsent_bytes += len(payload)
            self._dirty[event.request_id] = route
            if not isinstance(event, Delta) and isinstance(event, Finished | Failed):
                self._end(route, event)
        if self._dirty:
            self._settled.clear()
            self._wake.set()
        self._watch_size()

    def fail(self, request_id: str, error: ReparteeError) -> None:
        """End a response with `error`, unless it has ended."""
        route = self._routes.get(request_id)
        if route is not None and route.ended_at is None:
            self.offer([Failed(request_id, route.epoch, route.next_seq, error)])

    def cancel(self, request_id: str) -> None:
        """End a response that nobody wants any more, unless it has ended."""
        route = self._routes.get(request_id)
        if route is not None and route.ended_at is None:
            progress = route.request.progress if route.request is not None else None
            usage = Usage(progress.prompt_tokens or 0, progress.num_tokens) if progress else _NONE
            cancelled = FinishReason.CANCELLED
            self.offer([Finished(request_id, route.epoch, route.next_seq, cancelled, usage)])

    def _end(self, route: Route, event: Finished | Failed) -> None:
        route.ended_at = time.monotonic()
        self._ended[route.request_id] = route
        outcome = event.reason.value if isinstance(event, Finished) else "failed"
        self.counters[outcome_name(outcome)] += 1
        if event.usage is not None:
            self.counters["repartee_prompt_tokens_total"] += event.usage.prompt_tokens
            self.counters["repartee_completion_tokens_total"] += event.usage.completion_tokens
            self.counters["repartee_cached_tokens_total"] += event.usage.cached_tokens

    async def wait_settled(self) -> None:
        """Until everything taken so far is written."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        delay_s = RETRY_FIRST_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self._suspect:
                    await self._resync()
                    self._suspect = False
                while (self._dirty or self._nudges) and not self._suspect:
                    left_s = self._gathered_at + GATHER_S - time.monotonic()
                    if left_s > 0 and not self._is_owing:
                        await asyncio.sleep(left_s)
                    await self._write()
                delay_s = RETRY_FIRST_S
            except RedisDownError as error:
                if not self._suspect:
                    logger.warning("%s; keeping events until it is back", error)
                self._suspect = True
                self.counters["repartee_redis_errors_total"] += 1
                self._wake.set()
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)

    def connection_lost(self) -> None:
        """Another connection to the same Redis broke: check the logs before going on."""
        self._suspect = True
        if self._routes:
            self._wake.set()

    def forget_ended(self) -> None:
        """Let go of responses that ended long enough ago. Called on each beat."""
        horizon = time.monotonic() - RETAIN_S
        num_extra = len(self._ended) - MAX_RETAINED
        for index, (request_id, route) in enumerate(list(self._ended.items())):
            if index >= num_extra and route.ended_at is not None and route.ended_at > horizon:
                break
            if route.is_settled:
                del self._ended[request_id]
                del self._routes[request_id]

    async def _write(self) -> None:
        """One pipeline: logs, then gateways."""
        started_s = time.monotonic()
        takes_new = not self._is_owing or started_s - self._gathered_at >= GATHER_S
        if takes_new:
            self._gathered_at = started_s
        batch = Batch(self._worker_id, MAX_BATCH_EVENTS if takes_new else 0, MAX_BATCH_EVENTS)
        for route in list(self._dirty.values()):
            if batch.is_full:
                break
            batch.add(route)
        nudges, self._nudges = self._nudges, []
        for route, gateway_id, first in nudges:
            batch.repeat(route, gateway_id, first)
        commands = batch.commands()
        try:
            replies = await self._line.execute(commands) if commands else []
        except RedisDownError:
            self._nudges = nudges + self._nudges
            raise
        self._is_owing = batch.is_owing
        self._settle(batch, replies)
        self._on_written(started_s)

    def _settle(self, batch: Batch, replies: Sequence[Any]) -> None:
        """Note what is written; stop where another writer took a log over."""
        refused: set[Route] = set()
        for written, reply in zip(batch.logged, replies, strict=False):
            if written is None:
                continue
            route, index = written
            if isinstance(reply, ResponseError) and self._is_taken(route, reply):
                refused.add(route)
            if not refused or route not in refused:
                route.num_logged = max(route.num_logged, index + 1)
        for reply in replies[len(batch.logged) :]:
            if isinstance(reply, ResponseError):
                logger.error("Redis refused a gateway's batch: %s", reply)
        for route, end in batch.notified:
            if end > route.num_notified:
                self._num_unsent_bytes -= route.num_bytes(route.num_notified, end)
                self.counters["repartee_events_published_total"] += end - route.num_notified
                route.num_notified = end
            if route.is_settled:
                self._dirty.pop(route.request_id, None)
        if not self._dirty:
            self._settled.set()
        self._watch_size()

    def _is_taken(self, route: Route, error: ResponseError) -> bool:
        """Whether the id is at or below the log's last: the log is another's now."""
        if "equal or smaller" not in str(error):
            # The event reaches its gateways all the same.
            logger.error("Redis refused an event of %s: %s", route.request_id, error)
            return False
        self._suspect = True
        self._wake.set()
        return True

    async def _resync(self) -> None:
        """Learn from each log what it holds, so that the rest is written, once."""
        routes = [route for route in self._routes.values() if route.payloads]
        for start in range(0, len(routes), MAX_BATCH_EVENTS):
            part = routes[start : start + MAX_BATCH_EVENTS]
            replies = await self._line.execute(
                [("XREVRANGE", route.key, "+", "-", "COUNT", 1) for route in part]
            )
            for route, reply in zip(part, replies, strict=True):
                if isinstance(reply, ResponseError):
                    logger.error("reading the log of %s: %s", route.request_id, reply)
                    continue
                self._compare(route, reply[0][0].decode() if reply else None)
        await self._keep_leases()

    async def _keep_leases(self) -> None:
        """Write the leases again that Redis has lost; let go of what is another's."""
        live = [
            (route, route.request)
            for route in self._routes.values()
            if route.ended_at is None and route.request is not None
        ]
        for start in range(0, len(live), MAX_BATCH_EVENTS):
            part = live[start : start + MAX_BATCH_EVENTS]
            replies = await self._line.execute(leases.keep(self._worker_id, part))
            for (route, _), reply in zip(part, replies, strict=False):
                if isinstance(reply, ResponseError):
                    logger.error("keeping the lease of %s: %s", route.request_id, reply)
                elif reply == 0 and self._routes.get(route.request_id) is route:
                    self._lose(route)

    def _compare(self, route: Route, last_id: str | None) -> None:
        last = keys.cursor_from_entry_id(last_id) if last_id else Cursor(0, 0)
        if last.epoch > route.epoch:
            self._lose(route)
            return
        route.num_logged = route.num_until(last)
        if not route.is_settled:
            self._dirty[route.request_id] = route
            self._settled.clear()

    def _lose(self, route: Route) -> None:
        logger.warning("response %s was taken over; stopping it here", route.request_id)
        was_live = route.ended_at is None
        self._drop(route)
        if was_live:
            self.counters[outcome_name("lost")] += 1
            self._on_lost(route.request_id)

    def _drop(self, route: Route) -> None:
        self._num_unsent_bytes -= route.num_bytes(route.num_notified, len(route.payloads))
        self._routes.pop(route.request_id, None)
        self._dirty.pop(route.request_id, None)
        self._ended.pop(route.request_id, None)
        self._nudges = [nudge for nudge in self._nudges if nudge[0] is not route]
        if not self._dirty:
            self._settled.set()

    def _watch_size(self) -> None:
        full = self._num_unsent_bytes > MAX_UNSENT_BYTES
        if full != self._is_full:
            self._is_full = full
            self._on_full(full)
