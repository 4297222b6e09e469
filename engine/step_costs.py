"""How long a step takes by the tokens it computes, as measured."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest measurement, and by what factor it counts at most: one slow
# step among many says little.
_NEW_SHARE = 0.3
_MAX_RISE = 2.0
# A size not measured for this many steps is forgotten, so that one slow step can't
# keep its size out of use.
_FORGET_AFTER_STEPS = 256
# Tokens tried while nothing comparable is known.
_FIRST_TRY_TOKENS = 128
_FEW_TOKENS = 16


@dataclass(slots=True)
class _Size:
    """Moving averages over steps of about one size."""

    tokens: float
    ms: float
    last_step: int


class StepCosts:
    """Moving averages of step time by token count.

    Sizes up to 16 tokens are told apart one by one, larger ones in quarters of a
    doubling. More tokens never cost less: each measurement corrects what older ones
    of other sizes say against it.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._num_steps = 0
        self._points: list[_Size] = []

    @property
    def max_tokens(self) -> int:
        """The largest size measured lately; 0 for none."""
        return int(self._points[-1].tokens) if self._points else 0

    def record(self, num_tokens: int, elapsed_ms: float) -> None:
        """Take in one step's measurement."""
        self._num_steps += 1
        key = _size_key(num_tokens)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = _Size(num_tokens, elapsed_ms, self._num_steps)
        else:
            size.tokens += _NEW_SHARE * (num_tokens - size.tokens)
            size.ms += _NEW_SHARE * (min(elapsed_ms, _MAX_RISE * size.ms) - size.ms)
            size.last_step = self._num_steps
        oldest = self._num_steps - _FORGET_AFTER_STEPS
        self._sizes = {k: s for k, s in sorted(self._sizes.items()) if s.last_step > oldest}
        for other_key, other in self._sizes.items():
            if other_key < key:
                other.ms = min(other.ms, size.ms)
            else:
                other.ms = max(other.ms, size.ms)
        self._points = list(self._sizes.values())

    def predict_ms(self, num_tokens: int) -> float | None:
        """Expected step time for `num_tokens`; None before any measurement."""
        if not self._points:
            return None
        low = self._points[0]
        if num_tokens <= low.tokens:
            return low.ms
        for high in self._points[1:]:
            if num_tokens <= high.tokens:
                share = (num_tokens - low.tokens) / (high.tokens - low.tokens)
                return low.ms + share * (high.ms - low.ms)
            low = high
        return low.ms * num_tokens / low.tokens

    def tokens_within(self, limit_ms: float) -> int:
        """Most tokens whose step should take at most `limit_ms`.

        Goes beyond what was measured by a factor of 4 at most. While only steps of
        few tokens were measured, which cost about the same whatever their number, a
        first try is made.
        """
        if self.max_tokens < _FEW_TOKENS:
            return _FIRST_TRY_TOKENS
        tokens = ms = slope = 0.0
        for point in self._points:
            if limit_ms < point.ms:
                share = (limit_ms - ms) / (point.ms - ms)
                return int(tokens + share * (point.tokens - tokens))
            if point.ms > ms:
                slope = (point.ms - ms) / (point.tokens - tokens)
            tokens, ms = point.tokens, point.ms
        reach = max(_FIRST_TRY_TOKENS, 4 * int(tokens))
        return min(int(tokens + (limit_ms - ms) / slope), reach)


def _size_key(num_tokens: int) -> int:
    """Rises with the token count; the same for sizes that are taken as one."""
    if num_tokens <= 16:
        return num_tokens
    shift = num_tokens.bit_length() - 3
    return 16 + 4 * shift + (num_tokens >> shift)
