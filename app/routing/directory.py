"""Which workers are alive, from their heartbeats.

A worker is judged by change: its heartbeat must differ from the one before, by our
own monotonic clock, so that clocks of two machines needn't agree. While Redis is away
or slow nobody is judged, and afterwards everyone gets a full lifetime to be heard of
again. Of a worker whose process is known to have ended nothing more is expected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.contract import WorkerState, keys

logger = logging.getLogger(__name__)

# A worker that beats, but whose engine has done nothing for so long, is frozen.
STALL_S = 3.5

# One that is frozen for so long will hardly thaw: what it has may be taken over.
STUCK_S = 60.0

# An entry of a dead worker is kept so long, that nobody waits for it again.
FORGET_S = 60.0


class Status(StrEnum):
    """What a worker is good for."""

    LIVE = "live"
    DRAINING = "draining"
    STALLED = "stalled"
    SILENT = "silent"
    DEAD = "dead"


@dataclass(slots=True)
class _Entry:
    state: WorkerState | None
    changed_at: float
    listed: bool = True
    dead: bool = False


class WorkerDirectory:
    """Polls the registry.

    Args:
        redis: A pooled client.
        gateway_id: Who asks.
        on_dead: Called once for each worker that stopped beating or is known to be gone.
        clock: Monotonic seconds.

    Attributes:
        is_failing: The registry couldn't be read the last time.
        refusal: Why Redis takes no writes; empty if it takes them.
    """

    def __init__(
        self,
        redis: Redis,
        gateway_id: str,
        *,
        on_dead: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._probe = keys.probe(gateway_id)
        self._on_dead = on_dead
        self._clock = clock
        self._polling = asyncio.Lock()
        self._entries: dict[str, _Entry] = {}
        self._polled_at: float | None = None
        self._sighted_at = clock()
        self.is_failing = False
        self.refusal = ""

    @property
    def poll_age_s(self) -> float | None:
        """Seconds since the registry was last read; None if it never was."""
        return None if self._polled_at is None else self._clock() - self._polled_at

    def status(self, worker_id: str) -> Status:
        """Silent is a worker not heard of and not yet given up."""
        entry = self._entries.get(worker_id)
        if entry is None or entry.dead:
            return Status.DEAD
        if entry.state is None or not entry.listed:
            return Status.SILENT
        if entry.state.beat_at - entry.state.last_step_at > STALL_S:
            return Status.STALLED
        return Status.DRAINING if entry.state.draining else Status.LIVE

    def is_lost(self, worker_id: str) -> bool:
        """Whether what a worker has in hand is better taken over: it is dead or stuck."""
        entry = self._entries.get(worker_id)
        if entry is None or entry.dead:
            return True
        state = entry.state
        return state is not None and state.beat_at - state.last_step_at > STUCK_S

    def states(self) -> list[WorkerState]:
        """Workers that are not dead, by id."""
        return [
            entry.state
            for _, entry in sorted(self._entries.items())
            if entry.state is not None and not entry.dead and entry.listed
        ]

    def changed_at(self, worker_id: str) -> float:
        """When the worker's state was last news, by our clock; 0 for an unknown one."""
        entry = self._entries.get(worker_id)
        return entry.changed_at if entry else 0.0

    def expect(self, worker_id: str) -> None:
        """Watch for a worker named elsewhere: it beats within a lifetime or is dead."""
        if worker_id not in self._entries:
            self._entries[worker_id] = _Entry(None, self._clock())

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            try:
                await self.poll()
            except (RedisError, OSError) as error:
                if not self.is_failing:
                    logger.warning("worker registry not readable: %s", error)
                self.is_failing = True
            await asyncio.sleep(keys.WORKER_BEAT_S)

    async def poll(self) -> None:
        """Read every worker's state once, as it is no sooner than now, and judge.

        Raises:
            RedisError: nothing was read, nobody judged.
        """
        async with self._polling:
            await self._poll()

    async def _poll(self) -> None:
        started = self._clock()
        listed: Any = await self._redis.zrange(keys.WORKERS, 0, -1)
        names = sorted({*(name.decode() for name in listed), *self._entries})
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.get(keys.worker(name))
            pipe.set(self._probe, b"", ex=keys.PROBE_TTL_S)
            *bodies, probe = await pipe.execute(raise_on_error=False)
        for reply in bodies:
            if isinstance(reply, Exception):
                raise reply
        self._note_probe(probe)
        now = self._clock()
        is_slow = now - started > keys.WORKER_BEAT_S
        if self.is_failing or is_slow or self._polled_at is None:
            self._sighted_at = now
        self.is_failing = False
        self._polled_at = now
        for name, body in zip(names, bodies, strict=True):
            self._note(name, body, now)
        self._judge(now)

    def _note_probe(self, reply: Any) -> None:
        refusal = str(reply) if isinstance(reply, Exception) else ""
        if refusal and not self.refusal:
            logger.error("Redis takes no writes: %s", refusal)
        self.refusal = refusal

    def _note(self, name: str, body: bytes | None, now: float) -> None:
        entry = self._entries.get(name)
        if body is None:
            if entry is not None:
                entry.listed = False
            return
        if body == keys.WORKER_GONE:
            if entry is not None and not entry.dead:
                self._bury(name, entry, now)
            return
        try:
            state = WorkerState.from_wire(orjson.loads(body))
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("unreadable state of worker %s: %s", name, error)
            return
        if entry is None:
            self._entries[name] = _Entry(state, now)
        elif entry.state is None or entry.state.beat_at != state.beat_at:
            entry.state, entry.changed_at, entry.dead = state, now, False
            entry.listed = True
        else:
            entry.listed = True

    def _judge(self, now: float) -> None:
        for name, entry in list(self._entries.items()):
            silent_s = now - max(entry.changed_at, self._sighted_at)
            if entry.dead:
                if silent_s > FORGET_S:
                    del self._entries[name]
            elif silent_s > keys.WORKER_TTL_S:
                # One that was only named elsewhere is no news.
                level = logging.DEBUG if entry.state is None else logging.WARNING
                logger.log(level, "worker %s is dead: no heartbeat for %.1f s", name, silent_s)
                entry.dead = True
                self._on_dead(name)

    def _bury(self, name: str, entry: _Entry, now: float) -> None:
        """A worker has said that it leaves, or whoever started it that it has ended."""
        logger.info("worker %s has left", name)
        entry.dead, entry.changed_at = True, now
        self._on_dead(name)
