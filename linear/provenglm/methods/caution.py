"""Adapt the curvature shift to the lengths of the steps: see `Loss.second_derivative`."""

from __future__ import annotations

from provenglm import constants


def next_caution(caution: float, length: float) -> float:
    """Return the curvature shift of the next step, after a step of this length."""
    if length < constants.SHORT:
        return min(max(2 * caution, constants.FIRST_CAUTION), 0.5)
    if length > 1 - constants.SHORT:
        return caution / 4 if caution >= constants.FIRST_CAUTION else 0.0
    return caution
