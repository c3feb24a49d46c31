"""`summary` beside statsmodels, beside what R prints, and by what it says."""

import builtins
import re

import numpy as np
import pandas as pd
import pytest
from provenglm import GLMClassifier, GLMRegressor

RNG = np.random.default_rng(5)
N = 400
X = RNG.normal(size=(N, 3)) @ (np.eye(3) + 0.4) + [0, 1, -3]
OFFSET = RNG.normal(size=N) / 2
WEIGHT = RNG.integers(1, 5, N).astype(float)
SCORES = X @ [0.3, -0.2, 0.0] + 0.2
MEAN = np.exp(SCORES + OFFSET)
TARGETS = {
    "squared": SCORES + RNG.normal(size=N),
    "poisson": RNG.poisson(MEAN).astype(float),
    "gamma": RNG.gamma(2, MEAN / 2),
    "tweedie": RNG.gamma(2, MEAN / 2) * (RNG.random(N) < 0.7),
    "logistic": (SCORES + RNG.logistic(size=N) > 0).astype(float),
}


def fitted(name, *given, **settings):
    """Return a fit without a penalty."""
    make = GLMClassifier(C=np.inf, tol=1e-15) if name == "logistic" else None
    make = make or GLMRegressor(name, alpha=0, tol=1e-15)
    return make.set_params(**settings).fit(*given)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("has_offset", [True, False])
@pytest.mark.parametrize("weights", [None, "frequency", "variance"])
@pytest.mark.parametrize("name", TARGETS)
def test_each_number_is_that_of_statsmodels(name, weights, has_offset, intercept):
    sm = pytest.importorskip("statsmodels.api")
    links = sm.families.links
    family = {
        "squared": sm.families.Gaussian(),
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(links.Log()),
        "tweedie": sm.families.Tweedie(links.Log(), var_power=1.5),
        "logistic": sm.families.Binomial(),
    }[name]
    weight, offset = WEIGHT if weights else None, OFFSET if has_offset else None
    keyword = {"variance": "var_weights"}.get(weights, "freq_weights")
    model = sm.GLM(
        TARGETS[name],
        sm.add_constant(X) if intercept else X,
        family,
        **({keyword: weight} if weights else {}),
        **({"offset": offset} if has_offset else {}),
    )
    statistic = "z" if name in ("poisson", "logistic") else "t"
    expected = model.fit(tol=1e-14, maxiter=200, use_t=statistic == "t")
    data = X, TARGETS[name], weight, offset
    found = fitted(name, *data, fit_intercept=intercept).summary(
        *data, weights=weights or "frequency"
    )
    lower, upper = expected.conf_int().T
    for column, values in {
        "coef": expected.params,
        "std_err": expected.bse,
        statistic: expected.tvalues,
        "p_value": expected.pvalues,
        "lower": lower,
        "upper": upper,
    }.items():
        size = np.abs(values).max()
        np.testing.assert_allclose(
            found.table[column], values, rtol=0, atol=1e-8 * max(1, size), err_msg=column
        )
    assert found.deviance == pytest.approx(expected.deviance, rel=1e-10)
    if intercept:  # without one R has no intercept in the null model either, statsmodels has
        assert found.null_deviance == pytest.approx(expected.null_deviance, rel=1e-8)
    assert found.dispersion == pytest.approx(expected.scale, rel=1e-8)
    assert found.df_residual == pytest.approx(expected.df_resid, rel=1e-12)
    if name == "tweedie":
        assert np.isnan([found.log_likelihood, found.aic, found.bic]).all()
        assert "no log-likelihood and no AIC: the density of Tweedie's" in str(found)
        return
    assert found.log_likelihood == pytest.approx(expected.llf, rel=1e-9)
    # R counts a dispersion that is estimated, statsmodels does not.
    counted = 2 * (name in ("squared", "gamma"))
    assert found.aic == pytest.approx(expected.aic + counted, rel=1e-9)


def printed(values, *texts):
    """Assert that numbers are those which R prints, to one unit of the last printed digit.

    R ends at a relative change of the deviance of 1e-8, where standard errors still change: that of
    mtcars is 1.4364 then, and 1.4365 at the optimum.
    """
    for value, text in zip(values, texts, strict=True):
        mantissa, _, power = text.partition("e")
        unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
        assert abs(value - float(text)) < unit, (value, text)


# R: summary(lm(dist ~ speed, cars)); logLik, AIC and BIC of it.
SPEED = [
    *[4, 4, 7, 7, 8, 9, 10, 10, 10, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15],
    *[15, 16, 16, 17, 17, 17, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 20, 22, 23, 24, 24, 24],
    *[24, 25],
]
DIST = [
    *[2, 10, 4, 22, 16, 10, 18, 26, 34, 17, 28, 14, 20, 24, 28, 26, 34, 34, 46, 26, 36, 60, 80, 20],
    *[26, 54, 32, 40, 32, 40, 50, 42, 56, 76, 84, 36, 46, 68, 32, 48, 52, 56, 64, 66, 54, 70, 92],
    *[93, 120, 85],
]


def test_cars_in_r():
    X = pd.DataFrame({"speed": SPEED}, dtype=float)
    found = fitted("squared", X, DIST).summary(X, DIST)
    assert list(found.table.index) == ["(Intercept)", "speed"]
    assert list(found.table)[:4] == ["coef", "std_err", "t", "p_value"]
    printed(found.table.loc["(Intercept)"].iloc[:4], "-17.5791", "6.7584", "-2.601", "0.0123")
    printed(found.table.loc["speed"].iloc[:4], "3.9324", "0.4155", "9.464", "1.49e-12")
    printed([found.dispersion**0.5, found.df_residual], "15.38", "48")
    printed([found.log_likelihood, found.aic, found.bic], "-206.5784", "419.1569", "424.8929")


