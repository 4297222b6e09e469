"""The worker process's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.contract import (
    Cancel,
    Command,
    Cursor,
    Drain,
    GenerateRequest,
    Listen,
    Release,
    ReparteeError,
    Resume,
    Submit,
    Unavailable,
    Warm,
    WorkerState,
    keys,
)
from engine.worker import metrics
from engine.worker.adoption import Adopted, Adoption
from engine.worker.drafts import Drafts
from engine.worker.engine_thread import Engine, EngineThread
from engine.worker.heartbeat import Heartbeat
from engine.worker.inbox import Inbox
from engine.worker.publisher import Publisher
from engine.worker.redis_client import RedisDownError, RedisLine
from engine.worker.requests import Requests
from engine.worker.steps_report import StepsReport

logger = logging.getLogger(__name__)

# Two, so that one huge prompt doesn't hold up everybody else's.
PREPARE_THREADS = 2

# How long the word that this worker drains may take to reach Redis.
ANNOUNCE_S = 1.0
# How long the last events may take to reach Redis once nothing runs any more.
SETTLE_S = 3.0
THREAD_STOP_S = 2.0


class Worker:
    """One engine behind one inbox.

    Args:
        engine: Loaded and ready.
        redis_url: Where the spine is.
        grace_s: How long running requests may go on after SIGTERM, before they are handed
            over to other workers; 0 hands them over at once.
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
        # From here on what comes is another's, even before the drain has begun.
        self._stop = asyncio.Event()
        self._drain_is_told = asyncio.Event()
        self._engine_died = False
        self._counters: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")
        self._thread = EngineThread(
            engine,
            on_events=lambda events: self._requests.take(events),
            on_refused=lambda request_id, error: self._requests.refuse(request_id, error),
            on_fault=lambda error: self._requests.fail_all(),
            on_dead=self._on_engine_dead,
        )
        name = f"repartee-worker-{self.worker_id}"
        self._steps_report = StepsReport()
        self._lines = [RedisLine(redis_url, name) for _ in range(4)]
        self._publisher = Publisher(
            self._lines[0],
            self.worker_id,
            on_lost=lambda request_id: self._requests.lose(request_id),
            on_full=self._thread.pause,
            on_written=self._steps_report.note_write,
        )
        self._requests = Requests(engine, self._thread, self._publisher, self._pool)
        self._drafts = Drafts(
            engine, self._thread, self._pool, lambda: self._requests.num_preparing > 0
        )
        self._adoption = Adoption(
            self._lines[3],
            self.worker_id,
            is_known=self._publisher.is_known,
            on_adopted=self._on_adopted,
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
            num_waiting=stats.num_waiting + self._requests.num_preparing,
            used_blocks=stats.used_blocks,
            num_blocks=stats.num_blocks,
            decode_tokens_per_s=stats.decode_tokens_per_s,
            draining=self._stop.is_set(),
            metrics=self._metrics(),
            held=stats.held,
        )

    def _metrics(self) -> dict[str, float]:
        stats = self._thread.stats
        return {
            **metrics.zeros(),
            **self._publisher.counters,
            **self._requests.counters,
            **self._counters,
            **stats.counters,
            "repartee_unreadable_commands_total": self._inbox.num_bad,
            "repartee_responses_live": self._publisher.num_live,
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
        loop.add_signal_handler(signal.SIGUSR2, self._thread.report, self._steps_report.write)
        self._thread.start()
        loops = [
            asyncio.create_task(self._publisher.run(), name="publisher"),
            asyncio.create_task(self._inbox.run(), name="inbox"),
            asyncio.create_task(self._heartbeat.run(), name="heartbeat"),
            asyncio.create_task(self._adoption.run(), name="adoption"),
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
        for part in (self._adoption, self._requests, self._drafts):
            await part.close()
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
        """Take nothing new; let what runs end, hand over what doesn't; leave the registry."""
        self._stop.set()
        logger.info("draining: %d responses live", self._publisher.num_live)
        started_at = time.monotonic()
        await self._announce_drain()
        while self._publisher.num_live and not self._engine_died:
            if time.monotonic() - started_at >= self._grace_s:
                break
            await asyncio.sleep(0.05)
        self._thread.pause(True)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._publisher.wait_settled()
                await self._hand_over(self._publisher.live_ids())
            await self._heartbeat.leave()
        except (TimeoutError, RedisDownError) as error:
            logger.warning("leaving without a goodbye: %s", error or "Redis took too long")

    async def _announce_drain(self) -> None:
        """Say so before anything is handed over: it must not come back."""
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                await self._heartbeat.beat()
        except (TimeoutError, RedisDownError) as error:
            logger.warning("draining without a word: %s", error or "Redis took too long")
        self._drain_is_told.set()

    async def _hand_over(self, request_ids: Iterable[str]) -> None:
        """Let other workers go on with these.

        Raises:
            RedisDownError: Redis can't serve; they are taken over as a dead worker's are.
        """
        routes = [self._publisher.hand_over(request_id) for request_id in request_ids]
        handed = [route for route in routes if route is not None]
        if handed:
            logger.info("handing over %d responses", len(handed))
            self._counters["repartee_handed_over_total"] += len(handed)
            await self._adoption.release(handed)

    def _on_command(self, command: Command) -> None:
        match command:
            case Submit(request):
                self._submit(request)
            case Resume(request_id):
                self._adoption.start(request_id)
            case Cancel(request_id):
                self._requests.cancel(request_id)
                self._adoption.cancel(request_id)
            case Listen(request_id, gateway_id, next_seq):
                if self._publisher.is_known(request_id):
                    self._publisher.listen(request_id, gateway_id, next_seq)
                else:
                    # It may have been given to this worker, and the word is on its way.
                    self._adoption.start(request_id, gateway_id)
            case Warm():
                self._counters["repartee_warm_commands_total"] += 1
                if not self._stop.is_set():
                    self._drafts.offer(command)
            case Release(conversation_id):
                self._drafts.drop(conversation_id)
                self._thread.release(conversation_id)
            case Drain():
                logger.info("asked to drain")
                self._stop.set()

    def _submit(self, request: GenerateRequest) -> None:
        if self._open(request, [request.reply_to], ()):
            self._counters["repartee_submits_total"] += 1
            self._begin(request)

    def _on_adopted(self, adopted: Adopted) -> None:
        """Go on with a response; its former worker, if any, is fenced."""
        request = adopted.request
        if not self._open(request, adopted.listeners, adopted.made):
            return
        self._counters["repartee_taken_over_total"] += 1
        if adopted.is_cancelled:
            self._requests.end_cancelled(request.request_id)
        elif adopted.is_whole:
            self._begin(request)
        else:
            lost = Unavailable("Part of the answer was lost.", code="answer_lost")
            self._publisher.fail(request.request_id, lost)

    def _open(
        self,
        request: GenerateRequest,
        listeners: Sequence[str],
        made: Sequence[tuple[Cursor, bytes]],
    ) -> bool:
        loose = request.conversation_id is None
        return self._publisher.open(
            request.request_id,
            request.epoch,
            listeners,
            request=request,
            made=made,
            end_ttl_s=keys.LOOSE_LOG_TTL_S if loose else keys.LOG_TTL_S,
        )

    def _begin(self, request: GenerateRequest) -> None:
        if self._stop.is_set():
            task = asyncio.create_task(self._pass_on(request.request_id), name="pass-on")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._drafts.drop(request.conversation_id)
        self._requests.begin(request)

    async def _pass_on(self, request_id: str) -> None:
        """What comes while this worker stops is another's."""
        await self._drain_is_told.wait()
        try:
            await self._hand_over([request_id])
        except RedisDownError as error:
            logger.warning("response %s is left to be taken over: %s", request_id, error)

    def _on_bad_submit(
        self, request_id: str, epoch: int, gateway_id: str, error: ReparteeError
    ) -> None:
        if self._publisher.open(request_id, epoch, [gateway_id]):
            self._publisher.fail(request_id, error)

    def _on_engine_dead(self) -> None:
        logger.critical("the engine keeps failing; stopping")
        self._engine_died = True
        self._stop.set()

    def _on_beat(self) -> None:
        self._publisher.forget_ended()
        self._requests.expire()
