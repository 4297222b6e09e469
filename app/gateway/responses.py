"""Requests to the engine, followed to their end and counted once.

An `Answer` is one request under way. Whoever reads it reads it to its terminal event
or abandons it; an abandoned answer is cancelled and read to its end in the background,
so that its tokens are counted too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from app.auth import Principal
from app.gateway.ledger import AnswerLedger, Entry
from app.gateway.metrics import GatewayMetrics, ResponseMeter
from app.gateway.tracing import Tracing, trace_parent
from app.limits import Charge, Limiter, RateLimited, foreseen_tokens
from app.routing import EngineClient, ResponseStream
from engine.contract import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Message,
    ReparteeError,
    SamplingParams,
    Unavailable,
)

logger = logging.getLogger(__name__)

ABANDON_TIMEOUT_S = 10.0
DRAIN_POLL_S = 0.05
RETRY_AFTER_MS = 1000


def draining_error() -> Unavailable:
    """What work is told that a stopping gateway cannot do."""
    return Unavailable(
        "This gateway is stopping; try again.", code="draining", retry_after_ms=RETRY_AFTER_MS
    )


def event_tokens(event: Finished | Failed) -> int:
    """Of prompt and answer together, as the end tells it."""
    usage = event.usage
    return usage.prompt_tokens + usage.completion_tokens if usage else 0


def log_end(response_id: str, meter: ResponseMeter) -> None:
    """Say what an answer came to."""
    logger.info("response ended", extra={"response_id": response_id, **meter.summary})


class Answer:
    """One request's events, each exactly once, the last of them terminal.

    Args:
        stream: Where the events come from.
        meter: Counts them; None for an answer that another request counts.
        charge: What the caller's limits were charged; None likewise.
        request: What was asked for; None likewise.

    Attributes:
        used_tokens: What it came to, once it has ended; None if that is not known.
    """

    def __init__(
        self,
        responses: Responses,
        stream: ResponseStream,
        meter: ResponseMeter | None = None,
        charge: Charge | None = None,
        request: GenerateRequest | None = None,
    ) -> None:
        self._request = request
        self._trace_parent = trace_parent.get()
        self._responses = responses
        self._stream = stream
        self._meter = meter
        self.charge = charge
        self.used_tokens: int | None = None
        self.is_ended = False

    @property
    def request_id(self) -> str:
        """The response's id."""
        return self._stream.request_id

    def num_ahead(self) -> int | None:
        """Requests that waited at its worker by that one's last word; None if not known."""
        worker_id = self._stream.worker_id
        return None if worker_id is None else self._responses.engine.num_waiting(worker_id)

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Event:
        """The next event; `Failed` stands in for an end that cannot come any more."""
        if self.is_ended:
            raise StopAsyncIteration
        try:
            event = await anext(self._stream)
        except StopAsyncIteration:
            # The client was closed under it.
            epoch, next_seq = max(1, self._stream.cursor.epoch), self._stream.next_seq
            error = Unavailable("The answer's end was lost.", code="answer_lost")
            event = Failed(self.request_id, epoch, next_seq, error)
        return self._note(event)

    def deliver(self, on_delta: Callable[[Delta], None]) -> None:
        """Hand deltas over as they come in; see `ResponseStream.deliver`."""
        meter = self._meter
        if meter is None:
            self._stream.deliver(on_delta)
            return

        def count(event: Delta) -> None:
            meter.note_delta(event)
            on_delta(event)

        self._stream.deliver(count)

    def drain_pending(self) -> list[Event]:
        """Events that have arrived, without waiting."""
        return [self._note(event) for event in self._stream.drain_pending()]

    def _note(self, event: Event) -> Event:
        if isinstance(event, Finished | Failed):
            self.used_tokens = event_tokens(event)
            self._end(event)
        elif self._meter is not None:
            self._meter.note(event)
        return event

    def abandon(self) -> None:
        """Nobody reads on: cancel it, and count what it came to."""
        if not self.is_ended:
            self._responses.spawn(self._finish_unread())

    async def detach(self) -> None:
        """Nobody listens here any more; the answer goes on, and counts as before."""
        self.is_ended = True
        self._responses.forget(self)
        await self._stream.close()

    async def _finish_unread(self) -> None:
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                await self._responses.engine.cancel(self.request_id)
                async for _ in self:
                    pass
        except (TimeoutError, ReparteeError) as error:
            logger.warning("abandoned response %s did not end: %r", self.request_id, error)
        finally:
            if not self.is_ended:
                self._end(None)
            await self._stream.close()

    def _end(self, event: Finished | Failed | None) -> None:
        self.is_ended = True
        self._responses.ended(self, self._meter, event)

    def count(self, meter: ResponseMeter, event: Finished | Failed | None) -> None:
        """Count the end, here and now; None for one that did not come."""
        if event is None:
            meter.abandon()
        else:
            meter.note(event)
        log_end(self.request_id, meter)
        if self._request is not None:
            self._responses.tracing.ended(self._request, self._trace_parent, meter.summary)