# R: summary(glm(breaks ~ wool + tension, poisson, warpbreaks))
BREAKS = [
    *[26, 30, 54, 25, 70, 52, 51, 26, 67, 18, 21, 29, 17, 12, 18, 35, 30, 36],
    *[36, 21, 24, 18, 10, 43, 28, 15, 26, 27, 14, 29, 19, 29, 31, 41, 20, 44],
    *[42, 26, 19, 16, 39, 28, 21, 39, 29, 20, 21, 24, 17, 13, 15, 15, 16, 28],
]


def test_warpbreaks_in_r():
    tension = np.tile(np.repeat(["L", "M", "H"], 9), 2)
    X = pd.DataFrame(
        {"woolB": np.repeat([0.0, 1.0], 27), "tensionM": tension == "M", "tensionH": tension == "H"}
    ).astype(float)
    found = fitted("poisson", X, BREAKS).summary(X, BREAKS)
    rows = found.table[["coef", "std_err", "z"]].to_numpy()
    printed(rows[0], "3.69196", "0.04541", "81.302")
    printed(rows[1], "-0.20599", "0.05157", "-3.994")
    printed(rows[2], "-0.32132", "0.06027", "-5.332")
    printed(rows[3], "-0.51849", "0.06396", "-8.107")
    printed(found.table["p_value"].iloc[1:], "6.49e-05", "9.73e-08", "5.21e-16")
    printed([found.null_deviance, found.df_null], "297.37", "53")
    printed([found.deviance, found.df_residual, found.aic], "210.39", "50", "493.06")
    for column in ("coef", "lower", "upper"):
        np.testing.assert_allclose(found.table[f"exp_{column}"], np.exp(found.table[column]))


# R: summary(glm(am ~ wt, binomial, mtcars))
WT = [
    *[2.620, 2.875, 2.320, 3.215, 3.440, 3.460, 3.570, 3.190, 3.150, 3.440, 3.440, 4.070, 3.730],
    *[3.780, 5.250, 5.424, 5.345, 2.200, 1.615, 1.835, 2.465, 3.520, 3.435, 3.840, 3.845, 1.935],
    *[2.140, 1.513, 3.170, 2.770, 3.570, 2.780],
]
AM = [1, 1, 1, *[0] * 14, 1, 1, 1, *[0] * 5, *[1] * 7]


def test_mtcars_in_r():
    X = np.array(WT)[:, None]
    found = fitted("logistic", X, AM).summary(X, AM)
    printed(found.table.loc["(Intercept)"].iloc[:4], "12.040", "4.510", "2.670", "0.00759")
    printed(found.table.loc["x0"].iloc[:4], "-4.024", "1.436", "-2.801", "0.00509")
    printed([found.null_deviance, found.df_null], "43.230", "31")
    printed([found.deviance, found.df_residual, found.aic], "19.176", "30", "23.176")


def test_it_is_printed():
    model = fitted("poisson", X, TARGETS["poisson"])
    text = str(model.summary(X, TARGETS["poisson"], level=0.9))
    assert text.startswith("poisson loss, 400 observations, confidence intervals of 0.9\n")
    assert re.search(
        r"coef +std_err +z +p_value +lower +upper +exp_coef +exp_lower +exp_upper\n\(Intercept\)",
        text,
    )
    assert re.search(r"deviance \S+ with 396 degrees of freedom; without features \S+ with", text)
    assert re.search(r"dispersion 1; log-likelihood \S+, AIC \S+, BIC \S+$", text)


def test_rows_without_weight_and_labels_count_as_they_should():
    y = np.where(TARGETS["logistic"] > 0, "yes", "no")
    weight = np.where(np.arange(N) < 300, 1.0, 0.0)
    model = fitted("logistic", X, y, weight)
    found = model.summary(X, y, weight, weights="variance")
    fewer = fitted("logistic", X[:300], y[:300]).summary(X[:300], y[:300])
    assert found.observations == fewer.observations == 300
    np.testing.assert_allclose(found.table, fewer.table, rtol=1e-5, atol=1e-8)
    assert found.aic == pytest.approx(fewer.aic)


def test_variance_weights_need_not_sum_to_the_number_of_rows():
    y, weight = TARGETS["gamma"], WEIGHT / 1e4
    model = fitted("gamma", X, y, weight)
    with pytest.raises(ValueError, match="give weights='variance' if they are inverse variances"):
        model.standard_errors(X, y, weight)
    found = model.standard_errors(X, y, weight, weights="variance")
    expected = fitted("gamma", X, y, WEIGHT).standard_errors(X, y, WEIGHT, weights="variance")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "call", "told"),
    [
        ({"alpha": 1.0}, {}, "a penalty of 400 on the sum of the losses, and penalised estimates"),
        ({}, {"level": 95}, "level must be a number between 0 and 1, got 95: the probability"),
        ({}, {"weights": "var"}, "weights must be 'frequency' or 'variance', got 'var'"),
        ({}, {"weights": WEIGHT}, "it says what sample_weight is, which is a parameter of its own"),
    ],
)
def test_what_is_refused(settings, call, told):
    y = TARGETS["gamma"]
    model = fitted("gamma", X, y, **settings)
    with pytest.raises(ValueError, match=re.escape(told)):
        model.summary(X, y, **call)


def test_without_pandas(monkeypatch):
    y = TARGETS["gamma"]
    model = fitted("gamma", X, y)
    import_module = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return import_module(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ImportError, match=r"summary returns a pandas.DataFrame: pip install"):
        model.summary(X, y)
