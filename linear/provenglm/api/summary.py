r"""The statistics of an unpenalised fit, as R's ``summary.glm`` and statsmodels show them.

With observations of weights w, scores z and targets y, the deviance is :math:`2 \sum w (l(z, y) -
\inf l(\cdot, y))`. The log-likelihood is that of the distribution: binomial; Poisson; normal with
the variance that maximises it; gamma with Pearson's dispersion. The density of Tweedie's
distribution has no closed form. AIC and BIC count the dispersion as a parameter where it is
estimated, as R does; those of statsmodels do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, ndtr, ndtri, stdtr, stdtrit

from provenglm.api.covariance import Covariance
from provenglm.model.losses import ScalarLoss
from provenglm.model.null_model import best_intercept
from provenglm.rows.dense import DenseRows
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Observations:
    """The rows of a fit with a positive weight.

    Attributes
    ----------
    scores, target, weight : numpy.ndarray, (n,)
    offset : numpy.ndarray, (n, 1), or None
    are_counted : bool
        Whether a row stands for as many equal observations as its weight says; otherwise it is one
        observation with a variance that is divided by its weight.
    """

    scores: NumPyArray
    target: NumPyArray
    weight: NumPyArray
    offset: NumPyArray | None
    are_counted: bool

    @property
    def count(self) -> float:
        """The number of observations."""
        return float(self.weight.sum()) if self.are_counted else float(len(self.weight))


@dataclass(frozen=True)
class Summary:
    """Coefficients with standard errors, tests and intervals, and the statistics of a fit.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each coefficient, with the intercept first, and the columns ``coef``, ``std_err``,
        ``z`` or ``t``, ``p_value``, and ``lower`` and ``upper``, which are the bounds of the
        confidence interval. The statistic is ``t``, with ``df_residual`` degrees of freedom, if the
        dispersion is estimated, and ``z`` otherwise, as in R. For a logarithmic link ``exp_coef``
        is the factor by which the mean grows with a feature (the relativity), and ``exp_lower`` and
        ``exp_upper`` are the bounds of its interval; for classes it is that of the odds.
    loss : str
        The name of the loss.
    level : float
        The level of the confidence intervals.
    observations : float
        The number of observations.
    df_residual, df_null : float
        The residual degrees of freedom of this model, and of that without features.
    dispersion : float
        1, or Pearson's statistic divided by `df_residual`.
    deviance, null_deviance : float
        Of this model, and of that without features, which has the same offset.
    log_likelihood, aic, bic : float
        NaN for Tweedie's loss.
    """

    table: DataFrame
    loss: str
    level: float
    observations: float
    df_residual: float
    df_null: float
    dispersion: float
    deviance: float
    null_deviance: float
    log_likelihood: float
    aic: float
    bic: float

    def __str__(self) -> str:
        likelihood = (
            "no log-likelihood and no AIC: the density of Tweedie's distribution has no closed form"
            if math.isnan(self.aic)
            else f"log-likelihood {self.log_likelihood:.6g}, AIC {self.aic:.6g}, BIC {self.bic:.6g}"
        )
        return "\n".join(
            [
                f"{self.loss} loss, {_readable(self.observations)} observations, "
                f"confidence intervals of {self.level:.6g}",
                "",
                self.table.to_string(float_format="{:.4g}".format),
                "",
                f"deviance {self.deviance:.6g} with {_readable(self.df_residual)} degrees of "
                f"freedom; without features {self.null_deviance:.6g} with "
                f"{_readable(self.df_null)}",
                f"dispersion {self.dispersion:.6g}; {likelihood}",
            ]
        )


def _readable(count: float) -> str:
    return f"{round(count, 3):,.15g}"


def summarised(
    loss: ScalarLoss,
    names: list[str],
    coef: NumPyArray,
    found: Covariance,
    rows: Observations,
    has_intercept: bool,
    level: float,
) -> Summary:
    """Return the summary of a fit.

    Parameters
    ----------
    names : list of str
        The names of the coefficients, with the intercept last.
    coef : numpy.ndarray, (len(names),)
    found : Covariance
    rows : Observations

    Raises
    ------
    ImportError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("summary returns a pandas.DataFrame: pip install pandas") from error
    degrees = found.residual_degrees
    deviation = np.sqrt(found.matrix.diagonal())
    statistic = coef / deviation
    if loss.has_dispersion:
        name, p_value = "t", 2 * stdtr(degrees, -np.abs(statistic))
        quantile = stdtrit(degrees, (1 + level) / 2)
    else:
        name, p_value = "z", 2 * ndtr(-np.abs(statistic))
        quantile = ndtri((1 + level) / 2)
    columns = {
        "coef": coef,
        "std_err": deviation,
        name: statistic,
        "p_value": p_value,
        "lower": coef - quantile * deviation,
        "upper": coef + quantile * deviation,
    }
    if loss.has_logarithm or loss.has_classes:
        with np.errstate(over="ignore"):
            for name in ("coef", "lower", "upper"):
                columns[f"exp_{name}"] = np.exp(columns[name])
    table = pd.DataFrame(columns, index=names)
    null = np.zeros(len(rows.target)) if rows.offset is None else rows.offset[:, 0]
    if has_intercept:
        table = table.iloc[np.roll(np.arange(len(coef)), 1)]
        null = null + _intercept(loss, rows)
    likelihood = _LOG_LIKELIHOODS.get(loss.name)
    value = math.nan if likelihood is None else likelihood(rows, found.dispersion)
    parameters = len(coef) + loss.has_dispersion
    return Summary(
        table=table,
        loss=loss.name,
        level=level,
        observations=rows.count,
        df_residual=degrees,
        df_null=rows.count - has_intercept,
        dispersion=found.dispersion,
        deviance=2 * float(rows.weight @ loss.deviance(rows.scores, rows.target)),
        null_deviance=2 * float(rows.weight @ loss.deviance(null, rows.target)),
        log_likelihood=value,
        aic=2 * parameters - 2 * value,
        bic=math.log(rows.count) * parameters - 2 * value,
    )