class Responses:
    """All answers of this gateway.

    Args:
        engine: The way to the workers.
        metrics: Where answers are counted.
        limiter: What callers may ask for.
        answer_timeout_s: Deadline of each answer, from its request.
        tracing: Told of each answer that ended.
        ledger: Lets others count what this gateway leaves behind.

    Attributes:
        is_draining: New work is refused.
        closing: Set when answers that still run have to end.
    """

    def __init__(
        self,
        engine: EngineClient,
        metrics: GatewayMetrics,
        limiter: Limiter,
        answer_timeout_s: float,
        tracing: Tracing,
        ledger: AnswerLedger,
    ) -> None:
        self.tracing = tracing
        self.ledger = ledger
        self.engine = engine
        self.limiter = limiter
        self._metrics = metrics
        self._answer_timeout_s = answer_timeout_s
        self._running: set[Answer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._impatient = asyncio.Event()
        self.closing = asyncio.Event()
        self.is_draining = False

    @property
    def num_running(self) -> int:
        """Answers that have not ended, and work that follows them."""
        return len(self._running) + len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that outlives its request; `drain` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("work on a response failed", exc_info=task.exception())

    def forget(self, answer: Answer) -> None:
        """An answer is not followed any more."""
        self._running.discard(answer)

    def ended(
        self, answer: Answer, meter: ResponseMeter | None, event: Finished | Failed | None
    ) -> None:
        """Called by an answer at its end.

        Args:
            answer: Which.
            meter: Counts it; None for an answer that another request counts.
            event: The end; None if it did not come.
        """
        self.forget(answer)
        if meter is not None and self.ledger.is_held:
            self._count(answer, meter, event, is_ours=not self.ledger.is_taken(answer.request_id))
        elif meter is not None:
            self.spawn(self._count_late(answer, meter, event))
        if answer.charge is not None:
            self.spawn(self.limiter.settle(answer.charge, answer.used_tokens))
        else:
            work = self.limiter.settle_for_another(answer.request_id, answer.used_tokens)
            self.spawn(work)

    def _count(
        self,
        answer: Answer,
        meter: ResponseMeter,
        event: Finished | Failed | None,
        *,
        is_ours: bool,
    ) -> None:
        if is_ours:
            answer.count(meter, event)
        else:
            meter.leave()
        self.ledger.end(answer.request_id)

    async def _count_late(
        self, answer: Answer, meter: ResponseMeter, event: Finished | Failed | None
    ) -> None:
        """This gateway was held up, and others may have taken it for dead."""
        is_ours = await self.ledger.is_ours(answer.request_id)
        self._count(answer, meter, event, is_ours=is_ours)

    async def count_for_another(
        self, response_id: str, entry: Entry, event: Finished | Failed
    ) -> None:
        """Count the end of an answer whose gateway has died, and settle it."""
        meter = self._metrics.meter_for_another(entry.api, entry.tier)
        meter.note(event)
        log_end(response_id, meter)
        await self.limiter.settle_for_another(response_id, event_tokens(event))

    def check_open(self) -> None:
        """Refuse new work while the gateway is stopping.

        Raises:
            Unavailable: with a hint to retry.
        """
        if self.is_draining:
            raise draining_error()

    def next_deadline(self) -> float:
        """Deadline of an answer asked for now, in Unix seconds."""
        return time.time() + self._answer_timeout_s

    async def submit(
        self,
        request_id: str,
        *,
        api: str,
        model: str,
        messages: tuple[Message, ...],
        sampling: SamplingParams,
        principal: Principal,
        conversation_id: str | None = None,
    ) -> Answer:
        """Ask the engine for an answer.

        Raises:
            RateLimited: the caller's limits do not have it.
            ReparteeError: if no worker takes it.
        """
        self.check_open()
        window = self.engine.card(model).context_window
        try:
            charge = await self.limiter.take(
                principal, request_id, foreseen_tokens(messages, sampling, window)
            )
        except RateLimited:
            self._metrics.limited.labels(api, principal.tier.value).inc()
            raise
        meter = self._metrics.meter(api, principal.tier)
        now, deadline_at = time.time(), self.next_deadline()
        self.ledger.begin(request_id, Entry(api, principal.tier, deadline_at))
        request = GenerateRequest(
            request_id=request_id,
            model=model,
            messages=messages,
            sampling=sampling,
            tier=principal.tier,
            tenant=principal.tenant,
            conversation_id=conversation_id,
            reply_to=self.engine.gateway_id,
            created_at=now,
            deadline_at=deadline_at,
        )
        try:
            stream = await self.engine.submit(request)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                # The caller has left.
                meter.abandon()
            else:
                meter.fail(error)
            self.ledger.end(request_id)
            self.spawn(self.limiter.settle(charge, 0))
            raise
        answer = Answer(self, stream, meter, charge, request)
        self._running.add(answer)
        return answer

    async def attach(self, request_id: str) -> Answer:
        """Listen to an answer that was asked for before, from its first event.

        Raises:
            NotFound: nothing is known of it any more.
        """
        answer = Answer(self, await self.engine.attach(request_id))
        self._running.add(answer)
        return answer

    async def drain(self, timeout_s: float) -> None:
        """Take no more, and wait for what runs; give up after `timeout_s`."""
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                while self.num_running and not self._impatient.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._impatient.wait(), DRAIN_POLL_S)
        except TimeoutError:
            logger.warning("%d answers outlast the grace of %g s", self.num_running, timeout_s)

    def stop_draining(self) -> None:
        """Let `drain` return at once."""
        self._impatient.set()

    async def close(self) -> None:
        """Stop following what still runs."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
