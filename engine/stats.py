"""What the engine counts and reports about itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.step import StepTimes

# Share of the past kept from one step to the next in the moving rate.
_RATE_KEEP = 0.95


@dataclass(slots=True)
class Totals:
    """Sums since start, and a moving rate.

    Attributes:
        requests: Accepted.
        refused: Refused as Overloaded, by tier.
        ended: Ended, by finish reason, or `failed`.
        steps: Steps that computed something.
        step_faults: Steps in which the runner failed.
        checks: How often the bookkeeping was checked on demand.
        check_faults: How often of these it disagreed with itself.
        computed_tokens: Tokens that went through the model, prompt and answer.
        sampled_tokens: Tokens sampled.
        completion_tokens: Tokens in ended answers.
        times: Where the time of all steps went.
        last_step: Where the time of the last step went.
    """

    requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    step_faults: int = 0
    checks: int = 0
    check_faults: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    completion_tokens: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    last_step: StepTimes = field(default_factory=StepTimes)
    _recent_tokens: float = 0.0
    _recent_s: float = 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Sampled tokens per second over about the last twenty steps; 0 if unknown."""
        return self._recent_tokens / self._recent_s if self._recent_s else 0.0

    def record_step(
        self, times: StepTimes, *, num_tokens: int, num_sampled: int, elapsed_s: float
    ) -> None:
        """Add one step."""
        self.steps += 1
        self.computed_tokens += num_tokens
        self.sampled_tokens += num_sampled
        self.times += times
        self.last_step = times
        self._recent_tokens = self._recent_tokens * _RATE_KEEP + num_sampled
        self._recent_s = self._recent_s * _RATE_KEEP + elapsed_s

    def counters(self) -> dict[str, float]:
        """The sums by Prometheus name."""
        counters: dict[str, float] = {
            "repartee_engine_requests_total": self.requests,
            "repartee_engine_steps_run_total": self.steps,
            "repartee_engine_step_faults_total": self.step_faults,
            "repartee_engine_checks_total": self.checks,
            "repartee_engine_check_faults_total": self.check_faults,
            "repartee_engine_computed_tokens_total": self.computed_tokens,
            "repartee_engine_sampled_tokens_total": self.sampled_tokens,
            "repartee_engine_completion_tokens_total": self.completion_tokens,
        }
        for reason, count in self.ended.items():
            counters[f"repartee_engine_{reason}_total"] = count
        for tier, count in self.refused.items():
            counters[f"repartee_engine_refused_{tier}_total"] = count
        for part in ("schedule", "prepare", "forward", "sample", "text"):
            counters[f"repartee_engine_{part}_seconds_total"] = getattr(self.times, f"{part}_s")
        return counters


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine now.

    Attributes:
        num_running: Sequences in the batch.
        num_waiting: Sequences in the queue, suspended ones included.
        used_blocks: KV blocks that sequences refer to; 0 when idle.
        num_blocks: KV blocks in all.
        decode_tokens_per_s: Moving average over all sequences; 0 if unknown.
        counters: Further monotonic counters and gauges by Prometheus name.
        held: Tokens of the prefixes kept for conversations, by `conversation_tag`.
    """

    num_running: int
    num_waiting: int
    used_blocks: int
    num_blocks: int
    decode_tokens_per_s: float
    counters: Mapping[str, float]
    held: Mapping[str, int] = field(default_factory=dict)
