"""The requests that live: their new tokens, their text, their ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.chunker import Chunk
from engine.config import EngineConfig
from engine.contract import (
    Accepted,
    DeadlineExceeded,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    ReparteeError,
)
from engine.prefix_cache import extend_names
from engine.retention import Retention
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import Totals
from engine.step import Work

logger = logging.getLogger(__name__)


class Answers:
    """Turns what was computed into events, each with its sequence's next `seq`.

    Every request that begins here ends with exactly one of Finished and Failed.

    Args:
        config: The engine's.
        scheduler: Told what was computed and what has ended.
        retention: Given the prefixes of ended responses.
        totals: Ends and tokens are counted here.
        wall_clock: Unix seconds, for deadlines.

    Attributes:
        sequences: Those that live, by request id.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        retention: Retention,
        totals: Totals,
        wall_clock: Callable[[], float],
    ) -> None:
        self.sequences: dict[str, Sequence] = {}
        self._config = config
        self._scheduler = scheduler
        self._retention = retention
        self._totals = totals
        self._wall_clock = wall_clock
        # No live request has an earlier deadline.
        self._next_deadline = float("inf")

    def begin(self, seq: Sequence) -> list[Event]:
        """A request was taken; that is told once, whoever goes on with it."""
        request = seq.request
        self.sequences[request.request_id] = seq
        # The wall's clock may be set while the answer is made.
        seq.expires_at = seq.arrived_at + request.deadline_at - self._wall_clock()
        self._next_deadline = min(self._next_deadline, seq.expires_at)
        self._totals.requests += 1
        if request.progress is not None and request.progress.prompt_tokens is not None:
            return []
        place = (request.request_id, request.epoch, _take_seq(seq))
        return [Accepted(*place, prompt_tokens=seq.num_prompt_tokens)]

    def end_if_made(self, seq: Sequence, now: float) -> list[Event]:
        """The events of its end, if another engine had made all of its tokens."""
        if seq.stream.stopped:
            return self.finish(seq, FinishReason.STOP, now)
        if seq.num_remaining <= 0:
            return self.finish(seq, FinishReason.LENGTH, now)
        return []

    def extend(self, item: Work, sampled: list[int], now: float) -> list[Event]:
        """Take a sequence's new tokens; returns the events of its end, if it ends."""
        seq = item.sequence
        reason = self._take_tokens(seq, sampled, now)
        # The last sampled token has no KV yet.
        num_computed = item.start + item.num_tokens + max(len(sampled) - 1, 0)
        if self._config.prefix_cache:
            extend_names(seq.block_names, seq.root_name, seq.tokens, self._config.block_size)
        self._scheduler.computed(seq, min(num_computed, len(seq.tokens)))
        if isinstance(reason, ReparteeError):
            return self.fail(seq, reason, now)
        return [] if reason is None else self.finish(seq, reason, now)

    @staticmethod
    def _take_tokens(
        seq: Sequence, sampled: list[int], now: float
    ) -> FinishReason | ReparteeError | None:
        """Why the sequence ends, if it does."""
        for token in sampled:
            if token < 0:
                logger.error("request %s: no finite logit to sample from", seq.request_id)
                return EngineFault("The engine failed on this request.")
            if token in seq.end_ids:
                return FinishReason.STOP
            seq.tokens.append(token)
            seq.stream.push(token, now)
            if seq.stream.stopped:
                return FinishReason.STOP
            if seq.num_remaining <= 0:
                return FinishReason.LENGTH
        return None

    def flush(self, now: float) -> list[Event]:
        """Every chunk that is full or has waited long enough."""
        events: list[Event] = []
        for seq in self.sequences.values():
            if seq.stream.has_unsent:
                events += _deltas(seq, seq.stream.take(now))
        return events

    def expire(self, now: float) -> list[Event]:
        """Fail what is past its deadline, waiting or running."""
        events: list[Event] = []
        if now < self._next_deadline:
            return events
        for seq in list(self.sequences.values()):
            if now >= seq.expires_at:
                error = DeadlineExceeded("The request's deadline passed before its answer ended.")
                events += self.fail(seq, error, now)
        self._next_deadline = min(
            (seq.expires_at for seq in self.sequences.values()), default=float("inf")
        )
        return events

    def finish(self, seq: Sequence, reason: FinishReason, now: float) -> list[Event]:
        """End a request well, or because it was cancelled."""
        events = self._end(seq, now)
        usage = seq.usage()
        self._totals.ended[reason.value] += 1
        if reason is not FinishReason.CANCELLED:
            self._scheduler.waits.ended(seq)
        self._totals.completion_tokens += usage.completion_tokens
        place = (seq.request_id, seq.request.epoch, _take_seq(seq))
        started_at = seq.started_at
        queued_ms = None if started_at is None else round((started_at - seq.arrived_at) * 1e3, 1)
        events.append(Finished(*place, reason, usage, queued_ms))
        return events

    def fail(self, seq: Sequence, error: ReparteeError, now: float) -> list[Event]:
        """End a request with an error."""
        events = self._end(seq, now)
        usage = seq.usage()
        self._totals.ended["failed"] += 1
        self._totals.completion_tokens += usage.completion_tokens
        events.append(Failed(seq.request_id, seq.request.epoch, _take_seq(seq), error, usage))
        return events

    def _end(self, seq: Sequence, now: float) -> list[Event]:
        """Take a sequence out of everything; returns the rest of its text."""
        events = _deltas(seq, seq.stream.finish(now))
        conversation_id = seq.request.conversation_id
        if conversation_id is not None and seq.num_named:
            self._retention.keep(conversation_id, seq.block_names[: seq.num_named], now)
        self._scheduler.remove(seq)
        self._scheduler.speculation.ended(seq)
        del self.sequences[seq.request_id]
        return events


def _deltas(seq: Sequence, chunks: list[Chunk]) -> list[Event]:
    events: list[Event] = []
    for chunk in chunks:
        place = (seq.request_id, seq.request.epoch, _take_seq(seq))
        tokens = tuple(seq.tokens[seq.num_told :])
        seq.num_told = len(seq.tokens)
        events.append(Delta(*place, chunk.text, chunk.num_tokens, tokens))
    return events


def _take_seq(seq: Sequence) -> int:
    seq.next_seq += 1
    return seq.next_seq - 1
