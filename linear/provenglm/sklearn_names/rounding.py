"""Coefficients in float32 where X is float32, as scikit-learn has them, and a bound for them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

_LONGEST = 1e6
"""Moving back by up to this many roundings changes no coefficient's sign: float32 has 24 bits."""


def round_to_float32(model: Any, X: Any, curvature: float) -> None:
    r"""Round ``coef_`` and ``intercept_`` to float32, and raise ``gap_`` by what that may cost.

    Parameters
    ----------
    model : SklearnNamed
        A fitted model.
    X : ndarray or sparse matrix of shape (n, p), float32
        Its rows.
    curvature : float
        The largest curvature of the loss in the scores of a row.

    Notes
    -----
    Let d be the change of the coefficients, G the gap before, and M the largest curvature of the
    objective F along d. No coefficient changes its sign within t steps back, t at most a million,
    so there the curvature of F is at most M, and F does not fall by more than G:
    :math:`F(w - t d) \ge F(w) - G`. Its slope at w along d is therefore at most G / t + t M / 2,
    and :math:`F(w + d) \le F(w) + G / t + t M / 2 + M / 2`.
    """
    exact, moved = (model.coef_, model.intercept_), copy(model)
    model.coef_, model.intercept_ = (_rounded(value) for value in exact)
    moved.coef_, moved.intercept_ = (
        np.subtract(rounded, value, dtype=np.float64)
        for rounded, value in zip((model.coef_, model.intercept_), exact, strict=True)
    )
    scores = moved._scores(X) ** 2
    steps = np.atleast_2d(moved.coef_) ** 2
    per_target = np.ndim(model.gap_) == 1
    strength, l1_ratio = model._penalty_on_mean()
    bend = curvature * (scores.max(axis=0) if per_target else scores.sum(axis=1).max())
    steps = steps.sum(axis=1) if per_target else steps.sum()
    bend = bend + strength * (1 - l1_ratio) * steps
    gap = np.asarray(model.gap_, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        back = np.clip(np.nan_to_num(np.sqrt(2 * gap / bend), nan=1.0), 1.0, _LONGEST)
        raised = gap + gap / back + (back + 1) * bend / 2
    model.gap_ = raised if per_target else float(raised)
    if "dual_gap_" in vars(model):
        model.dual_gap_ = model.gap_


def _rounded(value: Any) -> Any:
    """Return float32, with 0 for what is below its normal numbers; an intercept of 0.0 stays."""
    if isinstance(value, float) and value == 0.0:
        return value
    small = np.abs(value) < np.finfo(np.float32).tiny
    return np.where(small, 0.0, value).astype(np.float32)[()]
