"""Adapt the curvature shift to the lengths of the steps: see `Loss.second_derivative`."""

from __future__ import annotations

_SHORT = 0.3
"""A shorter step shows that the curvature was too small."""

_FIRST = 0.05
"""The first shift after 0. Half and twice of both numbers change no fit by a tenth, but for one of
more than a thousand passes."""


def next_curvature_shift(curvature_shift: float, length: float) -> float:
    """Return the curvature shift of the next step, after a step of this length."""
    if length < _SHORT:
        return min(max(2 * curvature_shift, _FIRST), 0.5)
    if length > 1 - _SHORT:
        return curvature_shift / 4 if curvature_shift >= _FIRST else 0.0
    return curvature_shift
