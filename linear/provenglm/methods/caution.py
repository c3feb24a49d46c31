"""How far a curvature is taken of a mean nearer to the target: see `Loss.second_derivative`."""

from __future__ import annotations

from provenglm import constants


def next_caution(caution: float, length: float) -> float:
    """Return the next step's caution, after one of this length."""
    if length < constants.SHORT:
        return min(max(2 * caution, constants.FIRST_CAUTION), 0.5)
    if length > 1 - constants.SHORT:
        return caution / 4 if caution >= constants.FIRST_CAUTION else 0.0
    return caution
