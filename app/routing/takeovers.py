"""Responses whose worker is gone: each is given to another, or ended.

Every gateway looks after all of them, its own listeners' and those that nobody listens
to. Redis lets one gateway through for each response; the others learn who has it now.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

from app.routing.directory import WorkerDirectory
from app.routing.leases import Leases
from app.routing.log import ResponseLog
from engine.contract import (
    FinishReason,
    GenerateRequest,
    ReparteeError,
    Unavailable,
    keys,
    lease,
)

logger = logging.getLogger(__name__)

# Responses taken over at once by one gateway.
MAX_AT_ONCE = 32


def no_worker() -> Unavailable:
    """The end of a response that waited for a worker until its deadline."""
    return Unavailable(
        "No worker could go on with this answer in time.", code="no_worker", retry_after_ms=1000
    )


def worker_died() -> Unavailable:
    """The end of a response that can't be taken over: its lease is lost."""
    return Unavailable(
        "The worker that made this answer died.", code="worker_died", retry_after_ms=1000
    )


def workers_died() -> Unavailable:
    """The end of a response that was passed on too often."""
    return Unavailable(
        f"{lease.MAX_DEATHS + 1} workers died one after the other over this answer, "
        f"or {lease.MAX_ALL_DEATHS + 1} in all.",
        code="workers_died",
    )


class Takeovers:
    """See the module.

    Args:
        leases: Who has what.
        log: Where responses are ended.
        directory: Who is alive.
        choose: The worker for a request; None if there's none now.
        on_moved: Called with each response that is another worker's now, or has ended.
    """

    def __init__(
        self,
        leases: Leases,
        log: ResponseLog,
        directory: WorkerDirectory,
        *,
        choose: Callable[[GenerateRequest], str | None],
        on_moved: Callable[[str], None],
    ) -> None:
        self._leases = leases
        self._log = log
        self._directory = directory
        self._choose = choose
        self._on_moved = on_moved

    def is_gone(self, worker_id: str) -> bool:
        """Whether nobody can be expected to go on with what this worker has."""
        return worker_id == keys.NOBODY or self._directory.is_lost(worker_id)

    async def sweep(self, listened: Iterable[tuple[str, str]]) -> None:
        """Take over what is on record as a dead worker's or as nobody's.

        Args:
            listened: (response, its worker) of whatever this gateway follows.

        Raises:
            RedisError: Redis failed; the next sweep goes on.
        """
        owners = await self._leases.owners()
        for worker_id in owners:
            if worker_id != keys.NOBODY:
                self._directory.expect(worker_id)
        gone = [worker_id for worker_id in owners if self.is_gone(worker_id)]
        orphans = {
            request_id: worker_id
            for worker_id, request_ids in zip(gone, await self._leases.owned(gone), strict=True)
            for request_id in request_ids
        }
        if keys.NOBODY in orphans.values():
            # Whoever gave it away said before that it drains; what was heard may be older.
            await self._directory.poll()
        mine = {rid: worker_id for rid, worker_id in listened if self.is_gone(worker_id)}
        orphans = {**mine, **orphans}
        # In another order at each gateway, so that they share the work.
        due = random.sample(sorted(orphans.items()), len(orphans))
        for start in range(0, len(due), MAX_AT_ONCE):
            part = due[start : start + MAX_AT_ONCE]
            await asyncio.gather(*(self._take(rid, gone, rid in mine) for rid, gone in part))

    async def _take(self, request_id: str, from_worker: str, is_listened: bool) -> None:
        found = await self._leases.read(request_id)
        if found is None:
            if is_listened:
                # It has ended, or Redis lost what is needed to go on.
                await self._log.end(request_id, worker_died())
            await self._settle(request_id, from_worker)
            return
        if found.is_cancelled:
            await self.end(request_id, FinishReason.CANCELLED, from_worker)
            return
        if found.request.deadline_at <= time.time():
            await self.end(request_id, no_worker(), from_worker)
            return
        to_worker = self._choose(found.request)
        if to_worker is None and found.worker_id == from_worker:
            return
        outcome, worker_id = await self._leases.take_over(
            request_id, from_worker, to_worker or keys.NOBODY
        )
        if outcome == "spent":
            await self.end(request_id, workers_died(), from_worker)
        elif outcome in ("taken", "moved") and worker_id != keys.NOBODY:
            if outcome == "taken":
                logger.warning("response %s goes on at worker %s", request_id, worker_id)
            await self._leases.tell(request_id, from_worker, worker_id)
            self._on_moved(request_id)
        elif outcome != "cancelled":
            await self._settle(request_id, from_worker)

    async def end(
        self, request_id: str, outcome: ReparteeError | FinishReason, worker_id: str
    ) -> None:
        """End a response that nobody makes.

        Raises:
            RedisError: Redis failed.
        """
        await self._log.end(request_id, outcome)
        await self._settle(request_id, worker_id)

    async def _settle(self, request_id: str, worker_id: str) -> None:
        await self._leases.disown(request_id, worker_id)
        self._on_moved(request_id)
