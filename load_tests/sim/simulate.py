"""One trace through the real engine under one policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.contract import (
    Delta,
    Finished,
    GenerateRequest,
    Message,
    ModelCard,
    Overloaded,
    SamplingParams,
)
from engine.engine import Engine
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from load_tests.sim.machine import Clock, Costs, Machine, Vocabulary
from load_tests.sim.trace import SYSTEM_TOKENS, Arrival, mean_lengths

# Sequences in a batch at which the machine's capacity is taken.
CAPACITY_BATCH = 32
NEVER_S = 1e9


@dataclass(slots=True)
class Outcome:
    """What became of one request; times in seconds, NaN where it didn't come to that.

    Attributes:
        arrival: The request.
        refused_retry_ms: The wait that a refusal named; None where it was accepted.
        start_wait_s: From arrival until it first ran.
        ttft_s: From arrival to the first text.
        gaps_s: Between its chunks of text.
    """

    arrival: Arrival
    refused_retry_ms: int | None = None
    start_wait_s: float = math.nan
    ttft_s: float = math.nan
    gaps_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """One simulation's outcome.

    Attributes:
        outcomes: In order of arrival.
        goodput: Answer tokens a second while requests arrived.
        num_suspensions: Over the whole run.
    """

    outcomes: list[Outcome]
    goodput: float
    num_suspensions: int


def capacity_requests_per_s(costs: Costs) -> float:
    """Requests a second that a full batch gets through, shared prompts found in the cache."""
    own_tokens, answer_tokens = mean_lengths()
    token_ms = costs.base_ms / CAPACITY_BATCH + costs.decode_ms
    return 1000 / (own_tokens * costs.prompt_ms + answer_tokens * token_ms)


def encode_chat(messages: tuple[Message, ...]) -> list[int]:
    """A token for each byte."""
    return list("".join(message.content for message in messages).encode())


class Simulation:
    """An engine on a virtual clock.

    Args:
        policy: The scheduler's class.
        config: The engine's.
        costs: The machine's.
        seed: Of the machine's noise.
    """

    def __init__(
        self,
        policy: type[Scheduler],
        config: EngineConfig,
        costs: Costs,
        seed: int,
    ) -> None:
        self.clock = Clock()
        self.engine = Engine(
            config,
            card=ModelCard("simulated", 0, 8192, 256, 1, "none"),
            runner=Machine(self.clock, costs, seed),
            vocabulary=Vocabulary(),
            encode_chat=encode_chat,
            clock=self.clock,
            wall_clock=self.clock,
            scheduler_type=policy,
        )
        self._outcomes: dict[str, Outcome] = {}
        self._sequences: dict[str, Sequence] = {}
        self._last_text_s: dict[str, float] = {}

    def run(self, trace: list[Arrival]) -> Run:
        """Let the whole trace arrive, then work until nothing is left."""
        pending = list(reversed(trace))
        tokens_at_end = None
        while pending or self.engine.has_work():
            while pending and pending[-1].at_s <= self.clock.now:
                self._arrive(pending.pop())
            if not pending and tokens_at_end is None:
                tokens_at_end = self.engine.totals.sampled_tokens
                ended_s = self.clock.now
            if self.engine.has_work():
                self._step()
            else:
                self.clock.now = pending[-1].at_s
        return Run(
            list(self._outcomes.values()),
            (tokens_at_end or 0) / ended_s,
            self.engine.scheduler.counts.suspensions,
        )

    def _arrive(self, arrival: Arrival) -> None:
        name = f"r{len(self._outcomes)}"
        outcome = self._outcomes[name] = Outcome(arrival)
        system = chr(ord("A") + arrival.system) * SYSTEM_TOKENS[arrival.system]
        own = (name + " " * arrival.own_tokens)[: arrival.own_tokens]
        request = GenerateRequest(
            request_id=name,
            model="simulated",
            messages=(Message("system", system), Message("user", own)),
            sampling=SamplingParams(seed=1, max_tokens=arrival.answer_tokens),
            tier=arrival.tier,
            tenant=arrival.tenant,
            conversation_id=None,
            reply_to="g",
            created_at=arrival.at_s,
            deadline_at=NEVER_S,
            epoch=1,
        )
        try:
            self.engine.add(self.engine.prepare(request))
        except Overloaded as refusal:
            outcome.refused_retry_ms = refusal.retry_after_ms
            return
        self._sequences[name] = self.engine.sequences[name]

    def _step(self) -> None:
        for event in self.engine.step():
            outcome = self._outcomes[event.request_id]
            if isinstance(event, Delta):
                now = self.clock.now
                last = self._last_text_s.get(event.request_id)
                if last is None:
                    outcome.ttft_s = now - outcome.arrival.at_s
                else:
                    outcome.gaps_s.append(now - last)
                self._last_text_s[event.request_id] = now
            elif isinstance(event, Finished):
                started_at = self._sequences.pop(event.request_id).started_at
                assert started_at is not None
                outcome.start_wait_s = started_at - outcome.arrival.at_s
