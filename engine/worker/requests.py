"""Requests between the inbox and the engine: checked, tokenised, cancelled, ended in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import Executor

from engine.contract import (
    DeadlineExceeded,
    EngineFault,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    NotFound,
    Overloaded,
    ReparteeError,
)
from engine.worker.engine_thread import Engine, EngineThread
from engine.worker.publisher import Publisher

logger = logging.getLogger(__name__)

# Requests being tokenised or waiting for it; above this, new ones are refused.
MAX_PREPARING = 1024

# The engine ends what is past its deadline; past this as well, the worker does.
DEADLINE_GRACE_S = 1.0


class Requests:
    """Every response that the publisher has open, until its end.

    Args:
        engine: Prepares requests; its card names the model.
        thread: Carries them out.
        publisher: Told of every end that doesn't come from the engine.
        pool: Where they are tokenised.

    Attributes:
        counters: By metric name.
    """

    def __init__(
        self, engine: Engine, thread: EngineThread, publisher: Publisher, pool: Executor
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._publisher = publisher
        self._pool = pool
        self._preparing: set[str] = set()
        # By the monotonic clock: the wall's may be set meanwhile.
        self._deadlines: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counters: Counter[str] = Counter()

    @property
    def num_preparing(self) -> int:
        """How many are tokenised, or wait for it."""
        return len(self._preparing)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of any request."""
        return not (self._preparing or self._deadlines or self._tasks)

    def begin(self, request: GenerateRequest) -> None:
        """Check, tokenise and queue a response that was opened."""
        request_id = request.request_id
        try:
            left_s = request.deadline_at - time.time()
            error = self._refusal(request, left_s)
        except TypeError as unreadable:
            # A value of the wrong type, from a gateway of another make.
            self.refuse(request_id, unreadable)
            return
        if error is not None:
            self._publisher.fail(request_id, error)
            return
        self._deadlines[request_id] = time.monotonic() + left_s
        self._preparing.add(request_id)
        task = asyncio.create_task(self._prepare(request), name=f"prepare-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, request_id: str) -> None:
        """End a response now; unknown ids are ignored."""
        self.counters["repartee_cancels_total"] += 1
        if request_id in self._preparing:
            self.end_cancelled(request_id)
        elif self._publisher.is_live(request_id):
            self._thread.cancel(request_id)

    def end_cancelled(self, request_id: str) -> None:
        """End a response that the engine doesn't have."""
        self._deadlines.pop(request_id, None)
        self._publisher.cancel(request_id)

    def lose(self, request_id: str) -> None:
        """It is another worker's now."""
        self._deadlines.pop(request_id, None)
        self._thread.cancel(request_id)

    def refuse(self, request_id: str, error: Exception) -> None:
        """`prepare` or `add` raised: the client's fault if the contract says so, else ours."""
        if not isinstance(error, ReparteeError):
            logger.error("request %s failed", request_id, exc_info=error)
            error = EngineFault("The engine failed on this request.")
        self._deadlines.pop(request_id, None)
        self._publisher.fail(request_id, error)

    def take(self, events: list[Event]) -> None:
        """Pass the engine's events on."""
        self._publisher.offer(events)
        for event in events:
            if isinstance(event, Finished | Failed):
                self._deadlines.pop(event.request_id, None)

    def fail_all(self) -> None:
        """A step raised: everything that the engine had is gone."""
        self.counters["repartee_engine_faults_total"] += 1
        for request_id in self._publisher.live_ids():
            if request_id not in self._preparing:
                self.refuse(request_id, EngineFault("The engine failed; try again."))
                # It may still wait to be added.
                self._thread.cancel(request_id)

    def expire(self) -> None:
        """End what is past its deadline, should the engine not have done it."""
        now = time.monotonic()
        for request_id, deadline_at in list(self._deadlines.items()):
            if deadline_at + DEADLINE_GRACE_S <= now:
                del self._deadlines[request_id]
                self._publisher.fail(request_id, DeadlineExceeded("The request's deadline passed."))
                self._thread.cancel(request_id)

    async def close(self) -> None:
        """Stop preparing."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refusal(self, request: GenerateRequest, left_s: float) -> ReparteeError | None:
        if request.model != self._engine.card.id:
            return NotFound(
                f"model {request.model!r} is not served here, {self._engine.card.id!r} is.",
                code="model_not_found",
                param="model",
            )
        if left_s <= 0:
            return DeadlineExceeded("The request's deadline passed before it could start.")
        # One that was begun elsewhere is not refused.
        if len(self._preparing) >= MAX_PREPARING and request.epoch == 1:
            return Overloaded(
                f"The worker's queue is full ({MAX_PREPARING} requests).", retry_after_ms=1000
            )
        return None

    async def _prepare(self, request: GenerateRequest) -> None:
        """Tokenise off the loop, then hand to the engine, unless cancelled meanwhile."""
        request_id = request.request_id
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(self._pool, self._engine.prepare, request)
        except Exception as error:
            self.refuse(request_id, error)
        else:
            if self._publisher.has(request_id, request.epoch):
                self._thread.add(request_id, prepared)
        finally:
            self._preparing.discard(request_id)