def _intercept(loss: ScalarLoss, rows: Observations) -> float:
    """Return the best intercept of the model without features."""
    features = DenseRows(np.empty((len(rows.target), 0)))
    share = rows.weight / rows.weight.sum()
    table = Table(features, rows.target, share, Workers(0), rows.offset)
    return float(best_intercept(loss, table)[0])


def _binomial(rows: Observations, _: float) -> float:
    each = rows.target * rows.scores - np.logaddexp(0, rows.scores)
    return float(rows.weight @ each)


def _poisson(rows: Observations, _: float) -> float:
    each = rows.target * rows.scores - np.exp(rows.scores) - gammaln(rows.target + 1)
    return float(rows.weight @ each)


def _normal(rows: Observations, _: float) -> float:
    variance = float(rows.weight @ np.square(rows.target - rows.scores)) / rows.count
    logarithms = 0.0 if rows.are_counted else float(np.log(rows.weight).sum())
    return 0.5 * (logarithms - rows.count * (math.log(2 * math.pi * variance) + 1))


def _gamma(rows: Observations, dispersion: float) -> float:
    times, precision = (rows.weight, 1.0) if rows.are_counted else (1.0, rows.weight)
    shape = precision / dispersion * np.ones(len(rows.target))
    logarithm = np.log(rows.target)
    each = shape * (np.log(shape) + logarithm - rows.scores - np.exp(logarithm - rows.scores))
    each -= gammaln(shape) + logarithm
    return float((times * each).sum())


_LOG_LIKELIHOODS: dict[str, Callable[[Observations, float], float]] = {
    "logistic": _binomial,
    "poisson": _poisson,
    "squared": _normal,
    "gamma": _gamma,
}
"""The log-likelihood of each loss, by its name, from the observations and the dispersion."""
