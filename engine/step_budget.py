"""How many prompt tokens fit beside the decodes of a step, from measured times.

What counts is a ratio: a step with a piece of a prompt may take `STRETCH` times as
long as the same decodes alone. Whatever slows the whole machine down for a while
slows both, and leaves the size of the pieces as it is.
"""

from __future__ import annotations

import statistics
from collections import deque

from engine.context_costs import ContextCosts
from engine.linear_fit import LinearFit
from engine.prompt_pieces import MIN_PIECE_TOKENS
from engine.step_costs import StepCosts

# Below 2, with room for noise: running chats see their gaps at most doubled.
STRETCH = 1.9
# Tried while nothing comparable is known.
_FIRST_PIECE_TOKENS = 64
# Steps with a piece before one goes without, to measure the decodes alone; sooner
# where the last took longer than foreseen by `_SURPRISE`.
_PLAIN_EVERY_STEPS = 16
_PLAIN_EVERY_STEPS_SURPRISED = 4
_SURPRISE = 1.5
# Measurements of which the median is taken: single hiccups leave no trace.
_NUM_RECENT = 5
# Where even the smallest piece of a prompt takes longer than a step should, pieces may
# take this much longer than that: much of a step's time doesn't depend on its size.
_STRETCH_ALONE = 2.0


class StepBudget:
    """Times of decodes alone, of pieces beside them, and of prompts alone."""

    def __init__(self) -> None:
        self.decodes = StepCosts()
        self.prompts = StepCosts()
        # A prompt's token beside decodes, at the machine's usual speed.
        self._tokens = ContextCosts()
        self._recent_pieces: deque[float] = deque(maxlen=_NUM_RECENT)
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
        if self._tokens.recent_ms is not None:
            return self._tokens.recent_ms * self.slowness
        most = self.prompts.max_tokens
        alone_ms = self.prompts.predict_ms(most) if most else None
        return None if alone_ms is None else alone_ms / most

    def record(
        self,
        num_decodes: int,
        num_prompt_tokens: float,
        elapsed_ms: float,
        *,
        context: float = 0.0,
        is_whole: bool = True,
    ) -> None:
        """Take in a step.

        Args:
            num_decodes: Sequences that decoded, one token each.
            num_prompt_tokens: Tokens of prompts; fractions for layers left out.
            elapsed_ms: Its time.
            context: Tokens before those of the prompts, on the average.
            is_whole: Whether all layers of the prompts' tokens were computed.
        """
        if not num_decodes:
            if is_whole:
                self.prompts.record(int(num_prompt_tokens), elapsed_ms)
        elif not num_prompt_tokens:
            self._num_mixed = 0
            self._surprised = False
            usual_ms = self.decodes.predict_ms(num_decodes)
            if usual_ms:
                self._recent_slowness.append(elapsed_ms / usual_ms)
            self.decodes.record(num_decodes, elapsed_ms)
        else:
            self._record_mixed(num_decodes, num_prompt_tokens, elapsed_ms, context, is_whole)

    def _record_mixed(
        self,
        num_decodes: int,
        num_tokens: float,
        elapsed_ms: float,
        context: float,
        is_whole: bool,
    ) -> None:
        self._num_mixed += 1
        decode_ms = self.decodes.predict_ms(num_decodes)
        if decode_ms is None:
            return
        usual_ms = elapsed_ms / self.slowness
        expected_ms = decode_ms + num_tokens * (self._tokens.predict_ms(context) or 0.0)
        self._surprised = usual_ms > _SURPRISE * expected_ms
        # A whole piece's cost is in part the same whatever its size, and large ones come
        # from other places in a prompt than small ones: they'd bend the line.
        token_ms = max(usual_ms - decode_ms, 0.0) / num_tokens
        self._tokens.record(context, token_ms, tells_rise=not is_whole)
        self._recent_pieces.append(num_tokens)
        if is_whole:
            # A single hiccup may not bend the line.
            self._pieces.add(num_tokens, min(usual_ms, 3 * expected_ms) - decode_ms)

    def wants_plain_step(self) -> bool:
        """Whether the decodes should run alone once, to be measured."""
        every = _PLAIN_EVERY_STEPS_SURPRISED if self._surprised else _PLAIN_EVERY_STEPS
        return self._num_mixed >= every

    def decode_ms(self, num_decodes: int) -> float | None:
        """Usual time of a step in which so many sequences decode; None if unknown."""
        return self.decodes.predict_ms(num_decodes)

    def tokens_beside(self, num_decodes: int, least_ms: float = 0.0, context: float = 0.0) -> float:
        """Prompt tokens that fit into a step with so many decodes.

        Args:
            num_decodes: Sequences that decode in the step.
            least_ms: What the step may take in all, however short its decodes are.
            context: Tokens before those of the prompts.
        """
        decode_ms = self.decodes.predict_ms(num_decodes)
        token_ms = self._tokens.predict_ms(context)
        if decode_ms is None or token_ms is None:
            return _FIRST_PIECE_TOKENS
        # Not far beyond what was measured.
        reach = 4 * max(*self._recent_pieces, _FIRST_PIECE_TOKENS)
        room_ms = max((STRETCH - 1) * decode_ms, least_ms - decode_ms)
        return reach if room_ms >= reach * token_ms else room_ms / token_ms

    def tokens_alone(self, limit_ms: float) -> int:
        """Prompt tokens for a step of about `limit_ms` in which nothing decodes."""
        least_ms = self.prompts.predict_ms(MIN_PIECE_TOKENS)
        if least_ms is not None and self.prompts.max_tokens >= MIN_PIECE_TOKENS:
            limit_ms = max(limit_ms, _STRETCH_ALONE * least_ms)
        return max(self.prompts.tokens_within(limit_ms), MIN_PIECE_TOKENS)
