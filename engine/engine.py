"""The engine: requests in, events out, one step at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from engine.chunker import Chunk
from engine.config import EngineConfig
from engine.contract import (
    Accepted,
    Conflict,
    DeadlineExceeded,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    ModelCard,
    Overloaded,
    ReparteeError,
    SamplingParams,
    Tier,
    Unavailable,
    Warm,
)
from engine.contract.keys import WORKER_BEAT_S
from engine.host_tier import HostTier
from engine.invariants import check_invariants
from engine.prefix_cache import extend_names
from engine.preparer import Prepared, PreparedWarmUp, Preparer
from engine.retention import Retention
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import EngineStats, Totals
from engine.step import Runner, StepOutput, StepPlan, StepTimes, Work
from engine.step_trace import StepRecord, StepTrace
from engine.text_stream import TextStream

logger = logging.getLogger(__name__)

# Least wait that is told to a client that isn't taken.
_RETRY_AFTER_MS = 1000


class Vocabulary(Protocol):
    """What the engine needs of a tokenizer to turn tokens into text."""

    @property
    def eos_ids(self) -> Iterable[int]:
        """Tokens that end a turn."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; b"" for a control token."""
        ...


class Engine:
    """Continuous batching of many requests over one runner.

    `prepare` may be called from any thread. Everything else belongs to one thread:
    add, cancel and step return the events they caused, in order, and each request
    ends with exactly one of Finished and Failed.

    Args:
        config: Settings.
        card: The model's.
        runner: Executes steps.
        vocabulary: Bytes of tokens, and which end a turn.
        encode_chat: Renders and tokenises the turns of a request; thread-safe.
        clock: Seconds, monotonic.
        wall_clock: Unix seconds, for deadlines.
        host_tier: Takes the blocks that leave the pool; None drops them.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        card: ModelCard,
        runner: Runner,
        vocabulary: Vocabulary,
        encode_chat: Callable[[tuple[Message, ...]], list[int]],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        host_tier: HostTier | None = None,
    ) -> None:
        self.config = config
        self.card = card
        self.scheduler = Scheduler(config, runner.max_decode_steps, host_tier)
        max_retained = int(config.num_blocks * config.retained_share)
        self.retention = Retention(self.scheduler.blocks, max_retained, config.retained_s)
        self.sequences: dict[str, Sequence] = {}
        self.totals = Totals()
        self.trace = StepTrace()
        self.draining = False
        self._runner = runner
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._preparer = Preparer(config, card, encode_chat)
        self._clock = clock
        self._wall_clock = wall_clock
        self._num_added = 0
        self._held: dict[str, int] = {}
        self._held_at = float("-inf")
        # No live request has an earlier deadline.
        self._next_deadline = float("inf")

    @property
    def max_sequence_tokens(self) -> int:
        """Prompt and answer together: the model's window, or the whole KV pool."""
        return self._preparer.max_sequence_tokens

    def has_work(self) -> bool:
        """Whether any request waits or runs, or a warm-up can go on."""
        return bool(self.sequences) or len(self.scheduler.warm_ups) > 0

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Tokenise and check a request; see `Preparer.prepare`. Thread-safe."""
        return self._preparer.prepare(request)

    def add(self, prepared: Prepared) -> list[Event]:
        """Queue a prepared request.

        Raises:
            Unavailable: while draining.
            Overloaded: where its tier's queue is full, or the predicted wait is too
                long; it says how long.
            Conflict: for the id of a request that still lives.
        """
        request = prepared.request
        if self.draining:
            raise Unavailable("The worker is shutting down.", retry_after_ms=_RETRY_AFTER_MS)
        if request.request_id in self.sequences:
            raise Conflict(
                f"request {request.request_id} is already being answered.",
                code="duplicate_request",
            )
        seq = self._new_sequence(prepared)
        self._refuse_long_wait(seq)
        if request.conversation_id is not None:
            self.scheduler.warm_ups.end(request.conversation_id)
        self.sequences[request.request_id] = seq
        self.scheduler.add(seq)
        self._next_deadline = min(self._next_deadline, request.deadline_at)
        self.totals.requests += 1
        accepted = Accepted(
            request.request_id, request.epoch, self._take_seq(seq), len(prepared.tokens)
        )
        self._check()
        return [accepted]

    def _refuse_long_wait(self, seq: Sequence) -> None:
        """Raise Overloaded where waiting would be of no use."""
        tier = seq.request.tier
        wait_s = self.scheduler.foresee_wait_s(seq)
        retry_after_ms = max(math.ceil(wait_s * 1000), _RETRY_AFTER_MS)
        num_waiting = sum(other.request.tier is tier for other in self.scheduler.waiting)
        if num_waiting >= self.config.max_waiting:
            self.totals.refused[tier.value] += 1
            raise Overloaded(
                f"The queue is full: {num_waiting} {tier.value} requests wait.",
                retry_after_ms=retry_after_ms,
            )
        left_s = seq.request.deadline_at - self._wall_clock()
        limit_s = min(self.scheduler.waits.limit_s(tier), left_s)
        if wait_s > max(limit_s, 0.0):
            self.totals.refused[tier.value] += 1
            raise Overloaded(
                f"The wait would be about {wait_s:.1f} s; {tier.value} requests are taken "
                f"up to {limit_s:.1f} s.",
                retry_after_ms=retry_after_ms,
            )

    def _new_sequence(self, prepared: Prepared) -> Sequence:
        sampling = prepared.request.sampling
        num_prompt_tokens = len(prepared.tokens)
        limit = self.max_sequence_tokens
        if sampling.max_tokens is not None:
            limit = min(limit, num_prompt_tokens + sampling.max_tokens)
        stop_ids = frozenset(sampling.stop_token_ids)
        self._num_added += 1
        now = self._clock()
        return Sequence(
            id=self._num_added,
            request=prepared.request,
            tokens=list(prepared.tokens),
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=limit,
            seed=prepared.seed,
            end_ids=stop_ids if sampling.ignore_eos else stop_ids | self._eos_ids,
            masked_ids=tuple(sorted(stop_ids | self._eos_ids)),
            block_names=list(prepared.block_names),
            root_name=prepared.root_name,
            stream=TextStream(
                self._vocabulary.token_bytes, sampling.stop, self.config.flush_ms / 1000
            ),
            arrived_at=now,
            enqueued_at=now,
        )

    def prepare_warm_up(self, warm: Warm) -> PreparedWarmUp:
        """Tokenise a draft; see `Preparer.prepare_warm_up`. Thread-safe."""
        return self._preparer.prepare_warm_up(warm)

    def warm_up(self, prepared: PreparedWarmUp) -> None:
        """Compute a prompt's beginning when there's time; see `engine.warm_ups`."""
        if self.draining or not prepared.tokens:
            return
        warm = prepared.warm
        now = self._clock()
        self._num_added += 1
        seq = Sequence(
            id=self._num_added,
            request=_warm_request(warm),
            tokens=prepared.tokens,
            num_prompt_tokens=len(prepared.tokens),
            max_tokens=len(prepared.tokens) + 1,
            seed=0,
            end_ids=self._eos_ids,
            masked_ids=(),
            block_names=prepared.block_names,
            root_name=prepared.root_name,
            stream=TextStream(self._vocabulary.token_bytes, (), 0.0),
            arrived_at=now,
            enqueued_at=now,
        )
        self.scheduler.warm_ups.add(warm.conversation_id, seq, now)

    def release(self, conversation_id: str) -> None:
        """A conversation is closed: end its warm-up, keep its KV by no preference.

        Unknown ids are ignored.
        """
        self.scheduler.warm_ups.end(conversation_id)
        self.retention.release(conversation_id)

    def cancel(self, request_id: str) -> list[Event]:
        """End a request now, with the text and usage so far. Unknown ids are ignored."""
        seq = self.sequences.get(request_id)
        if seq is None:
            return []
        return self._finish(seq, FinishReason.CANCELLED, self._clock())

    def drain(self) -> None:
        """Take no more requests; what lives is answered to its end."""
        self.draining = True
        self.scheduler.warm_ups.clear()

    def step(self) -> list[Event]:
        """Run one step of all that can run, and return what came of it."""
        started = self._clock()
        events = self._expire(started)
        self.retention.expire(started)
        plan = self.scheduler.schedule(started)
        # A failure here leaves KV in doubt, so it is everybody's.
        self.scheduler.swaps.carry_out(self._runner)
        scheduled = self._clock()
        if plan.work:
            output = self._run(plan, events)
            finished = self._clock()
            if output is not None:
                self.scheduler.record_cost(plan, (finished - scheduled) * 1000)
                self._take_output(plan, output, finished, events)
                self._flush(events)
                self._record_step(plan, output, (started, scheduled, finished))
        self._flush(events)
        self._check()
        return events

    def _record_step(
        self, plan: StepPlan, output: StepOutput, at: tuple[float, float, float]
    ) -> None:
        """Note where a step's time went; `at` is when it started, was planned and was run."""
        started, scheduled, finished = at
        now = self._clock()
        times = StepTimes(
            schedule_s=scheduled - started,
            prepare_s=output.times.prepare_s,
            forward_s=output.times.forward_s,
            sample_s=output.times.sample_s,
            text_s=now - finished,
        )
        num_sampled = sum(len(tokens) for tokens in output.tokens.values())
        self.totals.record_step(
            times,
            num_tokens=plan.num_tokens,
            num_sampled=num_sampled,
            elapsed_s=now - started,
        )
        self.trace.add(StepRecord(started, times, len(plan.work), plan.num_tokens, num_sampled))

    def stats(self) -> EngineStats:
        """Gauges and totals, for the heartbeat and metrics."""
        scheduler = self.scheduler
        counters = self.totals.counters()
        counters["repartee_engine_admissions_total"] = scheduler.counts.admissions
        counters["repartee_engine_suspensions_total"] = scheduler.counts.suspensions
        counters["repartee_engine_cached_tokens_total"] = scheduler.counts.cached_tokens
        counters["repartee_engine_drafted_tokens_total"] = scheduler.speculation.num_drafted
        counters["repartee_engine_accepted_tokens_total"] = scheduler.speculation.num_accepted
        counters["repartee_engine_drafting_requests_total"] = scheduler.speculation.num_requests
        counters["repartee_engine_acceptance_sum_total"] = scheduler.speculation.acceptance
        if scheduler.swaps.host is not None:
            counters.update(scheduler.swaps.host.counters())
        warm_ups = scheduler.warm_ups.counts
        counters["repartee_engine_warm_ups_total"] = warm_ups.warm_ups
        counters["repartee_engine_warm_tokens_total"] = warm_ups.tokens
        counters["repartee_engine_retained_conversations"] = len(self.retention)
        counters["repartee_engine_retained_blocks"] = scheduler.blocks.num_kept
        counters["repartee_engine_cached_blocks"] = scheduler.blocks.num_named
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            used_blocks=scheduler.blocks.num_used,
            num_blocks=scheduler.blocks.num_blocks,
            decode_tokens_per_s=self.totals.decode_tokens_per_s,
            counters=counters,
            held=self._held_now(),
        )

    def _held_now(self) -> dict[str, int]:
        """What is kept for conversations, looked up no more often than heartbeats tell it."""
        now = self._clock()
        if now - self._held_at >= WORKER_BEAT_S:
            self._held_at = now
            self._held = self.retention.held()
        return self._held

    def _run(self, plan: StepPlan, events: list[Event]) -> StepOutput | None:
        """Run a plan; where the runner fails, only the plan's own requests fail."""
        try:
            return self._runner.run(plan)
        except Exception:
            logger.exception("step failed; %d requests with it", len(plan.work))
            self.totals.step_faults += 1
            for item in plan.work:
                if self.scheduler.warm_ups.is_in_step(item.sequence):
                    self.scheduler.warm_ups.failed(item)
                    continue
                fault = EngineFault("The engine failed on this request.")
                events += self._fail(item.sequence, fault, self._clock())
            return None

    def _take_output(
        self, plan: StepPlan, output: StepOutput, now: float, events: list[Event]
    ) -> None:
        for item in plan.work:
            if self.scheduler.warm_ups.is_in_step(item.sequence):
                self.scheduler.warm_ups.computed(item)
                continue
            sampled = output.tokens.get(item.sequence.id, [])
            if item.draft:
                self.scheduler.speculation.record_outcome(
                    item.sequence, item.draft, len(sampled) - 1
                )
            reason = self._extend(item, sampled, now)
            if isinstance(reason, ReparteeError):
                events += self._fail(item.sequence, reason, now)
            elif reason is not None:
                events += self._finish(item.sequence, reason, now)

    def _extend(
        self, item: Work, sampled: list[int], now: float
    ) -> FinishReason | ReparteeError | None:
        """Take a sequence's new tokens; returns why it ends, if it does."""
        seq = item.sequence
        reason: FinishReason | ReparteeError | None = None
        for token in sampled:
            if token < 0:
                logger.error("request %s: no finite logit to sample from", seq.request_id)
                reason = EngineFault("The engine failed on this request.")
                break
            if token in seq.end_ids:
                reason = FinishReason.STOP
                break
            seq.tokens.append(token)
            seq.stream.push(token, now)
            if seq.stream.stopped:
                reason = FinishReason.STOP
                break
            if seq.num_remaining <= 0:
                reason = FinishReason.LENGTH
                break
        # The last sampled token has no KV yet.
        num_computed = item.start + item.num_tokens + max(len(sampled) - 1, 0)
        if self.config.prefix_cache:
            extend_names(seq.block_names, seq.root_name, seq.tokens, self.config.block_size)
        self.scheduler.computed(seq, min(num_computed, len(seq.tokens)))
        return reason

    def _expire(self, now: float) -> list[Event]:
        """Fail what is past its deadline, waiting or running."""
        wall = self._wall_clock()
        events: list[Event] = []
        if wall < self._next_deadline:
            return events
        for seq in list(self.sequences.values()):
            if wall >= seq.request.deadline_at:
                error = DeadlineExceeded("The request's deadline passed before its answer ended.")
                events += self._fail(seq, error, now)
        self._next_deadline = min(
            (seq.request.deadline_at for seq in self.sequences.values()), default=float("inf")
        )
        return events

    def _flush(self, events: list[Event]) -> None:
        """Send every chunk that is full or has waited long enough."""
        now = self._clock()
        for seq in self.sequences.values():
            if seq.stream.has_unsent:
                events += self._deltas(seq, seq.stream.take(now))

    def _finish(self, seq: Sequence, reason: FinishReason, now: float) -> list[Event]:
        events = self._end(seq, now)
        usage = seq.usage()
        self.totals.ended[reason.value] += 1
        if reason is not FinishReason.CANCELLED:
            self.scheduler.waits.ended(seq)
        self.totals.completion_tokens += usage.completion_tokens
        events.append(
            Finished(seq.request_id, seq.request.epoch, self._take_seq(seq), reason, usage)
        )
        self._check()
        return events

    def _fail(self, seq: Sequence, error: ReparteeError, now: float) -> list[Event]:
        events = self._end(seq, now)
        usage = seq.usage()
        self.totals.ended["failed"] += 1
        self.totals.completion_tokens += usage.completion_tokens
        events.append(Failed(seq.request_id, seq.request.epoch, self._take_seq(seq), error, usage))
        return events

    def _end(self, seq: Sequence, now: float) -> list[Event]:
        """Take a sequence out of everything; returns the rest of its text."""
        events = self._deltas(seq, seq.stream.finish(now))
        conversation_id = seq.request.conversation_id
        if conversation_id is not None and seq.num_named:
            self.retention.keep(conversation_id, seq.block_names[: seq.num_named], now)
        self.scheduler.remove(seq)
        self.scheduler.speculation.ended(seq)
        del self.sequences[seq.request_id]
        return events

    def _deltas(self, seq: Sequence, chunks: list[Chunk]) -> list[Event]:
        return [
            Delta(
                seq.request_id,
                seq.request.epoch,
                self._take_seq(seq),
                chunk.text,
                chunk.num_tokens,
            )
            for chunk in chunks
        ]

    @staticmethod
    def _take_seq(seq: Sequence) -> int:
        seq.next_seq += 1
        return seq.next_seq - 1

    def _check(self) -> None:
        if self.config.check_invariants:
            check_invariants(self)


def _warm_request(warm: Warm) -> GenerateRequest:
    """The request behind a warm-up's sequence, which nobody answers."""
    return GenerateRequest(
        request_id=f"warm-up of {warm.conversation_id}",
        model=warm.model,
        messages=warm.messages,
        sampling=SamplingParams(),
        tier=Tier.BATCH,
        tenant=warm.tenant,
        conversation_id=warm.conversation_id,
        reply_to="",
        created_at=warm.created_at,
        deadline_at=float("inf"),
    )
