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
# What one wait may say about the estimates, and waits that say nothing.
_MAX_CORRECTION = 4.0
_LEAST_WAIT_S = 0.2
# How far back the work counts that higher tiers brought, and what part of the machine
# is left to a tier at least.
_MEMORY_S = 10.0
_LEAST_LEFT = 0.1


class WaitEstimator:
    """Predicts waits from the work that goes before, and learns from those that came true.

    Work is measured in seconds of the machine: prompt tokens at the measured prefill
    rate, answer tokens at the rate of a decode in the present batch.
    """

    def __init__(self, config: EngineConfig, budget: StepBudget) -> None:
        self._limits_s = {
            Tier.VIP: config.vip_max_wait_ms / 1000,
            Tier.STANDARD: config.standard_max_wait_ms / 1000,
            Tier.BATCH: config.batch_max_wait_ms / 1000,
        }
        self._budget = budget
        self._answer_tokens = _FIRST_ANSWER_TOKENS
        self._correction = dict.fromkeys(Tier, 1.0)
        # Seconds of work that came lately, by tier, and when that was counted.
        self._recent_work_s = dict.fromkeys(Tier, 0.0)
        self._recent_at_s = 0.0

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

    def wait_s(self, tier: Tier, work_ahead_s: float, now: float) -> float:
        """The wait behind so much work, with higher tiers passing meanwhile."""
        self._forget(now)
        passing_s = sum(
            self._recent_work_s[other] for other in Tier if TIER_RANKS[other] < TIER_RANKS[tier]
        )
        left = max(1 - passing_s / _MEMORY_S, _LEAST_LEFT)
        return work_ahead_s / left * self._correction[tier]

    def added(self, seq: Sequence, now: float) -> None:
        """A request was taken."""
        self._forget(now)
        self._recent_work_s[seq.request.tier] += seq.work_s

    def _forget(self, now: float) -> None:
        kept = math.exp(-max(now - self._recent_at_s, 0.0) / _MEMORY_S)
        self._recent_at_s = now
        for tier in Tier:
            self._recent_work_s[tier] *= kept

    def started(self, seq: Sequence, now: float) -> None:
        """A request runs for the first time: compare its wait with the prediction."""
        if seq.predicted_wait_s < _LEAST_WAIT_S:
            return
        tier = seq.request.tier
        ratio = (now - seq.arrived_at) / seq.predicted_wait_s * self._correction[tier]
        ratio = min(max(ratio, 1 / _MAX_CORRECTION), _MAX_CORRECTION)
        self._correction[tier] += _NEW_SHARE * (ratio - self._correction[tier])

    def ended(self, num_answer_tokens: int) -> None:
        """An answer ended by itself."""
        self._answer_tokens += _NEW_SHARE * (num_answer_tokens - self._answer_tokens)
