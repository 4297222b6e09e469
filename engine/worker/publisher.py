"""Events to response logs and to listening gateways.

All that the engine made since the last write goes out in one pipeline: one entry per
event to its response's log, one entry per listening gateway. While a write is in
flight, further events gather; nothing waits on a timer.

A response's events stay in memory until some seconds after its end. After any lost
connection the publisher asks each log for its last id and writes what comes after
it: nothing is doubled if the lost write was applied, nothing is missing if it was
not, and a Redis that came back empty gets the whole log again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

import orjson
from redis.exceptions import ResponseError

from engine.contract import EngineFault, Event, Failed, Finished, ReparteeError, keys
from engine.worker.metrics import outcome_name
from engine.worker.redis_client import RedisDownError, RedisLine, Value
from engine.worker.route import MAX_LISTENERS, Route

logger = logging.getLogger(__name__)

# How long an ended response can still be written again or sent to a late listener, and
# how many of them.
RETAIN_S = 10.0
MAX_RETAINED = 4000

# Events in one pipeline, and bytes in one entry of a gateway's stream.
MAX_BATCH_EVENTS = 2000
MAX_ENTRY_BYTES = 256 * 1024

# Unwritten bytes above which the engine is held until Redis takes them.
MAX_UNSENT_BYTES = 64 * 1024 * 1024

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class Publisher:
    """Writes events; the only writer of logs and of gateway streams in this process.

    Args:
        line: A connection of the publisher's own.
        on_lost: Called with a request id whose log another writer has taken over, or
            whose event couldn't be written: the engine is to stop it.
        on_full: Called with True when too much is unwritten, with False afterwards.
    """

    def __init__(
        self,
        line: RedisLine,
        *,
        on_lost: Callable[[str], None],
        on_full: Callable[[bool], None],
    ) -> None:
        self._line = line
        self._on_lost = on_lost
        self._on_full = on_full
        self._routes: dict[str, Route] = {}
        self._dirty: dict[str, Route] = {}
        self._ended: dict[str, Route] = {}
        self._nudges: list[tuple[Route, str]] = []
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

    def epoch(self, request_id: str) -> int:
        """The lease under which a known response is written."""
        return self._routes[request_id].epoch

    @property
    def num_unsent_bytes(self) -> int:
        """Bytes of events not yet written."""
        return self._num_unsent_bytes

    def open(
        self, request_id: str, epoch: int, reply_to: str, *, end_ttl_s: int = keys.LOG_TTL_S
    ) -> bool:
        """Begin a response, whose log lives `end_ttl_s` after its end.

        Returns:
            False if this id is known: a command sent twice.
        """
        if request_id in self._routes:
            self.listen(request_id, reply_to)
            return False
        self._routes[request_id] = Route(request_id, epoch, reply_to, end_ttl_s)
        return True

    def listen(self, request_id: str, gateway_id: str) -> None:
        """Send further events to one more gateway, and the last one again.

        The repeated event shows the gateway what it missed between reading the log
        and now. Unknown ids are ignored: their log says all.
        """
        route = self._routes.get(request_id)
        if route is None:
            return
        if gateway_id not in route.listeners:
            route.listeners.append(gateway_id)
            del route.listeners[:-MAX_LISTENERS]
        if route.entries:
            self._nudges.append((route, gateway_id))
            self._wake.set()

    def offer(self, events: list[Event]) -> None:
        """Take a step's events; those of unknown or ended responses are dropped."""
        for event in events:
            route = self._routes.get(event.request_id)
            if route is None or route.ended_at is not None:
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
            payload = memoryview(body).tobytes()
            route.entries.append((event.seq, payload))
            self._num_unsent_bytes += len(payload)
            self._dirty[event.request_id] = route
            if isinstance(event, Finished | Failed):
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
                while self._dirty or self._nudges:
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
        commands: list[tuple[Value, ...]] = []
        logged: list[tuple[Route, int]] = []
        by_gateway: dict[str, list[bytes]] = {}
        notified: list[tuple[Route, int]] = []
        room = MAX_BATCH_EVENTS
        for route in list(self._dirty.values()):
            if room <= 0:
                break
            first = min(route.num_logged, route.num_notified)
            end = min(len(route.entries), first + room)
            room -= end - first
            for index in range(route.num_logged, end):
                seq, payload = route.entries[index]
                entry_id = keys.log_entry_id(route.epoch, seq)
                commands.append(("XADD", route.key, entry_id, "e", payload))
                logged.append((route, index))
                is_last = route.ended_at is not None and index == len(route.entries) - 1
                if index == 0 or is_last:
                    ttl_s = route.end_ttl_s if is_last else keys.LOG_TTL_S
                    commands.append(("EXPIRE", route.key, ttl_s))
                    logged.append((route, -1))
            payloads = [payload for _, payload in route.entries[route.num_notified : end]]
            for gateway_id in route.listeners:
                by_gateway.setdefault(gateway_id, []).extend(payloads)
            notified.append((route, end))
        nudges, self._nudges = self._nudges, []
        for route, gateway_id in nudges:
            by_gateway.setdefault(gateway_id, []).append(route.entries[-1][1])
        for gateway_id, payloads in by_gateway.items():
            key = keys.gateway(gateway_id)
            for body in _bodies(payloads):
                commands.append(("XADD", key, "MAXLEN", "~", keys.GATEWAY_MAXLEN, "*", "b", body))
            commands.append(("EXPIRE", key, keys.GATEWAY_TTL_S))
        try:
            replies = await self._line.execute(commands)
        except RedisDownError:
            self._nudges = nudges + self._nudges
            raise
        self._settle(logged, notified, replies)

    def _settle(
        self, logged: list[tuple[Route, int]], notified: list[tuple[Route, int]], replies: list
    ) -> None:
        """Note what is written; let go of responses that another writer took over."""
        for (route, index), reply in zip(logged, replies, strict=False):
            if index < 0:
                continue
            if isinstance(reply, ResponseError):
                self._refused(route, reply)
            route.num_logged = max(route.num_logged, index + 1)
        for reply in replies[len(logged) :]:
            if isinstance(reply, ResponseError):
                logger.error("Redis refused a gateway's batch: %s", reply)
        for route, end in notified:
            for _, payload in route.entries[route.num_notified : end]:
                self._num_unsent_bytes -= len(payload)
                self.counters["repartee_events_published_total"] += 1
            route.num_notified = max(route.num_notified, end)
            if route.is_settled:
                self._dirty.pop(route.request_id, None)
        if not self._dirty:
            self._settled.set()
        self._watch_size()

    def _refused(self, route: Route, error: ResponseError) -> None:
        """An id at or below the log's last: written before, or the log is another's now."""
        if "equal or smaller" not in str(error):
            logger.error("Redis refused an event of %s: %s", route.request_id, error)
            return
        self._suspect = True
        self._wake.set()

    async def _resync(self) -> None:
        """Learn from each log what it holds, so that the rest is written, once."""
        routes = [route for route in self._routes.values() if route.entries]
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

    def _compare(self, route: Route, last_id: str | None) -> None:
        last = keys.cursor_from_entry_id(last_id) if last_id else None
        if last is not None and last.epoch > route.epoch:
            self._lose(route)
            return
        same_epoch = last is not None and last.epoch == route.epoch
        route.num_logged = sum(
            1 for seq, _ in route.entries if same_epoch and last is not None and seq <= last.seq
        )
        if not route.is_settled:
            self._dirty[route.request_id] = route
            self._settled.clear()

    def _lose(self, route: Route) -> None:
        logger.warning("response %s was taken over; stopping it here", route.request_id)
        for _, payload in route.entries[route.num_notified :]:
            self._num_unsent_bytes -= len(payload)
        was_live = route.ended_at is None
        self._routes.pop(route.request_id, None)
        self._dirty.pop(route.request_id, None)
        self._ended.pop(route.request_id, None)
        self._nudges = [nudge for nudge in self._nudges if nudge[0] is not route]
        if not self._dirty:
            self._settled.set()
        if was_live:
            self.counters[outcome_name("lost")] += 1
            self._on_lost(route.request_id)

    def _watch_size(self) -> None:
        full = self._num_unsent_bytes > MAX_UNSENT_BYTES
        if full != self._is_full:
            self._is_full = full
            self._on_full(full)


def _bodies(payloads: list[bytes]) -> Iterator[bytes]:
    """JSON lists of events, each within MAX_ENTRY_BYTES unless one event is larger."""
    part: list[bytes] = []
    size = 0
    for payload in payloads:
        if part and size + len(payload) > MAX_ENTRY_BYTES:
            yield b"[" + b",".join(part) + b"]"
            part, size = [], 0
        part.append(payload)
        size += len(payload) + 1
    if part:
        yield b"[" + b",".join(part) + b"]"
