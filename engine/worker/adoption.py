"""Responses that this worker was given: their leases and logs, read and given back.

A gateway that gives a response to a worker tells it so. Commands can be lost with Redis
or with the gateway, so the worker also looks now and then what is on record as its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from redis.exceptions import ResponseError

from engine.contract import (
    Cursor,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    event_from_wire,
    keys,
    progress_of,
)
from engine.worker import leases
from engine.worker.redis_client import RedisDownError, RedisLine, Value
from engine.worker.route import Route

logger = logging.getLogger(__name__)

# Entries of a log read at once.
READ_COUNT = 1000

# How often the record is looked at. What is unknown twice is adopted: its command was lost.
LOOK_S = 5.0
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Adopted:
    """A response that this worker has the lease of.

    Attributes:
        request: With the lease's epoch, and how far it has come.
        made: (place, event as JSON) of all that its log holds.
        listeners: Gateways that listened to the worker that handed it over.
        is_cancelled: Nobody wants it any more.
        is_whole: Nothing of its log is missing, so that it can go on.
    """

    request: GenerateRequest
    made: Sequence[tuple[Cursor, bytes]]
    listeners: Sequence[str]
    is_cancelled: bool
    is_whole: bool


@dataclass(slots=True)
class _Wanted:
    """A response being read.

    Attributes:
        listeners: Gateways that asked for it meanwhile.
        is_cancelled: Cancelled meanwhile.
    """

    listeners: list[str] = field(default_factory=list)
    is_cancelled: bool = False


class Adoption:
    """See the module.

    Args:
        line: A connection of its own.
        worker_id: Whose leases.
        is_known: Whether this worker has the response in memory, live or just ended.
        on_adopted: Called with each response to go on with.
    """

    def __init__(
        self,
        line: RedisLine,
        worker_id: str,
        *,
        is_known: Callable[[str], bool],
        on_adopted: Callable[[Adopted], None],
    ) -> None:
        self._line = line
        self._lock = asyncio.Lock()
        self._worker_id = worker_id
        self._is_known = is_known
        self._on_adopted = on_adopted
        self._wanted: dict[str, _Wanted] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look at the record for ever."""
        unknown: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = {rid for rid in await self._owned() if not self._is_known(rid)}
            except RedisDownError as error:
                logger.debug("record not read: %s", error)
                continue
            for request_id in found & unknown:
                logger.warning("response %s was on record and unknown; reading it", request_id)
                self.start(request_id)
            unknown = found

    def start(self, request_id: str, listener: str | None = None) -> None:
        """Read a response, if it is this worker's go on with it."""
        if request_id not in self._wanted:
            self._wanted[request_id] = _Wanted()
            task = asyncio.create_task(self._adopt(request_id), name=f"adopt-{request_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if listener is not None:
            self._wanted[request_id].listeners.append(listener)

    def cancel(self, request_id: str) -> None:
        """It is not wanted any more; of one that isn't being read, the lease says so."""
        if request_id in self._wanted:
            self._wanted[request_id].is_cancelled = True

    async def close(self) -> None:
        """Stop reading; what was not adopted is on record."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _adopt(self, request_id: str) -> None:
        try:
            while True:
                try:
                    adopted = await self._read(request_id)
                    break
                except RedisDownError as error:
                    logger.debug("response %s not read: %s", request_id, error)
                    await asyncio.sleep(RETRY_S)
        except Exception:
            logger.exception("response %s can't be read", request_id)
            return
        finally:
            wanted = self._wanted.pop(request_id)
        if adopted is not None:
            self._on_adopted(
                replace(
                    adopted,
                    listeners=[*adopted.listeners, *wanted.listeners],
                    is_cancelled=adopted.is_cancelled or wanted.is_cancelled,
                )
            )

    async def _owned(self) -> set[str]:
        (reply,) = await self._execute([("SMEMBERS", keys.owned(self._worker_id))])
        return {member.decode() for member in reply}

    async def _read(self, request_id: str) -> Adopted | None:
        """A response to go on with; None if it is another's, or has ended."""
        (fields,) = await self._execute(
            [("HMGET", keys.lease(request_id), "w", "e", "r", "c", "g")]
        )
        worker_id, epoch, request, cancelled, listeners = fields
        if worker_id is None or worker_id.decode() != self._worker_id:
            await self._disown(request_id)
            return None
        made, events = await self._log(request_id)
        if events and isinstance(events[-1], Finished | Failed):
            await self._execute([("DEL", keys.lease(request_id))])
            await self._disown(request_id)
            return None
        progress = progress_of(events)
        return Adopted(
            request=replace(
                GenerateRequest.from_wire(orjson.loads(request)),
                epoch=int(epoch),
                progress=progress if made else None,
            ),
            made=made,
            listeners=orjson.loads(listeners) if listeners else (),
            is_cancelled=cancelled is not None,
            is_whole=progress is not None,
        )

    async def release(self, routes: Sequence[Route]) -> None:
        """Let anyone take these over; their events must be written.

        Raises:
            RedisDownError: some may still be this worker's, until its heartbeat lapses.
        """
        if routes:
            await self._execute(leases.release(self._worker_id, routes))

    async def _log(self, request_id: str) -> tuple[list[tuple[Cursor, bytes]], list[Event]]:
        made: list[tuple[Cursor, bytes]] = []
        events: list[Event] = []
        start = "-"
        while True:
            read = ("XRANGE", keys.log(request_id), start, "+", "COUNT", READ_COUNT)
            (entries,) = await self._execute([read])
            for entry_id, fields in entries:
                made.append((keys.cursor_from_entry_id(entry_id.decode()), fields[1]))
                events.append(event_from_wire(orjson.loads(fields[1])))
            if len(entries) < READ_COUNT:
                return made, events
            start = f"({entries[-1][0].decode()}"

    async def _disown(self, request_id: str) -> None:
        await self._execute([("SREM", keys.owned(self._worker_id), request_id)])

    async def _execute(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        async with self._lock:
            replies = await self._line.execute(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise RedisDownError(f"Redis refused: {reply}")
        return replies
