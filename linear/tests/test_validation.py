"""What the estimators refuse, with which sentence, and what they take without a copy."""

import math
import re
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from provenglm import GLMClassifier, GLMRegressor
from provenglm.api.validation import (
    Labels,
    check_features,
    check_labels,
    check_weight,
    classes_with_weight,
    with_class_weight,
)
from sklearn.exceptions import DataConversionWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
LABELS = RNG.integers(0, 2, 40)
COUNTS = RNG.integers(0, 5, 40)
FRAME = pd.DataFrame(X, columns=list("abc"))


def with_value(array, at, value):
    changed = np.array(array, dtype=np.float64)
    changed[at] = value
    return changed


def classify(**given):
    arguments = {"X": X, "y": LABELS} | given
    return GLMClassifier().fit(**arguments)


def regress(loss="squared", **given):
    arguments = {"X": X, "y": COUNTS} | given
    return GLMRegressor(loss).fit(**arguments)


REFUSED = {
    "NaN in X": (
        lambda: classify(X=with_value(X, (7, 2), math.nan)),
        "X has NaN in row 7, column 2, and GLMClassifier needs finite numbers: drop such rows, or "
        "put sklearn.impute.SimpleImputer before it",
    ),
    "infinity in X": (
        lambda: regress(X=with_value(X, (39, 0), -math.inf)),
        "X has -inf in row 39, column 0, and GLMRegressor needs finite numbers: drop such rows, "
        "or make them NaN and put sklearn.impute.SimpleImputer before it",
    ),
    "NaN in a frame": (
        lambda: classify(X=pd.DataFrame(with_value(X, (7, 1), math.nan), columns=list("abc"))),
        "X has NaN in row 7, column 1 ('b'), and GLMClassifier needs finite numbers: drop such "
        "rows, or put sklearn.impute.SimpleImputer before it",
    ),
    "NaN in X of predict": (
        lambda: classify().predict(with_value(X, (0, 0), math.nan)),
        "X has NaN in row 0, column 0, and GLMClassifier needs finite numbers: drop such rows, or "
        "put sklearn.impute.SimpleImputer before it",
    ),
    "text in a frame": (
        lambda: classify(X=FRAME.assign(city=["Bonn"] * 40)),
        "column 3 ('city') of X has 'Bonn' in row 0, and GLMClassifier needs numbers: encode it, "
        "for instance with sklearn.preprocessing.OneHotEncoder in a "
        "sklearn.compose.make_column_transformer, or leave it out",
    ),
    "categories in a frame": (
        lambda: classify(X=FRAME.assign(city=pd.Categorical(["Bonn", "Ulm"] * 20))),
        "column 3 ('city') of X has 'Bonn' in row 0, and GLMClassifier needs numbers: encode it, "
        "for instance with sklearn.preprocessing.OneHotEncoder in a "
        "sklearn.compose.make_column_transformer, or leave it out",
    ),
    "dates in a frame": (
        lambda: regress(X=FRAME.assign(day=pd.to_datetime(["2020-01-01"] * 40).astype("M8[ns]"))),
        "column 3 ('day') of X is of datetime64[ns], and GLMRegressor needs numbers: give the "
        "days since a date, or parts of it such as the month, or leave it out",
    ),
    "dates alone": (
        lambda: classify(X=pd.DataFrame({"day": pd.to_datetime(["2020-01-01", None] * 20)})),
        f"column 0 ('day') of X is of {pd.to_datetime(['2020-01-01']).dtype}, and GLMClassifier "
        "needs numbers: give the days since a date, or parts of it such as the month, or leave it "
        "out",
    ),
    "numbers as text": (
        lambda: classify(X=X.astype(str)),
        f"column 0 of X has {str(X[0, 0])!r} in row 0, and GLMClassifier needs numbers: make "
        "numbers of it with astype(float)",
    ),
    "one word among numbers": (
        lambda: regress(X=[[0.0, 1.0]] * 39 + [[1.0, "many"]]),
        "column 1 of X has 'many' in row 39, and GLMRegressor needs numbers: encode it, for "
        "instance with sklearn.preprocessing.OneHotEncoder in a "
        "sklearn.compose.make_column_transformer, or leave it out",
    ),
    "text in a frame to predict": (
        lambda: classify(X=FRAME).predict(FRAME.assign(b="x")),
        "column 1 ('b') of X has 'x' in row 0, and GLMClassifier needs numbers: encode it, for "
        "instance with sklearn.preprocessing.OneHotEncoder in a "
        "sklearn.compose.make_column_transformer, or leave it out",
    ),
    "no label among labels": (
        lambda: classify(y=["yes", "no", None, "yes"] * 10),
        "y has None in row 2, and the fit needs labels: drop such rows",
    ),
    "NaN among labels of text": (
        lambda: classify(y=pd.Series(["yes", "no", math.nan, "yes"] * 10, dtype=object)),
        "y has NaN in row 2, and the fit needs labels: drop such rows",
    ),
    "a feature whose square overflows": (
        lambda: classify(X=with_value(X, (9, 1), -1e300)),
        "X has -1e+300 in row 9, column 1, and the square of such a number overflows float64: "
        "divide the column by its largest number; its coefficient is then in these units",
    ),
    "NaN in labels": (
        lambda: classify(y=with_value(LABELS, 3, math.nan)),
        "y has NaN in row 3, and the fit needs labels: drop such rows",
    ),
    "NaN in a target": (
        lambda: regress(y=with_value(COUNTS, 3, math.inf)),
        "y has inf in row 3, and the fit needs finite numbers: drop such rows",
    ),
    "no target": (
        lambda: regress(y=None),
        "This GLMRegressor estimator requires y to be passed, but the target y is None: give one "
        "value for each of the 40 rows of X",
    ),
    "words for a regression": (
        lambda: regress(y=["many"] * 40),
        "y has something that is not a number (could not convert string to float: 'many'): give "
        "numbers",
    ),
    "complex target": (
        lambda: regress(y=COUNTS * 1j),
        "y is complex: give its real part, or its absolute value",
    ),
    "one class": (
        lambda: classify(y=np.full(40, "spam")),
        "y has the one class 'spam' in its 40 rows, and GLMClassifier needs at least two classes "
        "to tell apart: if the data are sorted by class, shuffle them before they are split",
    ),
    "one row": (
        lambda: classify(X=X[:1], y=LABELS[:1]),
        f"y has the one class {LABELS[0]} in its 1 rows, and GLMClassifier needs at least two "
        "classes to tell apart: if the data are sorted by class, shuffle them before they are "
        "split",
    ),
    "one class with a weight": (
        lambda: classify(sample_weight=LABELS),
        "y has the one class 1 in its 40 rows with a positive weight, and GLMClassifier needs at "
        "least two classes to tell apart: if the data are sorted by class, shuffle them before "
        "they are split",
    ),
    "continuous labels": (
        lambda: classify(y=with_value(LABELS, 5, 0.25)),
        "Unknown label type: y has 0.25 in row 5, a continuous target, and GLMClassifier needs "
        "classes: use GLMRegressor for numbers, or convert them to classes with "
        "sklearn.preprocessing.KBinsDiscretizer",
    ),
    "weights too few": (
        lambda: classify(sample_weight=np.ones(39)),
        "sample_weight has the shape (39,), and X has 40 rows: give one weight per row, in an "
        "array of shape (40,)",
    ),
    "a negative weight": (
        lambda: regress(sample_weight=with_value(np.ones(40), 11, -0.5)),
        "sample_weight is -0.5 in row 11, and a loss with a negative weight has no minimum: "
        "give 0 to leave a row out",
    ),
    "a weight that is NaN": (
        lambda: regress(sample_weight=with_value(np.ones(40), 11, math.nan)),
        "sample_weight has NaN in row 11, and the fit needs finite numbers: drop such rows",
    ),
    "all weights zero": (
        lambda: regress(sample_weight=np.zeros(40)),
        "sample_weight is zero in all 40 rows, so there is nothing to fit: give at least one row a "
        "positive weight",
    ),
    "a negative count": (
        lambda: regress("poisson", y=with_value(COUNTS, 8, -2)),
        "y is -2 in row 8, and loss='poisson' needs numbers of at least 0: take "
        "the squared loss for values of both signs",
    ),
    "no amount": (
        lambda: regress("gamma", y=with_value(COUNTS + 1, 8, 0)),
        "y is 0 in row 8, and loss='gamma' needs numbers above 0: take Tweedie's loss if there are "
        "zeros, the squared loss for values of both signs",
    ),
    "a negative amount": (
        lambda: regress("tweedie", y=with_value(COUNTS, 8, -2)),
        "y is -2 in row 8, and loss='tweedie' needs numbers of at least 0: take loss='squared' for "
        "values of both signs",
    ),
    "no counts": (
        lambda: regress("poisson", y=np.eye(40)[3], sample_weight=1 - np.eye(40)[3]),
        "y is 0 in every row with a positive weight, and loss='poisson' has no finite optimum "
        "there (the logarithm of the mean goes to minus infinity): give positive values, too",
    ),
    "a sum of weights beyond float64": (
        lambda: regress(sample_weight=np.full(40, 1e307)),
        "sample_weight has the sum inf, which is outside the range that float64 can divide by: "
        "divide the weights by their mean (the penalty of a classifier is relative to their sum, "
        "that of a regressor is not)",
    ),
    "a target whose square overflows": (
        lambda: regress(y=with_value(COUNTS, 8, -3e300)),
        "y is -3e+300 in row 8, its largest value, and the square of such a number is outside "
        "the range of float64: divide y by 3e+300; coef_ and intercept_ are then in these units",
    ),
    "a target whose square underflows": (
        lambda: regress(y=np.full(40, 2e-200)),
        "y is 2e-200 in row 0, its largest value, and the square of such a number is outside "
        "the range of float64: divide y by 2e-200; coef_ and intercept_ are then in these units",
    ),
    "C whose inverse overflows": (
        lambda: GLMClassifier(C=1e-320).fit(X, LABELS),
        "C is 9.99989e-321, and 1 / C overflows float64: give a larger C",
    ),
    "C": (
        lambda: GLMClassifier(C=0).fit(X, LABELS),
        "C must be a number above 0, got 0: inverse strength of the penalty; inf for no penalty",
    ),
    "C that is NaN": (
        lambda: GLMClassifier(C=math.nan).fit(X, LABELS),
        "C must be a number above 0, got nan: inverse strength of the penalty; inf for no penalty",
    ),
    "loss": (
        lambda: regress("logistic"),
        "loss must be one of 'squared', 'huber', 'poisson', 'gamma', 'tweedie', got 'logistic': "
        "for classes, use GLMClassifier",
    ),
    "alpha as the loss": (
        lambda: regress(0.1),
        "loss must be one of 'squared', 'huber', 'poisson', 'gamma', 'tweedie', got 0.1: the "
        "penalty is a keyword, alpha=0.1",
    ),
    "alpha": (
        lambda: GLMRegressor(alpha=-1).fit(X, COUNTS),
        "alpha must be a number of at least 0, got -1: strength of the penalty; 0 for no penalty",
    ),
    "infinite alpha": (
        lambda: GLMRegressor(alpha=math.inf).fit(X, COUNTS),
        "alpha must be a finite number, got inf: strength of the penalty; 0 for no penalty",
    ),
    "epsilon": (
        lambda: GLMRegressor("huber", epsilon=1).fit(X, COUNTS),
        "epsilon must be a number above 1, got 1: outliers are beyond epsilon times the scale, "
        "which would be 0 for 1",
    ),
    "tol": (
        lambda: GLMRegressor(tol=-1e-6).fit(X, COUNTS),
        "tol must be a number of at least 0, got -1e-06: relative distance to the optimum at "
        "which the fit ends",
    ),
    "max_iter": (
        lambda: GLMRegressor(max_iter=0).fit(X, COUNTS),
        "max_iter must be a positive integer, got 0: maximum number of snapshots",
    ),
    "max_time": (
        lambda: GLMRegressor(max_time=0).fit(X, COUNTS),
        "max_time must be a number above 0, got 0: maximum time of the fit in seconds",
    ),
    "verbose": (
        lambda: GLMRegressor(verbose=-1).fit(X, COUNTS),
        "verbose must be 'auto', 0, 1 or 2, got -1: 0 shows nothing but warnings, 1 a bar and a "
        "line per snapshot, 2 the lines alone, 'auto' the bar on a terminal and in a notebook only",
    ),
    "class_weight": (
        lambda: GLMClassifier(class_weight="even").fit(X, LABELS),
        "class_weight must be None, 'balanced' or a dict, got 'even': 'balanced' gives each class "
        "the same total weight, a dict has a weight per label",
    ),
    "a negative class weight": (
        lambda: GLMClassifier(class_weight={1: -2}).fit(X, LABELS),
        "class_weight is -2 for the class 1, and it must be a finite number of at least 0: give 0 "
        "to leave a class out",
    ),
}


