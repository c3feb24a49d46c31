"""A fit that an exception ends leaves the model as it was: every refusal, for every estimator."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from provenglm.api import base
from sklearn.exceptions import ConvergenceWarning

pytestmark = pytest.mark.slow

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
FRAME = pd.DataFrame(X, columns=list("abcd"))
OTHER = pd.DataFrame(RNG.normal(size=(N, 2)), columns=["x", "y"])
"""What the refused fits get has other columns: what is left of them shows."""

LABELS = X[:, 0] + RNG.normal(size=N) > 0
COUNTS = RNG.poisson(np.exp(X[:, 0])) + 1.0

MODELS = {
    "classifier": lambda: GLMClassifier().fit(FRAME, LABELS),
    "classifier with an offset": lambda: GLMClassifier().fit(FRAME, LABELS, offset=X[:, 1]),
    "squared": lambda: GLMRegressor().fit(FRAME, COUNTS),
    "huber": lambda: GLMRegressor("huber").fit(FRAME, COUNTS),
    "poisson": lambda: GLMRegressor("poisson").fit(FRAME, COUNTS, offset=X[:, 1]),
    "gamma": lambda: GLMRegressor("gamma").fit(FRAME, COUNTS),
    "tweedie": lambda: GLMRegressor("tweedie").fit(FRAME, COUNTS),
    "lasso": lambda: GLMRegressor(l1_ratio=1.0, alpha=0.1).fit(FRAME, COUNTS),
    "search of a classifier": lambda: GLMClassifierCV(Cs=2, cv=2).fit(FRAME, LABELS),
    "search of a regressor": lambda: GLMRegressorCV(alphas=2, cv=2).fit(FRAME, COUNTS),
    "search with an offset": lambda: GLMClassifierCV(Cs=2, cv=2).fit(FRAME, LABELS, offset=X[:, 1]),
    "search with Huber": lambda: GLMRegressorCV("huber", alphas=2, cv=2).fit(FRAME, COUNTS),
}


def with_value(values, at, value):
    changed = np.array(values, dtype=np.float64)
    changed[at] = value
    return changed


# What `fit` gets, beside X and y that would do.
REFUSALS = {
    "NaN in X": {"X": with_value(OTHER, (3, 1), np.nan)},
    "infinity in X": {"X": with_value(OTHER, (3, 1), np.inf)},
    "overflow in X": {"X": with_value(OTHER, (3, 1), 1e300)},
    "NaN in CSR": {"X": scipy.sparse.csr_array(with_value(OTHER, (3, 1), np.nan))},
    "NaN in chunks": {"X": Chunks([with_value(OTHER, (3, 1), np.nan)])},
    "text in X": {"X": OTHER.assign(x="a")},
    "dates in X": {"X": OTHER.assign(x=pd.Timestamp("2024-01-01"))},
    "complex X": {"X": OTHER * 1j},
    "one dimension": {"X": X[:, 0]},
    "no rows": {"X": OTHER[:0], "y": LABELS[:0]},
    "no columns": {"X": OTHER[[]]},
    "no y": {"y": None},
    "y too short": {"y": LABELS[1:]},
    "NaN in y": {"y": with_value(LABELS, 3, np.nan)},
    "dates in y": {"y": np.full(N, "2024-01-01", "M8[D]")},
    "masked y": {"y": np.ma.array(LABELS, mask=LABELS)},
    "words and numbers in y": {"y": ["a", 1] * (N // 2)},
    "y of two columns": {"y": np.column_stack([LABELS, LABELS])},
    "weights too short": {"sample_weight": np.ones(N - 1)},
    "a negative weight": {"sample_weight": with_value(np.ones(N), 3, -1)},
    "no weight": {"sample_weight": np.zeros(N)},
    "NaN in weights": {"sample_weight": with_value(np.ones(N), 3, np.nan)},
    "weights with a sum beyond float64": {"sample_weight": np.full(N, 1e307)},
}
OFFSETS = {
    "offset too short": {"offset": np.zeros(N - 1)},
    "NaN in the offset": {"offset": with_value(np.zeros(N), 3, np.nan)},
}
OF_CLASSES = {
    "one class": {"y": np.ones(N)},
    "one class with weight": {"sample_weight": LABELS.astype(float)},
    "continuous labels": {"y": X[:, 0]},
}
OF_LOGARITHMS = {
    "negative targets": {"y": X[:, 0]},
    "an offset that is no logarithm": {"offset": 1000.0 * np.arange(N)},
}
SETTINGS = {
    "tol": {"tol": -1},
    "max_iter": {"max_iter": 0},
    "max_time": {"max_time": 0},
    "fit_intercept": {"fit_intercept": "no"},
    "verbose": {"verbose": 3},
    "random_state": {"random_state": "x"},
}


def settings_of(model):
    """Return settings that are refused; some are looked at when much has been done already."""
    refused = dict(SETTINGS)
    if "warm_start" in model.get_params():
        refused |= {"l1_ratio": {"l1_ratio": 2.0}}
        refused |= {"warm_start": {"warm_start": "no"}, "other columns": {"warm_start": True}}
    for name, value in (("C", 0), ("alpha", -1), ("Cs", []), ("alphas", [-1]), ("loss", "x")):
        if name in model.get_params():
            refused[name] = {name: value}
    if "cv" in model.get_params():
        refused |= {"cv": {"cv": 1}, "scoring": {"scoring": "x"}, "refit": {"refit": "no"}}
        refused |= {"fails late": {"scoring": fails}, "l1_ratios": {"l1_ratios": [2.0]}}
    if "class_weight" in model.get_params():
        refused["class_weight"] = {"class_weight": "x"}
    return refused


def fails(estimator, X, y):
    raise ValueError("no score")


def state(model):
    """Return the attributes of a fit: the objects themselves, and a copy of their values."""
    fitted = {k: v for k, v in vars(model).items() if k not in model.get_params()}
    return fitted, pickle.dumps(copy.deepcopy(fitted))


def check_refused(model, **arguments):
    before, values = state(model)
    given = {"X": OTHER, "y": LABELS if hasattr(model, "classes_") else COUNTS} | arguments
    with pytest.raises((TypeError, ValueError)):
        model.fit(**given)
    after, same = state(model)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert same == values


def cases(make):
    model = make()
    found = REFUSALS | OFFSETS
    found |= OF_CLASSES if hasattr(model, "classes_") else {}
    if getattr(model, "loss", "") in ("poisson", "tweedie", "gamma"):
        found |= OF_LOGARITHMS
    return found


@pytest.mark.parametrize(
    ("name", "refusal"), [(name, what) for name, make in MODELS.items() for what in cases(make)]
)
def test_refused_data(name, refusal):
    model = MODELS[name]()
    check_refused(model, **cases(MODELS[name])[refusal])


@pytest.mark.parametrize(
    ("name", "refusal"),
    [(name, what) for name, make in MODELS.items() for what in settings_of(make())],
)
def test_refused_settings(name, refusal):
    model = MODELS[name]()
    model.set_params(**settings_of(model)[refusal])
    check_refused(model)


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("make", [GLMClassifier, GLMRegressor, GLMClassifierCV, GLMRegressorCV])
def test_a_first_fit_that_is_refused_leaves_nothing(make, refusal):
    model = make()
    y = LABELS if "Classifier" in make.__name__ else COUNTS
    with pytest.raises((TypeError, ValueError)):
        model.fit(**({"X": OTHER, "y": y} | REFUSALS[refusal]))
    assert sorted(vars(model)) == sorted(model.get_params())


# One step solves the others.
STEPS = [name for name in MODELS if name not in ("squared", "lasso", "search of a regressor")]


@pytest.mark.parametrize("name", STEPS)
def test_a_warning_that_is_an_error(name):
    model = MODELS[name]()
    model.set_params(max_iter=1, tol=0.0)
    before, values = state(model)
    y = LABELS if hasattr(model, "classes_") else COUNTS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConvergenceWarning):
            model.fit(1e3 * OTHER.to_numpy() ** 3, y)
    after, same = state(model)
    assert list(after) == list(before)
    assert same == values


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, FloatingPointError])
def test_whatever_ends_a_fit(monkeypatch, error):
    models = [make() for make in MODELS.values()]
    before = [state(model) for model in models]

    def ended(*_):
        raise error

    monkeypatch.setattr(base.LinearEstimator, "_run", ended)
    for model, (fitted, values) in zip(models, before, strict=True):
        with pytest.raises(error):
            model.fit(OTHER, LABELS if hasattr(model, "classes_") else COUNTS)
        after, same = state(model)
        assert list(after) == list(fitted)
        assert same == values
