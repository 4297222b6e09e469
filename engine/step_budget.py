"""How many prompt tokens fit beside the decodes of a step, from measured times.

What counts is a ratio: a step with a piece of a prompt may take `STRETCH` times as
long as the same decodes alone. Whatever slows the whole machine down for a while
slows both, and leaves the size of the pieces as it is.
"""

from __future__ import annotations

import statistics
from collections import deque

from engine.linear_fit import LinearFit
from engine.step_costs import StepCosts

# Below 2, with room for noise: running chats see their gaps at most doubled.
STRETCH = 1.9
# Pieces are never smaller, so that a prompt gets on whatever was measured.
MIN_PIECE_TOKENS = 16
# Tried while nothing comparable is known.
_FIRST_PIECE_TOKENS = 64
# Steps with a piece before one goes without, to measure the decodes alone; sooner
# where the last took longer than foreseen by `_SURPRISE`.
_PLAIN_EVERY_STEPS = 16
_PLAIN_EVERY_STEPS_SURPRISED = 4
_SURPRISE = 1.5
# Measurements of which the median is taken: single hiccups leave no trace.
_NUM_RECENT = 5
_NEW_SHARE = 0.2
# Where even the smallest piece of a prompt takes longer than a step should, pieces may
# take this much longer than that: much of a step's time doesn't depend on its size.
_STRETCH_ALONE = 2.0


class StepBudget:
    """Times of decodes alone, of pieces beside them, and of prompts alone."""

    def __init__(self) -> None:
        self.decodes = StepCosts()
        self.prompts = StepCosts()
        # Milliseconds of a prompt's token beside decodes, at the machine's usual speed.
        self._token_ms: float | None = None
        self._recent_token_ms: deque[float] = deque(maxlen=_NUM_RECENT)
        self._recent_pieces: deque[int] = deque(maxlen=_NUM_RECENT)
        # How much longer decodes take than they used to.
        self._recent_slowness: deque[float] = deque(maxlen=_NUM_RECENT)
        # What pieces of so many tokens add to the decodes of a step.
        self._pieces = LinearFit()
        self._num_mixed = 0
        self._surprised = False

    @property
    def mixed_base_ms(self) -> float | None:
        """What any piece adds to a step of decodes, however small; None while unknown."""
        return self._pieces.base

    @property
    def slowness(self) -> float:
        """Time of a step of decodes now, as a multiple of what is usual."""
        return statistics.median(self._recent_slowness) if self._recent_slowness else 1.0

    @property
    def prompt_token_ms(self) -> float | None:
        """Milliseconds that a prompt's token takes, as measured; None before that."""
        if self._token_ms is not None:
            return self._token_ms * self.slowness
        most = self.prompts.max_tokens
        alone_ms = self.prompts.predict_ms(most) if most else None
        return None if alone_ms is None else alone_ms / most

    def record(self, num_decodes: int, num_prompt_tokens: int, elapsed_ms: float) -> None:
        """Take in a step in which `num_decodes` sequences decoded, one token each."""
        if not num_decodes:
            self.prompts.record(num_prompt_tokens, elapsed_ms)
        elif not num_prompt_tokens:
            self._num_mixed = 0
            self._surprised = False
            usual_ms = self.decodes.predict_ms(num_decodes)
            if usual_ms:
                self._recent_slowness.append(elapsed_ms / usual_ms)
            self.decodes.record(num_decodes, elapsed_ms)
        else:
            self._record_mixed(num_decodes, num_prompt_tokens, elapsed_ms)

    def _record_mixed(self, num_decodes: int, num_prompt_tokens: int, elapsed_ms: float) -> None:
        self._num_mixed += 1
        decode_ms = self.decodes.predict_ms(num_decodes)
        if decode_ms is None:
            return
        usual_ms = elapsed_ms / self.slowness
        expected_ms = decode_ms + num_prompt_tokens * (self._token_ms or 0.0)
        self._surprised = usual_ms > _SURPRISE * expected_ms
        self._recent_token_ms.append(max(usual_ms - decode_ms, 0.0) / num_prompt_tokens)
        self._recent_pieces.append(num_prompt_tokens)
        # A single hiccup may not bend the line.
        self._pieces.add(num_prompt_tokens, min(usual_ms, 3 * expected_ms) - decode_ms)
        token_ms = statistics.median(self._recent_token_ms)
        if self._token_ms is None:
            self._token_ms = token_ms
        else:
            self._token_ms += _NEW_SHARE * (token_ms - self._token_ms)

    def wants_plain_step(self) -> bool:
        """Whether the decodes should run alone once, to be measured."""
        every = _PLAIN_EVERY_STEPS_SURPRISED if self._surprised else _PLAIN_EVERY_STEPS
        return self._num_mixed >= every

    def decode_ms(self, num_decodes: int) -> float | None:
        """Usual time of a step in which so many sequences decode; None if unknown."""
        return self.decodes.predict_ms(num_decodes)

    def tokens_beside(self, num_decodes: int, least_ms: float = 0.0) -> int:
        """Prompt tokens that fit into a step with so many decodes.

        Args:
            num_decodes: Sequences that decode in the step.
            least_ms: What the step may take in all, however short its decodes are.
        """
        decode_ms = self.decodes.predict_ms(num_decodes)
        if decode_ms is None or self._token_ms is None:
            return _FIRST_PIECE_TOKENS
        # Not far beyond what was measured.
        reach = 4 * max(*self._recent_pieces, _FIRST_PIECE_TOKENS)
        room_ms = max((STRETCH - 1) * decode_ms, least_ms - decode_ms)
        if room_ms >= reach * self._token_ms:
            return reach
        return max(int(room_ms / self._token_ms), MIN_PIECE_TOKENS)

    def tokens_alone(self, limit_ms: float) -> int:
        """Prompt tokens for a step of about `limit_ms` in which nothing decodes."""
        least_ms = self.prompts.predict_ms(MIN_PIECE_TOKENS)
        if least_ms is not None and self.prompts.max_tokens >= MIN_PIECE_TOKENS:
            limit_ms = max(limit_ms, _STRETCH_ALONE * least_ms)
        return max(self.prompts.tokens_within(limit_ms), MIN_PIECE_TOKENS)
