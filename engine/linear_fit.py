"""A straight line through what was measured lately."""

from __future__ import annotations

# Weight of the newest point.
_NEW_SHARE = 0.05
# Points before the line says anything.
_LEAST_POINTS = 20


class LinearFit:
    """Least squares of y = base + slope * x, older points counting ever less."""

    def __init__(self) -> None:
        self._num = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """One more point."""
        self._num += 1
        share = max(_NEW_SHARE, 1 / self._num)
        self._x += share * (x - self._x)
        self._y += share * (y - self._y)
        self._xx += share * (x * x - self._xx)
        self._xy += share * (x * y - self._xy)

    @property
    def base(self) -> float | None:
        """y at x = 0, at least 0; None while the points lie too close together to tell."""
        spread = self._xx - self._x * self._x
        if self._num < _LEAST_POINTS or spread < 0.01 * self._xx:
            return None
        slope = max((self._xy - self._x * self._y) / spread, 0.0)
        return max(self._y - slope * self._x, 0.0)
