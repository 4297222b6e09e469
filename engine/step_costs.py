"""How long a step takes by the tokens it computes, as measured."""

from __future__ import annotations

# Weight of the newest measurement.
_NEW_SHARE = 0.3
# A size not measured for this many steps is forgotten, so that one slow step
# can't keep its size out of use.
_FORGET_AFTER_STEPS = 256
# Tokens tried while nothing comparable is known.
_FIRST_TRY_TOKENS = 128
_FEW_TOKENS = 16


class StepCosts:
    """Moving averages of step time, one for each doubling of the token count."""

    def __init__(self) -> None:
        # Bit length of the token count -> [mean tokens, mean ms, step last measured].
        self._sizes: dict[int, list[float]] = {}
        self._num_steps = 0
        self._points: list[tuple[float, float]] = []

    def record(self, num_tokens: int, elapsed_ms: float) -> None:
        """Take in one step's measurement."""
        self._num_steps += 1
        size = self._sizes.get(num_tokens.bit_length())
        if size is None:
            self._sizes[num_tokens.bit_length()] = [num_tokens, elapsed_ms, self._num_steps]
        else:
            size[0] += _NEW_SHARE * (num_tokens - size[0])
            size[1] += _NEW_SHARE * (elapsed_ms - size[1])
            size[2] = self._num_steps
        oldest = self._num_steps - _FORGET_AFTER_STEPS
        self._sizes = {key: size for key, size in self._sizes.items() if size[2] > oldest}
        self._points = []
        slowest = 0.0
        for _, (tokens, ms, _) in sorted(self._sizes.items()):
            slowest = max(slowest, ms)
            self._points.append((tokens, slowest))

    def predict_ms(self, num_tokens: int) -> float | None:
        """Expected step time for `num_tokens`; None before any measurement."""
        if not self._points:
            return None
        low = self._points[0]
        if num_tokens <= low[0]:
            return low[1]
        for high in self._points[1:]:
            if num_tokens <= high[0]:
                share = (num_tokens - low[0]) / (high[0] - low[0])
                return low[1] + share * (high[1] - low[1])
            low = high
        return low[1] * num_tokens / low[0]

    def tokens_within(self, limit_ms: float) -> int:
        """Most tokens whose step should take at most `limit_ms`.

        Goes beyond what was measured by a factor of 4 at most. While only steps of
        few tokens were measured, which cost about the same whatever their number, a
        first try is made.
        """
        if not self._points or self._points[-1][0] < _FEW_TOKENS:
            return _FIRST_TRY_TOKENS
        before = (0.0, 0.0)
        for tokens, ms in self._points:
            if limit_ms < ms:
                share = (limit_ms - before[1]) / (ms - before[1])
                return int(before[0] + share * (tokens - before[0]))
            if ms > before[1]:
                slope = (ms - before[1]) / (tokens - before[0])
            before = (tokens, ms)
        reach = max(_FIRST_TRY_TOKENS, 4 * int(before[0]))
        return min(int(before[0] + (limit_ms - before[1]) / slope), reach)
