"""The worker process's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from engine.contract import (
    Cancel,
    Command,
    DeadlineExceeded,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Listen,
    NotFound,
    Overloaded,
    Release,
    ReparteeError,
    Submit,
    Unavailable,
    Usage,
    Warm,
    WorkerState,
    keys,
)
from engine.worker import metrics
from engine.worker.engine_thread import Engine, EngineThread
from engine.worker.heartbeat import Heartbeat
from engine.worker.inbox import Inbox
from engine.worker.publisher import Publisher
from engine.worker.redis_client import RedisDownError, RedisLine

logger = logging.getLogger(__name__)

# Requests being tokenised or waiting for it; above this, new ones are refused.
MAX_PREPARING = 1024

# Two, so that one huge prompt doesn't hold up everybody else's.
PREPARE_THREADS = 2

# Drafts wait while requests are tokenised, one a conversation; older ones than this are
# not worth it any more, and of more conversations than this the first are dropped.
DRAFT_MAX_AGE_S = 10.0
MAX_DRAFTS = 64
DRAFT_POLL_S = 0.02

# The engine ends what is past its deadline; past this as well, the worker does.
DEADLINE_GRACE_S = 1.0

# How long the last events may take to reach Redis once nothing runs any more.
SETTLE_S = 3.0
THREAD_STOP_S = 2.0


class Worker:
    """One engine behind one inbox.

    Args:
        engine: Loaded and ready.
        redis_url: Where the spine is.
        grace_s: How long running requests may go on after SIGTERM; 0 fails them at once.
        worker_id: Unique to this process's life; made up by default.
    """

    def __init__(
        self,
        engine: Engine,
        redis_url: str,
        *,
        grace_s: float = 30.0,
        worker_id: str | None = None,
    ) -> None:
        self.worker_id = worker_id or f"w_{secrets.token_hex(8)}"
        self._engine = engine
        self._grace_s = grace_s
        self._draining = False
        self._stop = asyncio.Event()
        self._engine_died = False
        self._preparing: set[str] = set()
        self._drafts: dict[str, Warm] = {}
        self._drafts_task: asyncio.Task[None] | None = None
        self._deadlines: dict[str, float] = {}
        self._counters: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")
        self._thread = EngineThread(
            engine,
            on_events=self._on_events,
            on_refused=self._on_refused,
            on_fault=self._on_fault,
            on_dead=self._on_engine_dead,
        )
        name = f"repartee-worker-{self.worker_id}"
        self._lines = [RedisLine(redis_url, name) for _ in range(3)]
        self._publisher = Publisher(
            self._lines[0], on_lost=self._thread.cancel, on_full=self._thread.pause
        )
        self._inbox = Inbox(
            self._lines[1],
            self.worker_id,
            on_command=self._on_command,
            on_bad_submit=self._on_bad_submit,
            on_reconnect=self._publisher.connection_lost,
        )
        self._heartbeat = Heartbeat(
            self._lines[2], self.worker_id, state=self.state, on_beat=self._on_beat
        )

    def state(self) -> WorkerState:
        """What the next heartbeat says."""
        stats = self._thread.stats
        return WorkerState(
            worker_id=self.worker_id,
            card=self._engine.card,
            beat_at=time.time(),
            last_step_at=self._thread.last_step_at,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting + len(self._preparing),
            used_blocks=stats.used_blocks,
            num_blocks=stats.num_blocks,
            decode_tokens_per_s=stats.decode_tokens_per_s,
            draining=self._draining,
            metrics=self._metrics(),
            held=stats.held,
        )

    def _metrics(self) -> dict[str, float]:
        stats = self._thread.stats
        return {
            **metrics.zeros(),
            **self._publisher.counters,
            **self._counters,
            **stats.counters,
            "repartee_unreadable_commands_total": self._inbox.num_bad,
            "repartee_engine_steps_total": self._thread.num_steps,
            "repartee_requests_running": stats.num_running,
            "repartee_requests_waiting": stats.num_waiting + len(self._preparing),
            "repartee_responses_live": self._publisher.num_live,
            "repartee_kv_blocks_used": stats.used_blocks,
            "repartee_kv_blocks": stats.num_blocks,
            "repartee_decode_tokens_per_second": stats.decode_tokens_per_s,
            "repartee_unsent_bytes": self._publisher.num_unsent_bytes,
            "repartee_worker_asyncio_tasks": len(asyncio.all_tasks()),
        }

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then drain.

        Returns:
            The process's exit code: 0, or 1 if the engine gave up.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._thread.start()
        loops = [
            asyncio.create_task(self._publisher.run(), name="publisher"),
            asyncio.create_task(self._inbox.run(), name="inbox"),
            asyncio.create_task(self._heartbeat.run(), name="heartbeat"),
        ]
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        done, _ = await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            # These loops never return; one that ended has raised.
            logger.critical("%s ended", task.get_name(), exc_info=task.exception())
            self._engine_died = True
        await self._drain()
        for task in [*loops, stopping, *self._tasks]:
            task.cancel()
        await asyncio.gather(*loops, stopping, *self._tasks, return_exceptions=True)
        self._thread.stop(THREAD_STOP_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for line in self._lines:
            await line.close()
        return 1 if self._engine_died else 0

    def stop(self) -> None:
        """Begin to drain. Once is enough; again ends the grace."""
        if self._stop.is_set():
            self._grace_s = 0.0
        self._stop.set()

    async def _drain(self) -> None:
        """Take nothing new; let what runs end, fail what doesn't; leave the registry."""
        self._draining = True
        logger.info("draining: %d responses live", self._publisher.num_live)
        started_at = time.monotonic()
        while self._publisher.num_live and not self._engine_died:
            if time.monotonic() - started_at >= self._grace_s:
                break
            await asyncio.sleep(0.05)
        for request_id in self._publisher.live_ids():
            self._publisher.fail(
                request_id, Unavailable("The worker is shutting down.", retry_after_ms=1000)
            )
            self._thread.cancel(request_id)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._publisher.wait_settled()
            # The heartbeat's own line may be in use; the registry is left on another.
            await Heartbeat(
                self._lines[0], self.worker_id, state=self.state, on_beat=lambda: None
            ).remove()
        except (TimeoutError, RedisDownError) as error:
            logger.warning("leaving without a goodbye: %s", error or "Redis took too long")

    def _on_command(self, command: Command) -> None:
        match command:
            case Submit(request):
                self._submit(request)
            case Cancel(request_id):
                self._cancel(request_id)
            case Listen(request_id, gateway_id):
                self._publisher.listen(request_id, gateway_id)
            case Warm():
                self._warm(command)
            case Release(conversation_id):
                self._drafts.pop(conversation_id, None)
                self._thread.release(conversation_id)

    def _submit(self, request: GenerateRequest) -> None:
        request_id = request.request_id
        loose = request.conversation_id is None
        ttl_s = keys.LOOSE_LOG_TTL_S if loose else keys.LOG_TTL_S
        if not self._publisher.open(request_id, request.epoch, request.reply_to, end_ttl_s=ttl_s):
            return
        self._counters["repartee_submits_total"] += 1
        self._drafts.pop(request.conversation_id or "", None)
        try:
            error = self._refusal(request)
        except TypeError as unreadable:
            # A value of the wrong type, from a gateway of another make.
            self._on_refused(request_id, unreadable)
            return
        if error is not None:
            self._publisher.fail(request_id, error)
            return
        self._deadlines[request_id] = request.deadline_at
        self._preparing.add(request_id)
        task = asyncio.create_task(self._prepare(request), name=f"prepare-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, request: GenerateRequest) -> ReparteeError | None:
        if self._draining:
            return Unavailable("The worker is shutting down.", retry_after_ms=1000)
        if request.model != self._engine.card.id:
            return NotFound(
                f"model {request.model!r} is not served here, {self._engine.card.id!r} is.",
                code="model_not_found",
                param="model",
            )
        if request.deadline_at <= time.time():
            return DeadlineExceeded("The request's deadline passed before it could start.")
        if len(self._preparing) >= MAX_PREPARING:
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
            self._on_refused(request_id, error)
        else:
            if self._publisher.is_live(request_id):
                self._thread.add(request_id, prepared)
        finally:
            self._preparing.discard(request_id)

    def _warm(self, warm: Warm) -> None:
        """Take a draft in, in place of its conversation's last."""
        self._counters["repartee_warm_commands_total"] += 1
        if self._draining:
            return
        self._drafts.pop(warm.conversation_id, None)
        self._drafts[warm.conversation_id] = warm
        if len(self._drafts) > MAX_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
        if self._drafts_task is None or self._drafts_task.done():
            task = asyncio.create_task(self._prepare_drafts(), name="prepare-drafts")
            self._drafts_task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _prepare_drafts(self) -> None:
        """Tokenise drafts one by one, while no request waits for that."""
        while self._drafts:
            if self._preparing:
                await asyncio.sleep(DRAFT_POLL_S)
                continue
            warm = self._drafts.pop(next(iter(self._drafts)))
            if time.time() - warm.created_at <= DRAFT_MAX_AGE_S:
                await self._prepare_draft(warm)

    async def _prepare_draft(self, warm: Warm) -> None:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(self._pool, self._engine.prepare_warm_up, warm)
        except ReparteeError as error:
            logger.debug("draft of %s not taken: %s", warm.conversation_id, error)
        except Exception:
            logger.exception("draft of %s failed", warm.conversation_id)
        else:
            self._thread.warm_up(warm.conversation_id, prepared)

    def _cancel(self, request_id: str) -> None:
        self._counters["repartee_cancels_total"] += 1
        if not self._publisher.is_live(request_id):
            return
        if request_id in self._preparing:
            self._on_events(
                [
                    Finished(
                        request_id,
                        self._publisher.epoch(request_id),
                        0,
                        FinishReason.CANCELLED,
                        Usage(0, 0),
                    )
                ]
            )
            return
        self._thread.cancel(request_id)

    def _on_bad_submit(
        self, request_id: str, epoch: int, gateway_id: str, error: ReparteeError
    ) -> None:
        if self._publisher.open(request_id, epoch, gateway_id):
            self._publisher.fail(request_id, error)

    def _on_events(self, events: list[Event]) -> None:
        self._publisher.offer(events)
        for event in events:
            if isinstance(event, Finished | Failed):
                self._deadlines.pop(event.request_id, None)

    def _on_refused(self, request_id: str, error: Exception) -> None:
        """`prepare` or `add` raised: the client's fault if the contract says so, else ours."""
        if not isinstance(error, ReparteeError):
            logger.error("request %s failed", request_id, exc_info=error)
            error = EngineFault("The engine failed on this request.")
        self._deadlines.pop(request_id, None)
        self._publisher.fail(request_id, error)

    def _on_fault(self, error: Exception) -> None:
        self._counters["repartee_engine_faults_total"] += 1
        for request_id in self._publisher.live_ids():
            if request_id not in self._preparing:
                self._on_refused(request_id, EngineFault("The engine failed; try again."))
                # It may still wait to be added.
                self._thread.cancel(request_id)

    def _on_engine_dead(self) -> None:
        logger.critical("the engine keeps failing; stopping")
        self._engine_died = True
        self._stop.set()

    def _on_beat(self) -> None:
        self._publisher.forget_ended()
        now = time.time()
        for request_id, deadline_at in list(self._deadlines.items()):
            if deadline_at + DEADLINE_GRACE_S <= now:
                del self._deadlines[request_id]
                self._publisher.fail(request_id, DeadlineExceeded("The request's deadline passed."))
                self._thread.cancel(request_id)
