"""What is left to be gained, from the gains so far."""

from __future__ import annotations

import numpy as np

_LEAST_RATE, _MOST_RATE = 0.1, 0.995
"""Between them a rate of gains is believed."""

_SLOW, _SLOW_EPOCHS = 0.8, 4
"""The rate, after so many gains, from which on epochs are given up."""


class Series:
    """What gains that shrink like a geometric series leave to be gained.

    The rate is the largest of the last two ratios and of the means over up to five, and not
    believed below a tenth, or another least one.
    """

    def __init__(self, least: float = _LEAST_RATE) -> None:
        self._least = least
        self._gains: list[float] = []

    def add(self, gain: float) -> None:
        """Take the gain of one epoch."""
        self._gains = [*self._gains[-5:], gain]

    @property
    def rate(self) -> float:
        """What an epoch leaves; 1 before there are two gains."""
        *earlier, last = self._gains or [np.nan]
        means = [(last / gain) ** (1 / k) for k, gain in enumerate(reversed(earlier), 1)]
        if len(earlier) > 1:
            means.append(earlier[-1] / earlier[-2])
        return max(self._least, *means) if means else 1.0

    @property
    def is_slow(self) -> bool:
        """Whether each of some epochs left most of what there was to be gained."""
        return len(self._gains) > _SLOW_EPOCHS and self.rate > _SLOW

    @property
    def rest(self) -> float:
        """The estimate; inf where there is no end to be seen."""
        rate = self.rate
        return self._gains[-1] * rate / (1 - rate) if rate < _MOST_RATE else np.inf
