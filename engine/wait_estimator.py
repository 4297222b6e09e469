"""How long a new request would wait, and whether that is too long to take it."""

from __future__ import annotations

import math
import statistics
from collections import deque

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
# Steps by which the estimates are checked, how many of decodes it takes at least, and by how
# much more than these an estimate may say.
_NUM_RECENT = 9
_LEAST_RECENT = 3
_MOST_ABOVE = 1.5
# What a prompt's token is taken to cost at most before two prompts were computed, as a share
# of a decode: weights are read once for all of them.
_FIRST_PROMPT_SHARE = 0.25
# What part of the machine is left to a tier at least.
_LEAST_LEFT = 0.05


class WaitEstimator:
    """Predicts waits from the work that goes before.

    Work is measured in seconds of the machine: prompt tokens at the measured prefill
    rate, answer tokens at the rate of a decode in the present batch. How fast it is
    really got through, with work done twice and all else that the estimate leaves out,
    is measured while requests wait.

    The first steps of a worker may take a hundred times as long as all later ones, and one
    that the machine was held up in as well. So nothing is foreseen before some steps of
    decodes are known, and then no step to take much longer than the latest ones say.
    """

    def __init__(self, config: EngineConfig, budget: StepBudget) -> None:
        self._limits_s = {
            Tier.VIP: config.vip_max_wait_ms / 1000,
            Tier.STANDARD: config.standard_max_wait_ms / 1000,
            Tier.BATCH: config.batch_max_wait_ms / 1000,
        }
        self._budget = budget
        self._answer_tokens = _FIRST_ANSWER_TOKENS
        # Sequences and milliseconds of the latest steps of decodes alone.
        self._recent: deque[tuple[int, float]] = deque(maxlen=_NUM_RECENT)
        # Milliseconds of each token in the latest steps of prompts alone.
        self._recent_token_ms: deque[float] = deque(maxlen=_NUM_RECENT)
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
        if token_ms is None or decode_ms is None or len(self._recent) < _LEAST_RECENT:
            return 0.0
        token_ms = min(token_ms, self._most_token_ms())
        decode_ms = min(decode_ms * self._budget.slowness, self._most_ms(batch))
        left = min(max(self._answer_tokens - seq.num_answer_tokens, 1.0), seq.num_remaining)
        prompt_ms = (len(seq.tokens) - num_cached) * token_ms
        return (prompt_ms + left * decode_ms / batch) / 1000

    def measured(self, num_decodes: int, num_prompt_tokens: int, elapsed_ms: float) -> None:
        """Note a step of so many decodes and tokens of prompts."""
        if not num_prompt_tokens:
            self._recent.append((num_decodes, elapsed_ms))
        elif not num_decodes:
            self._recent_token_ms.append(elapsed_ms / num_prompt_tokens)

    def _most_ms(self, batch: int) -> float:
        """Longest time to believe of a step of decodes: a batch takes no longer than its parts."""
        times = [ms * max(batch / num_decodes, 1.0) for num_decodes, ms in self._recent]
        return _MOST_ABOVE * statistics.median(times)

    def _most_token_ms(self) -> float:
        """Longest time to believe of a prompt's token."""
        if len(self._recent_token_ms) < 2:
            return _FIRST_PROMPT_SHARE * self._most_ms(1)
        return _MOST_ABOVE * statistics.median_low(self._recent_token_ms)

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
