"""A straight line through what was measured lately."""

from __future__ import annotations

# Points before the line says anything.
_LEAST_POINTS = 20


class LinearFit:
    """Least squares of y = base + slope * x, older points counting ever less.

    Args:
        new_share: Weight of the newest point, once there are many.
    """

    def __init__(self, new_share: float = 0.05) -> None:
        self._new_share = new_share
        self._num = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """One more point."""
        self._num += 1
        share = max(self._new_share, 1 / self._num)
        self._x += share * (x - self._x)
        self._y += share * (y - self._y)
        self._xx += share * (x * x - self._xx)
        self._xy += share * (x * y - self._xy)

    @property
    def slope(self) -> float | None:
        """Rise of y with x, at least 0; None while the points lie too close together."""
        spread = self._xx - self._x * self._x
        if self._num < _LEAST_POINTS or spread < 0.01 * self._xx:
            return None
        return max((self._xy - self._x * self._y) / spread, 0.0) if spread else None

    @property
    def base(self) -> float | None:
        """y at x = 0, at least 0; None while the points lie too close together to tell."""
        slope = self.slope
        return None if slope is None else max(self._y - slope * self._x, 0.0)
