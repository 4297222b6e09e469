"""How long a new request would wait, and whether that is too long to take it."""

from __future__ import annotations

import math

from engine.config import EngineConfig
from engine.contract import Tier
from engine.sequence import TIER_RANKS, Sequence
from engine.step_budget import StepBudget

# Answer tokens expected before any answer has ended.
_FIRST_ANSWER_TOKENS = 128.0
_NEW_SHARE = 0.05
# How far back the work counts that came and that was done.
_MEMORY_S = 10.0
# Weight of the assumption that work takes as long as foreseen, in seconds of waiting.
_PRIOR_S = 2.0
# Waits are foreseen longer by this factor than on average they are.
_MARGIN = 2.0
# What part of the machine is left to a tier at least.
_LEAST_LEFT = 0.05


class WaitEstimator:
    """Predicts waits from the work that goes before.

    Work is measured in seconds of the machine: prompt tokens at the measured prefill
    rate, answer tokens at the rate of a decode in the present batch. How fast it is
    really got through, with work done twice and all else that the estimate leaves out,
    is measured while requests wait.
    """

    def __init__(self, config: EngineConfig, budget: StepBudget) -> None:
        self._limits_s = {
            Tier.VIP: config.vip_max_wait_ms / 1000,
            Tier.STANDARD: config.standard_max_wait_ms / 1000,
            Tier.BATCH: config.batch_max_wait_ms / 1000,
        }
        self._budget = budget
        self._answer_tokens = _FIRST_ANSWER_TOKENS
        # Seconds of work that came lately, by tier.
        self._come_s = dict.fromkeys(Tier, 0.0)
        # Over how long that was counted; grows to the length of the memory.
        self._counted_s = 0.0
        # Work done while others waited, and how long others waited.
        self._done_s = 0.0
        self._waited_s = 0.0
        self._noted_at = 0.0
        self._was_queued = False

    def limit_s(self, tier: Tier) -> float:
        """The longest wait with which a request of `tier` is still taken."""
        return self._limits_s[tier]

    def work_s(self, seq: Sequence, num_cached: int, batch: int) -> float:
        """Seconds of the machine that a sequence takes to its end; 0 while unknown.

        Args:
            seq: Waiting.
            num_cached: Tokens of it in the prefix cache.
            batch: Sequences that share a step's fixed costs.
        """
        token_ms = self._budget.prompt_token_ms
        decode_ms = self._budget.decode_ms(batch)
        if token_ms is None or decode_ms is None:
            return 0.0
        left = min(max(self._answer_tokens - seq.num_answer_tokens, 1.0), seq.num_remaining)
        prompt_ms = (len(seq.tokens) - num_cached) * token_ms
        return (prompt_ms + left * decode_ms * self._budget.slowness / batch) / 1000

    def wait_s(self, tier: Tier, work_ahead_s: float) -> float:
        """The wait behind so much work, with higher tiers passing meanwhile."""
        # Seconds of work that the machine gets done in a second.
        speed = min((self._done_s + _PRIOR_S) / (self._waited_s + _PRIOR_S), 1.0)
        passing = sum(
            come_s for other, come_s in self._come_s.items() if TIER_RANKS[other] < TIER_RANKS[tier]
        )
        return (
            _MARGIN * work_ahead_s / max(speed - passing / max(self._counted_s, 1.0), _LEAST_LEFT)
        )

    def note(self, now: float, is_queued: bool) -> None:
        """Tell the time, and whether anybody waits for the machine."""
        elapsed_s = max(now - self._noted_at, 0.0)
        kept = math.exp(-elapsed_s / _MEMORY_S)
        for tier in Tier:
            self._come_s[tier] *= kept
        self._counted_s = self._counted_s * kept + min(elapsed_s, _MEMORY_S)
        if self._was_queued:
            self._done_s *= kept
            self._waited_s = self._waited_s * kept + elapsed_s
        self._noted_at = now
        self._was_queued = is_queued

    def added(self, seq: Sequence) -> None:
        """A request was taken."""
        self._come_s[seq.request.tier] += seq.work_s

    def ended(self, seq: Sequence) -> None:
        """An answer ended by itself."""
        if self._was_queued:
            self._done_s += seq.work_s
        self._answer_tokens += _NEW_SHARE * (seq.num_answer_tokens - self._answer_tokens)
