"""Adapt the curvature shift to the lengths of the steps: see `Loss.second_derivative`."""

from __future__ import annotations

from provenglm import constants


def next_curvature_shift(curvature_shift: float, length: float) -> float:
    """Return the curvature shift of the next step, after a step of this length."""
    if length < constants.SHORT:
        return min(max(2 * curvature_shift, constants.FIRST_CURVATURE_SHIFT), 0.5)
    if length > 1 - constants.SHORT:
        return curvature_shift / 4 if curvature_shift >= constants.FIRST_CURVATURE_SHIFT else 0.0
    return curvature_shift
