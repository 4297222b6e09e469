"""`WorkerState` under a key that expires, twice a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import orjson
from redis.exceptions import ResponseError

from engine.contract import WorkerState, keys
from engine.worker.redis_client import RedisDownError, RedisLine

logger = logging.getLogger(__name__)


class Heartbeat:
    """Writes the worker's state until cancelled.

    Args:
        line: A connection of the heartbeat's own.
        worker_id: Whose.
        state: Makes the current state.
        on_beat: Called after each attempt.
    """

    def __init__(
        self,
        line: RedisLine,
        worker_id: str,
        *,
        state: Callable[[], WorkerState],
        on_beat: Callable[[], None],
    ) -> None:
        self._line = line
        # One command at a time on the line, and no beat after the goodbye.
        self._lock = asyncio.Lock()
        self._has_left = False
        self._worker_id = worker_id
        self._state = state
        self._on_beat = on_beat
        self._is_down = False

    async def run(self) -> None:
        """Beat for ever; a missed beat is not made up for."""
        while True:
            try:
                await self.beat()
                if self._is_down:
                    logger.info("heartbeats resumed")
                self._is_down = False
            except RedisDownError as error:
                if not self._is_down:
                    logger.warning("heartbeat: %s", error)
                self._is_down = True
            self._on_beat()
            await asyncio.sleep(keys.WORKER_BEAT_S)

    async def beat(self) -> None:
        """One beat, besides those of `run`; none once this worker has left.

        Raises:
            RedisDownError: it may not have been written.
        """
        async with self._lock:
            if self._has_left:
                return
            now = time.time()
            replies = await self._line.execute(
                [
                    (
                        *("SET", keys.worker(self._worker_id)),
                        *(orjson.dumps(self._state().to_wire()), "EX", keys.WORKER_TTL_S),
                    ),
                    ("ZADD", keys.WORKERS, str(now), self._worker_id),
                    ("ZREMRANGEBYSCORE", keys.WORKERS, "-inf", str(now - keys.WORKERS_TTL_S)),
                    ("EXPIRE", keys.WORKERS, keys.WORKERS_TTL_S),
                ],
                timeout_s=keys.WORKER_TTL_S,
            )
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise RedisDownError(f"Redis refused a heartbeat: {reply}")

    async def leave(self) -> None:
        """Say that this worker is gone, so that nobody waits for its heartbeat to lapse.

        Raises:
            RedisDownError: it may still be on record, until its key expires.
        """
        gone = ("SET", keys.worker(self._worker_id), keys.WORKER_GONE, "EX", keys.WORKER_GONE_TTL_S)
        async with self._lock:
            self._has_left = True
            await self._line.execute(
                [
                    gone,
                    ("DEL", keys.inbox(self._worker_id)),
                    ("ZREM", keys.WORKERS, self._worker_id),
                ],
                timeout_s=2.0,
            )
