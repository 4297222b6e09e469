"""What a prompt's token costs by the number of tokens before it, as measured."""

from __future__ import annotations

import statistics
from collections import deque

from engine.linear_fit import LinearFit

# Measurements of which the median is taken, and the weight of the newest median: single
# hiccups leave no trace.
_NUM_RECENT = 5
_NEW_MEDIAN_SHARE = 0.2
# Weight of the newest point of the line. A long prompt's contexts rise slowly: a line
# through the last few steps alone would say nothing.
_NEW_SHARE = 0.002
# Most by which a token before it adds to a token's cost, as part of that without any: noise
# may leave next to nothing at the line's foot.
_MOST_RISE = 0.002


class ContextCosts:
    """Milliseconds a token, rising in a line with the tokens that it attends to.

    The line says by how much a token costs more there than here; how much it costs is
    a moving average of the latest, each moved along the line.
    """

    def __init__(self) -> None:
        self._line = LinearFit(_NEW_SHARE)
        self._recent: deque[tuple[float, float]] = deque(maxlen=_NUM_RECENT)
        # Part by which a token costs more for each token before it.
        self._rise = 0.0
        self._base_ms: float | None = None

    @property
    def recent_ms(self) -> float | None:
        """Of a token as the latest were; None before any."""
        return statistics.median(ms for _, ms in self._recent) if self._recent else None

    def record(self, context: float, token_ms: float, *, tells_rise: bool = True) -> None:
        """Take in a step.

        Args:
            context: Tokens before its own.
            token_ms: What each of its own took.
            tells_rise: Whether it says how costs rise with the context.
        """
        self._recent.append((context, token_ms))
        if tells_rise:
            # A single hiccup may not bend the line.
            usual_ms = self.predict_ms(context)
            self._line.add(context, min(token_ms, 3 * usual_ms) if usual_ms else token_ms)
        base, slope = self._line.base, self._line.slope
        if base is not None and slope is not None:
            rise = min(slope / base, _MOST_RISE) if base > 0 else _MOST_RISE
            if self._base_ms is not None:
                # What is known of here stays.
                self._base_ms *= self._factor(context) / (1.0 + rise * context)
            self._rise = rise
        base_ms = statistics.median(ms / self._factor(at) for at, ms in self._recent)
        if self._base_ms is None:
            self._base_ms = base_ms
        else:
            self._base_ms += _NEW_MEDIAN_SHARE * (base_ms - self._base_ms)

    def predict_ms(self, context: float) -> float | None:
        """Of a token behind so many; None before any measurement."""
        return None if self._base_ms is None else self._base_ms * self._factor(context)

    def _factor(self, context: float) -> float:
        return 1.0 + self._rise * context
