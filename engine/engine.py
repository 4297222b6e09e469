"""The engine: requests in, events out, one step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.answers import Answers
from engine.config import EngineConfig
from engine.contract import (
    Conflict,
    EngineFault,
    Event,
    FinishReason,
    GenerateRequest,
    ModelCard,
    Unavailable,
    Warm,
)
from engine.gate import RETRY_AFTER_MS, Gate
from engine.gauges import Gauges
from engine.host_tier import HostTier
from engine.intake import Intake, Vocabulary
from engine.invariant_error import InvariantError
from engine.invariants import check_invariants
from engine.preparer import Prepared, PreparedWarmUp, Preparer
from engine.retention import Retention
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import EngineStats, Totals
from engine.step import Runner, StepOutput, StepPlan, StepTimes
from engine.step_trace import EngineReport, StepRecord, StepTrace
from engine.system_prompts import SystemPrompts
from engine.turn_memo import TurnMemo

logger = logging.getLogger(__name__)


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
        memo: Remembers the tokens of earlier turns for an `encode_chat` that takes a
            `recall`; see `engine.preparer`.
        clock: Seconds, monotonic.
        wall_clock: Unix seconds, for deadlines.
        host_tier: Takes the blocks that leave the pool; None drops them.
        scheduler_type: Another policy, for comparisons.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        card: ModelCard,
        runner: Runner,
        vocabulary: Vocabulary,
        encode_chat: Callable[..., list[int]],
        memo: TurnMemo | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        host_tier: HostTier | None = None,
        scheduler_type: type[Scheduler] = Scheduler,
    ) -> None:
        self.config = config
        self.card = card
        self.scheduler = scheduler_type(
            config,
            runner.max_decode_steps,
            host_tier,
            runner.max_ahead_steps,
            runner.piece_layers,
        )
        max_retained = int(config.num_blocks * config.retained_share)
        self.retention = Retention(self.scheduler.blocks, max_retained, config.retained_s)
        self.system_prompts = SystemPrompts(self.scheduler.blocks)
        self.totals = Totals()
        self.trace = StepTrace()
        self.draining = False
        self._runner = runner
        self._clock = clock
        self._preparer = Preparer(config, card, encode_chat, memo)
        self._intake = Intake(config, vocabulary, self._preparer.max_sequence_tokens, clock)
        self._gate = Gate(config, self.scheduler, self.totals, wall_clock)
        self._answers = Answers(config, self.scheduler, self.retention, self.totals, wall_clock)
        self._gauges = Gauges(
            self.scheduler,
            self.retention,
            self.system_prompts,
            totals=self.totals,
            device=runner.gauges,
            clock=clock,
        )

    @property
    def sequences(self) -> dict[str, Sequence]:
        """The requests that live, by id."""
        return self._answers.sequences

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

    def prepare_warm_up(self, warm: Warm) -> PreparedWarmUp:
        """Tokenise a draft; see `Preparer.prepare_warm_up`. Thread-safe."""
        return self._preparer.prepare_warm_up(warm)

    def add(self, prepared: Prepared) -> list[Event]:
        """Queue a prepared request; one that another engine began goes on from there.

        Raises:
            Unavailable: while draining.
            Overloaded: where its tier's queue is full, or the predicted wait is too
                long; it says how long.
            Conflict: for the id of a request that still lives.
            EngineFault: for another engine's answer whose text this one can't go on with.
        """
        request = prepared.request
        if self.draining:
            raise Unavailable("The worker is shutting down.", retry_after_ms=RETRY_AFTER_MS)
        if request.request_id in self.sequences:
            raise Conflict(
                f"request {request.request_id} is already being answered.",
                code="duplicate_request",
            )
        seq = self._intake.request(prepared)
        self._gate.check(seq)
        if request.conversation_id is not None:
            self.scheduler.warm_ups.end(request.conversation_id)
        events = self._answers.begin(seq)
        self.scheduler.add(seq)
        if prepared.system is not None:
            self.system_prompts.note(prepared.system, prepared.block_names)
        events += self._answers.end_if_made(seq, self._clock())
        self._check()
        return events

    def warm_up(self, prepared: PreparedWarmUp) -> None:
        """Compute a prompt's beginning when there's time; see `engine.warm_ups`."""
        if self.draining or not prepared.tokens:
            return
        seq = self._intake.warm_up(prepared)
        self.scheduler.warm_ups.add(prepared.warm.conversation_id, seq, seq.arrived_at)

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
        events = self._answers.finish(seq, FinishReason.CANCELLED, self._clock())
        self._check()
        return events

    def drain(self) -> None:
        """Take no more requests; what lives is answered to its end."""
        self.draining = True
        self.scheduler.warm_ups.clear()

    def stats(self) -> EngineStats:
        """Gauges and totals, for the heartbeat and metrics."""
        return self._gauges.read()

    def step(self) -> list[Event]:
        """Run one step of all that can run, and return what came of it."""
        started = self._clock()
        events = self._answers.expire(started)
        self.retention.expire(started)
        plan = self.scheduler.schedule(started)
        # A failure here leaves KV in doubt, so it is everybody's.
        self.scheduler.swaps.carry_out(self._runner)
        scheduled = self._clock()
        if plan.work:
            output = self._run(plan, events)
            finished = self._clock()
            if output is not None:
                run_s = finished - scheduled - output.setup_s
                self.scheduler.record_cost(plan, run_s * 1000)
                self._take_output(plan, output, finished, events)
                events += self._answers.flush(self._clock())
                self._record_step(plan, output, (started, scheduled, finished))
        events += self._answers.flush(self._clock())
        self._check()
        return events

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
                events += self._answers.fail(item.sequence, fault, self._clock())
            return None

    def _take_output(
        self, plan: StepPlan, output: StepOutput, now: float, events: list[Event]
    ) -> None:
        for item in plan.work:
            if self.scheduler.warm_ups.is_in_step(item.sequence):
                self.scheduler.warm_ups.computed(item)
                continue
            if not item.finishes:
                self.scheduler.computed_layers(item)
                continue
            sampled = output.tokens.get(item.sequence.id, [])
            if item.draft:
                self.scheduler.speculation.record_outcome(
                    item.sequence, item.draft, len(sampled) - 1
                )
            events += self._answers.extend(item, sampled, now)

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
        num_tokens = plan.num_finished_tokens
        self.totals.record_step(
            times,
            num_tokens=num_tokens,
            num_sampled=num_sampled,
            elapsed_s=now - started,
        )
        self.trace.add(StepRecord(started, times, len(plan.work), num_tokens, num_sampled))

    def report(self) -> EngineReport:
        """The latest steps, and whether all bookkeeping agrees; takes milliseconds."""
        fault = ""
        self.totals.checks += 1
        try:
            check_invariants(self)
        except InvariantError as error:
            fault = str(error)
        except Exception as error:
            # Books that are wrong enough trip their checker; it may not take the worker along.
            logger.exception("the invariant checker failed")
            fault = f"the checker failed: {error!r}"
        if fault:
            self.totals.check_faults += 1
        return EngineReport(self.trace.records, fault)

    def _check(self) -> None:
        if self.config.check_invariants:
            check_invariants(self)
