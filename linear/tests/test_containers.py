"""Every container that a fit takes: the same model, and the same sentences for what is wrong."""

import re
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from containers import (
    COLUMNS,
    KINDS,
    NAMED,
    Containers,
    arrow,
    columns_of,
    frame,
    objects,
    polars,
)
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from sklearn.utils.validation import _get_feature_names

# scikit-learn says that it makes an array of such a frame.
pytestmark = pytest.mark.filterwarnings("ignore:pandas.DataFrame with sparse columns found")

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
LABELS = X[:, 0] + RNG.normal(size=N) > 0
TARGET = X[:, 1] + RNG.normal(size=N)
WEIGHT = RNG.uniform(0.5, 2, N)
CLASSIFIER = GLMClassifier(tol=1e-12).fit(X, LABELS)


@pytest.fixture
def made(tmp_path):
    return Containers(tmp_path).made


def with_value(value, row=7, column=2):
    changed = X.copy()
    changed[row, column] = value
    return changed


# --- Features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_container_gives_the_same_model(made, kind):
    model = GLMClassifier(tol=1e-12).fit(made(kind, X), LABELS)
    np.testing.assert_allclose(model.coef_, CLASSIFIER.coef_, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(model.predict(made(kind, X)), CLASSIFIER.predict(X))
    errors = model.standard_errors(made(kind, X), LABELS)
    np.testing.assert_allclose(errors, CLASSIFIER.standard_errors(X, LABELS), rtol=1e-5)


WRONG_NUMBERS = {
    "NaN": (np.nan, "X has NaN in row 7, column 2"),
    "infinity": (-np.inf, "X has -inf in row 7, column 2"),
}
WHERE = {
    "fit": lambda made, rows, _: GLMClassifier().fit(made(rows), LABELS),
    "search": lambda made, rows, _: GLMRegressorCV(cv=2, alphas=2).fit(made(rows), TARGET),
    "predict": lambda made, rows, model: model.predict(made(rows)),
    "score": lambda made, rows, model: model.score(made(rows), TARGET),
    "covariance": lambda made, rows, model: model.covariance(made(rows), TARGET),
}


@pytest.mark.parametrize("fault", WRONG_NUMBERS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_each_container_says_where_a_number_is_wrong(made, kind, where, fault):
    value, words = WRONG_NUMBERS[fault]
    model = GLMRegressor().fit(made(kind, X), TARGET)
    with pytest.raises(ValueError, match=words):
        WHERE[where](lambda rows: made(kind, rows), with_value(value), model)


WRONG_SHAPES = {
    "y": lambda X, _: GLMClassifier().fit(X, LABELS[1:]),
    "weights": lambda X, _: GLMRegressor().fit(X, TARGET, WEIGHT[1:]),
    "offset": lambda X, _: GLMRegressor().fit(X, TARGET, offset=WEIGHT[1:]),
    "y of a score": lambda X, model: model.score(X, TARGET[1:]),
    "weights of a score": lambda X, model: model.score(X, TARGET, WEIGHT[1:]),
    "offset of a prediction": lambda X, model: model.predict(X, WEIGHT[1:]),
    "y of a covariance": lambda X, model: model.covariance(X, TARGET[1:]),
}


@pytest.mark.parametrize("what", WRONG_SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_container_says_what_is_too_short(made, kind, what):
    model = GLMRegressor().fit(made(kind, X), TARGET)
    with pytest.raises(ValueError, match=r"39.* and X has 40 rows"):
        WRONG_SHAPES[what](made(kind, X), model)


@pytest.mark.parametrize("kind", KINDS)
def test_each_container_is_refused_with_other_columns(made, kind):
    model = GLMRegressor().fit(made(kind, X), TARGET)
    with pytest.raises(ValueError, match="feature"):
        model.predict(made(kind, X[:, :2]))


@pytest.mark.parametrize("kind", NAMED)
def test_each_container_with_names_is_refused_in_another_order(made, kind):
    model = GLMRegressor().fit(made(kind, X), TARGET)
    if kind == "polars" and _get_feature_names(made(kind, X)) is None:
        pytest.skip("this scikit-learn does not read the names of this Polars")
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    swapped = made(kind, X)
    if isinstance(swapped, Chunks):
        swapped.columns = ["b", "a", "c"]
    elif hasattr(swapped, "rename_columns"):
        swapped = swapped.rename_columns(["b", "a", "c"])
    else:
        swapped = swapped[["b", "a", "c"]]
    with pytest.raises(ValueError, match=r"fitted with|same order"):
        model.predict(swapped)


TEXT = np.array(["Bonn", "Ulm"] * (N // 2))
FOURTH = {
    "pandas": lambda values: frame(X).assign(d=values),
    "polars": lambda values: polars().DataFrame({**columns_of(X), "d": values}),
    "Arrow": lambda values: arrow().table({**columns_of(X), "d": values}),
}
TEXTS = {
    "list": lambda: [[*row, word] for row, word in zip(X.tolist(), TEXT, strict=True)],
    "array": lambda: np.array(TEXTS["list"](), dtype=object),
    "pandas": lambda: FOURTH["pandas"](TEXT),
    "pandas, objects": lambda: FOURTH["pandas"](objects(TEXT)),
    "pandas, categories": lambda: FOURTH["pandas"](pd.Categorical(TEXT)),
    "pandas, strings": lambda: FOURTH["pandas"](pd.array(TEXT, "string")),
    "pandas, bytes": lambda: FOURTH["pandas"](objects(TEXT.astype("S").tolist())),
    "pandas, Arrow": lambda: FOURTH["pandas"](
        pd.array(TEXT.tolist(), pd.ArrowDtype(arrow().string()))
    ),
    "polars": lambda: FOURTH["polars"](TEXT.tolist()),
    "polars, categories": lambda: TEXTS["polars"]().cast({"d": polars().Categorical}),
    "polars, enum": lambda: TEXTS["polars"]().cast({"d": polars().Enum(["Bonn", "Ulm"])}),
    "Arrow": lambda: FOURTH["Arrow"](TEXT.tolist()),
    "Arrow, dictionary": lambda: FOURTH["Arrow"](arrow().array(TEXT.tolist()).dictionary_encode()),
    "Arrow batch": lambda: TEXTS["Arrow"]().to_batches()[0],
}


@pytest.mark.parametrize("is_chunk", [False, True])
@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_refused_by_its_column(kind, is_chunk):
    rows = TEXTS[kind]()
    name = "" if kind in ("list", "array") else r" \('d'\)"
    words = rf"column 3{name} of X has b?'Bonn' in row 0, .*OneHotEncoder"
    if is_chunk and not name:
        pytest.skip("Chunks takes no objects")
    with pytest.raises(ValueError, match=words):
        GLMClassifier().fit(Chunks([rows]) if is_chunk else rows, LABELS)


NESTED = {
    "polars, lists": lambda: FOURTH["polars"]([[1.0, 2.0]] * N),
    "polars, structs": lambda: FOURTH["polars"]([{"u": 1}] * N),
    "Arrow, lists": lambda: FOURTH["Arrow"]([[1.0, 2.0]] * N),
    "Arrow, structs": lambda: FOURTH["Arrow"]([{"u": 1}] * N),
}


@pytest.mark.parametrize("is_chunk", [False, True])
@pytest.mark.parametrize("kind", NESTED)
def test_columns_of_several_parts_are_refused(kind, is_chunk):
    rows = NESTED[kind]()
    words = r"column 3 \('d'\) of X is of (?i:list|struct).*make a column of each part"
    with pytest.raises(ValueError, match=words):
        GLMClassifier().fit(Chunks([rows]) if is_chunk else rows, LABELS)


def test_what_is_missing_among_objects_is_named():
    column = objects([1.0, pd.NA] * (N // 2))
    with pytest.raises(ValueError, match=r"column 3 \('d'\) of X has <NA> in row 1.*drop such"):
        GLMClassifier().fit(FOURTH["pandas"](column), LABELS)


@pytest.mark.parametrize("argument", ["X", "y", "sample_weight", "offset", "Chunks"])
def test_a_query_that_has_not_run(argument):
    query = polars().DataFrame(columns_of(X)).lazy()
    name = {"Chunks": "parts"}.get(argument, argument)
    words = rf"{name} is a LazyFrame, a query that has no rows yet: give {name}\.collect\(\)"
    arguments = {"X": X, "y": TARGET} | {argument: query}
    fit = GLMRegressor().fit if argument != "Chunks" else lambda **given: Chunks(given["Chunks"])
    with pytest.raises(TypeError, match=words):
        fit(**arguments)


# --- Targets, weights, offsets -----------------------------------------------------------------


@pytest.mark.parametrize("kind", COLUMNS)
def test_each_column_gives_the_same_regression(kind):
    column = COLUMNS[kind]
    arguments = TARGET, WEIGHT, WEIGHT - 1
    peer = GLMRegressor(tol=1e-12).fit(X, *arguments)
    model = GLMRegressor(tol=1e-12).fit(X, *map(column, arguments))
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-6)
    assert model.score(X, *map(column, arguments)) == peer.score(X, *arguments)
    errors = model.standard_errors(X, *map(column, arguments))
    np.testing.assert_allclose(errors, peer.standard_errors(X, *arguments), rtol=1e-6)


MISSING = {"None": None, "NaN": np.nan, "NA": pd.NA, "NaT": pd.NaT, "masked": np.ma.masked}
OF_OBJECTS = [kind for kind in COLUMNS if kind in ("list", "array of objects", "pandas, objects")]
NULLS = {
    "pandas, nullable": lambda values: pd.array(values, "Float64"),
    "polars": lambda values: polars().Series(values),
    "Arrow": lambda values: arrow().array(values),
}
ARGUMENTS = {
    "y": lambda v, _: GLMRegressor().fit(X, v),
    "y of a search": lambda v, _: GLMRegressorCV(cv=2, alphas=2).fit(X, v),
    "y of chunks": lambda v, _: GLMRegressor().fit(Chunks([X, X]), [v, TARGET]),
    "sample_weight": lambda v, _: GLMRegressor().fit(X, TARGET, v),
    "sample_weight of a classifier": lambda v, _: GLMClassifier().fit(X, LABELS, v),
    "offset": lambda v, _: GLMRegressor().fit(X, TARGET, offset=v),
    "offset of predict": lambda v, fitted: fitted.model.predict(X, v),
    "y of score": lambda v, fitted: fitted.model.score(X, v),
    "sample_weight of score": lambda v, fitted: fitted.model.score(X, TARGET, v),
    "offset of score": lambda v, fitted: fitted.model.score(X, TARGET, offset=v),
    "y of a search's score": lambda v, fitted: fitted.search.score(X, v),
    "sample_weight of a search's score": lambda v, fitted: fitted.search.score(X, TARGET, v),
    "y of covariance": lambda v, fitted: fitted.model.covariance(X, v),
    "sample_weight of covariance": lambda v, fitted: fitted.model.covariance(X, TARGET, v),
}


@pytest.fixture(scope="module")
def fitted():
    search = GLMRegressorCV(cv=2, alphas=2).fit(X, TARGET)
    return SimpleNamespace(model=GLMRegressor().fit(X, TARGET), search=search)


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize(
    ("kind", "missing"),
    [(kind, missing) for kind in OF_OBJECTS for missing in MISSING]
    + [(kind, "None") for kind in NULLS],
)
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
def test_a_missing_number_is_refused_with_its_row(kind, missing, argument, fitted):
    values = TARGET.tolist()
    values[3] = MISSING[missing]
    given = {
        "list": lambda: values,
        "array of objects": lambda: objects(values),
        "pandas, objects": lambda: pd.Series(objects(values), dtype=object),
        **{name: lambda make=make: make(values) for name, make in NULLS.items()},
    }[kind]()
    name = argument.split()[0]
    with pytest.raises(ValueError, match=rf"^{name} has .* in row 3, and .*: drop such rows"):
        ARGUMENTS[argument](given, fitted)


MASK = np.arange(N) == 3


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, object])
def test_a_masked_number_is_refused_with_its_row(dtype, argument, fitted):
    given = np.ma.array(np.where(MASK, -9999, np.abs(9 * TARGET)).astype(dtype), mask=MASK)
    name = argument.split()[0]
    words = rf"^{name} has a masked value in row 3, .*: drop such rows, or .*numpy\.ma\.filled$"
    with pytest.raises(ValueError, match=words):
        ARGUMENTS[argument](given, fitted)


def test_a_split_keeps_the_mask():
    masked = np.ma.array(np.tile(TARGET, 2), mask=np.tile(MASK, 2))
    for given in (masked, [masked[:N], masked[N:]]):
        train, _, y, y_test = Chunks([X, X]).train_test_split(given, random_state=0)
        assert y.mask.sum() + y_test.mask.sum() == 2
        with pytest.raises(ValueError, match=f"masked value in row {np.argmax(y.mask)}"):
            GLMRegressor().fit(train, y)


MASKED_ROWS = np.ma.array(np.where(X[3, 2] == X, -9999, X), mask=X[3, 2] == X)
MASKED = {
    "fit": lambda: GLMRegressor().fit(MASKED_ROWS, TARGET),
    "fit, whole numbers": lambda: GLMRegressor().fit(MASKED_ROWS.astype(int), TARGET),
    "fit, rows in a list": lambda: GLMRegressor().fit(list(MASKED_ROWS), TARGET),
    "search": lambda: GLMClassifierCV().fit(MASKED_ROWS, LABELS),
    "predict": lambda: CLASSIFIER.predict(MASKED_ROWS),
    "score": lambda: CLASSIFIER.score(MASKED_ROWS, LABELS),
    "covariance": lambda: CLASSIFIER.covariance(MASKED_ROWS, LABELS),
    "chunks": lambda: Chunks([X, MASKED_ROWS]),
}


@pytest.mark.parametrize("where", MASKED)
def test_masked_features_are_refused_with_row_and_column(where):
    with pytest.raises(ValueError, match=r"has a masked value in row 3, column 2.*: drop such"):
        MASKED[where]()


# --- Labels ------------------------------------------------------------------------------------


LABELS_OF = {
    "bool": LABELS,
    "int": LABELS.astype(int),
    "int8": LABELS.astype(np.int8) - 3,
    "whole floats": 2.0 * LABELS - 1,
    "text": np.where(LABELS, "yes", "no"),
}


@pytest.mark.parametrize("labels", LABELS_OF)
@pytest.mark.parametrize("kind", COLUMNS)
def test_labels_are_what_a_container_has(kind, labels):
    given = COLUMNS[kind](LABELS_OF[labels])
    model = GLMClassifier(tol=1e-12).fit(X, given)
    assert model.classes_.tolist() == np.unique(LABELS_OF[labels]).tolist()
    np.testing.assert_allclose(model.coef_, CLASSIFIER.coef_, rtol=1e-6)
    assert model.score(X, given) == CLASSIFIER.score(X, LABELS)
    search = GLMClassifierCV(Cs=[1.0], cv=2).fit(X, given)
    assert search.score(X, given) == np.mean(search.predict(X) == LABELS_OF[labels])
    chunked = GLMClassifier(tol=1e-12).fit(Chunks([X, X]), [given, given])
    assert chunked.classes_.tolist() == model.classes_.tolist()


def test_decimals_of_a_database_are_labels():
    model = GLMClassifier().fit(X, [Decimal(int(label)) for label in LABELS])
    assert model.classes_.tolist() == [0.0, 1.0]


NO_LABELS = {
    "text and numbers": (["a", 1], "y has 'a' in row 0 and 1 in row 1, which cannot be sorted"),
    "text and booleans": (
        [True, "a"],
        "y has True in row 0 and 'a' in row 1, which cannot be sorted",
    ),
    "text and bytes": (["a", b"b"], "y has 'a' in row 0 and b'b' in row 1, which cannot be sorted"),
    "a dict": ([{}, {}], "y has {} in row 0, and GLMClassifier needs whole numbers, booleans or"),
    "a set": ([{1}, {2}], "y has {1} in row 0, and GLMClassifier needs whole numbers, booleans"),
    "beyond float64": ([2**70 + 1, 2**70], f"y has {2**70 + 1} in row 0, which float64 cannot"),
}


@pytest.mark.parametrize("make", [list, objects])
@pytest.mark.parametrize("what", NO_LABELS)
def test_mixed_labels_are_refused(what, make):
    pair, words = NO_LABELS[what]
    words = f"Unknown label type: {words}"
    with pytest.raises(ValueError, match=rf"^{re.escape(words)}.*astype\(str\)"):
        GLMClassifier().fit(X, make(list(pair) * (N // 2)))


@pytest.mark.parametrize("labels", LABELS_OF)
@pytest.mark.parametrize("missing", ["None", "NaN", "NA", "NaT"])
@pytest.mark.parametrize("make", [list, objects, lambda v: pd.Series(objects(v), dtype=object)])
def test_a_missing_label_is_refused_with_its_row(make, missing, labels):
    values = LABELS_OF[labels].tolist()
    values[3] = MISSING[missing]
    for what in (
        lambda given: GLMClassifier().fit(X, given),
        lambda given: GLMClassifierCV(Cs=2).fit(X, given),
        lambda given: GLMClassifier().fit(X, LABELS_OF[labels]).score(X, given),
        lambda given: GLMClassifier().fit(Chunks([X, X]), [given, LABELS_OF[labels]]),
    ):
        with pytest.raises(ValueError, match=r"^y has \S+ in row 3, and the fit needs labels"):
            what(make(values))