@pytest.mark.parametrize(("fit", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(fit, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit()


@pytest.mark.parametrize("name", ["fit_intercept", "warm_start"])
def test_flags(name):
    with pytest.raises(TypeError, match=f"^{name} must be True or False, got 'no'$"):
        GLMRegressor(**{name: "no"}).fit(X, COUNTS)


def test_a_column_is_taken_with_a_warning():
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        model = regress(y=COUNTS[:, None])
    np.testing.assert_array_equal(model.coef_, regress().coef_)


# --- Features ----------------------------------------------------------------------------------


ARRAYS = {
    "float64": X,
    "float32": X.astype(np.float32),
    "float16": X.astype(np.float16),
    "uint8": RNG.integers(0, 255, (40, 3), dtype=np.uint8),
    "bool": X > 0,
    "int64": COUNTS[:, None] * np.arange(3),
    "F-ordered": np.asfortranarray(X),
    "every other row": np.repeat(X, 2, axis=0)[::2],
    "backwards": X[:, ::-1],
}
for array in ARRAYS.values():
    array.setflags(write=False)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_features_are_not_copied(array):
    estimator = GLMClassifier()
    features = check_features(estimator, array, reset=True)
    assert np.shares_memory(features, array)
    assert (features.dtype, features.strides) == (array.dtype, array.strides)
    assert estimator.n_features_in_ == 3


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_every_array_gives_the_coefficients_of_its_float64_copy(array):
    tight = GLMClassifier(tol=1e-12)
    expected = tight.fit(array.astype(np.float64), LABELS).coef_
    coef = tight.fit(array, LABELS).coef_
    # Where the relative gap is 1e-12, coefficients have 6 digits.
    np.testing.assert_allclose(coef, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(tight.predict(array), tight.predict(array.astype(np.float64)))


def test_the_check_of_many_bytes_takes_little_memory():
    pixels = np.zeros((2000, 5000), np.uint8)  # 10 MB; as float64 80 MB
    numbers = np.zeros((200, 5000), np.float32)
    numbers[199, 4999] = np.inf
    tracemalloc.start()
    check_features(GLMClassifier(), pixels, reset=True)
    with pytest.raises(ValueError, match="row 199, column 4999"):
        check_features(GLMClassifier(), numbers, reset=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_great_numbers_are_finite(dtype):
    great = np.full((4, 2), 0.9 * np.finfo(dtype).max, dtype)
    estimator = GLMClassifier()
    check_features(estimator, np.ones((4, 2)), reset=True)
    assert check_features(estimator, great, reset=False) is great
    great[3, 1] = np.nan
    with pytest.raises(ValueError, match="X has NaN in row 3, column 1"):
        check_features(estimator, great, reset=False)


# --- Labels ------------------------------------------------------------------------------------


LABEL_ARRAYS = {
    "int8": np.array([-128, 127, 3, -128], np.int8),
    "uint64": np.array([2**63 + 5, 2**63 + 1, 2**63 + 5], np.uint64),
    "far apart": np.array([-(2**62), 2**62, 0]),
    "bool": np.array([True, False, True]),
    "whole floats": np.array([2.0, -1.0, 1e300, 2.0]),
    "small whole floats": np.array([2.0, -1.0, 0.0, 2.0], np.float32),
    "strings": np.array(["b", "a", "c", "a"]),
    "objects": np.array(["b", "a", "c", "a"], dtype=object),
}


@pytest.mark.parametrize("y", LABEL_ARRAYS.values(), ids=LABEL_ARRAYS)
def test_labels_as_numpy_sorts_them(y):
    labels = check_labels("GLMClassifier", y, np.empty((len(y), 1)))
    classes, codes = np.unique(y, return_inverse=True)
    np.testing.assert_array_equal(labels.classes, classes)
    np.testing.assert_array_equal(labels.codes, codes)
    assert labels.classes.dtype == y.dtype


def test_objects_that_are_no_labels():
    with pytest.raises(ValueError, match="Unknown label type"):
        check_labels("GLMClassifier", np.array([{}, {}], dtype=object), np.empty((2, 1)))


# --- Weights -----------------------------------------------------------------------------------


THREE = Labels(np.array(["a", "b", "c"]), np.array([0, 0, 0, 1, 2, 2]))


def test_no_weights():
    assert check_weight(None, X) is None
    assert with_class_weight(THREE, None, None) is None
    np.testing.assert_array_equal(check_weight(2, X), np.full(40, 2.0))


def test_balanced_weights_count_the_weights_of_the_samples():
    weight = np.array([1.0, 2.0, 1.0, 3.0, 0.0, 5.0])
    balanced = with_class_weight(THREE, weight, "balanced")
    sums = np.bincount(THREE.codes, weights=balanced)
    np.testing.assert_allclose(sums, [4, 4, 4], rtol=1e-15)
    repeated = Labels(THREE.classes, THREE.codes.repeat(weight.astype(int)))
    np.testing.assert_allclose(
        with_class_weight(repeated, None, "balanced"),
        (balanced / np.where(weight > 0, weight, 1)).repeat(weight.astype(int)),
        rtol=1e-15,
    )


def test_a_dict_of_weights():
    np.testing.assert_array_equal(
        with_class_weight(THREE, np.arange(6.0), {"a": 2, "c": 0.5}), [0, 2, 4, 3, 2, 2.5]
    )
    with pytest.raises(ValueError, match="are not in class_weight"):
        with_class_weight(THREE, None, {"a": 2, "d": 1})


def test_a_class_without_weight_is_left_out():
    left = classes_with_weight("GLMClassifier", THREE, np.array([1.0, 0, 0, 0, 2, 0]))
    assert left.classes.tolist() == ["a", "c"]
    assert left.codes[[0, 4, 5]].tolist() == [0, 1, 1]
    assert set(left.codes.tolist()) == {0, 1}
