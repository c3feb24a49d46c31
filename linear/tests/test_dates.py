"""Dates, times, durations and periods are refused wherever numbers are expected."""

import datetime

import numpy as np
import pandas as pd
import pytest
from containers import arrow, objects, polars
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV

pytestmark = pytest.mark.slow

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
TARGET = X[:, 0] + RNG.normal(size=N)
LABELS = TARGET > 0

DAYS = np.datetime64("2024-01-01", "us") + np.arange(N) * np.timedelta64(7, "h")
DURATIONS = DAYS - DAYS[0]


def with_nat(days):
    days = days.copy()
    days[3] = "NaT"
    return days


DATES = {
    "datetime": DAYS,
    "datetime with NaT": with_nat(DAYS),
    "date": objects([day.date() for day in DAYS.astype(object)]),
    "time": objects([day.time() for day in DAYS.astype(object)]),
    "duration": DURATIONS,
    "duration with NaT": with_nat(DURATIONS),
}


def of_python(dates):
    return objects(dates.astype(object))


def of_arrow(dates):
    return arrow().array(of_python(dates).tolist())


ONE_OF_EACH = {
    "array": lambda dates: dates,
    "array of NumPy's objects": lambda dates: objects(list(dates)),
    "array of Python's objects": of_python,
    "list of NumPy's": list,
    "list of Python's": lambda dates: of_python(dates).tolist(),
    "pandas": pd.Series,
    "pandas, objects": lambda dates: pd.Series(of_python(dates), dtype=object),
    "pandas, index": pd.Index,
    "pandas, categories": lambda dates: pd.Series(dates).astype("category"),
    "pandas, Arrow": lambda dates: pd.Series(
        of_python(dates).tolist(), dtype=pd.ArrowDtype(of_arrow(dates).type)
    ),
    "polars": lambda dates: polars().Series(of_python(dates).tolist()),
    "Arrow": of_arrow,
    "Arrow, chunked": lambda dates: arrow().chunked_array([of_arrow(dates)]),
    "Arrow, dictionary": lambda dates: of_arrow(dates).dictionary_encode(),
}

# Of points in time alone.
POINTS = {
    "pandas, time zone": lambda dates: pd.Series(dates).dt.tz_localize("UTC"),
    "pandas, periods": lambda dates: pd.Series(dates).dt.to_period("D"),
    "list of Timestamps": lambda dates: list(pd.Series(dates)),
    "list of Periods": lambda dates: list(pd.Series(dates).dt.to_period("D")),
}

CASES = [(kind, container) for kind in DATES for container in ONE_OF_EACH]
CASES += [(kind, container) for kind in ("datetime", "datetime with NaT") for container in POINTS]


def made(kind, container):
    return (ONE_OF_EACH | POINTS)[container](DATES[kind])


# --- Features ----------------------------------------------------------------------------------

IN_ROWS = {
    "array": lambda column: np.column_stack([column, column]),
    "array of NumPy's objects": lambda column: np.column_stack([objects(X[:, 0]), column]),
    "array of Python's objects": lambda column: np.column_stack([objects(X[:, 0]), column]),
    "list of NumPy's": lambda column: [[x, date] for x, date in zip(X[:, 0], column, strict=True)],
    "list of Python's": lambda column: [[x, date] for x, date in zip(X[:, 0], column, strict=True)],
    "polars": lambda column: polars().DataFrame({"a": X[:, 0], "d": column}),
    "Arrow": lambda column: arrow().table({"a": X[:, 0], "d": column}),
    "Arrow, chunked": lambda column: arrow().table({"a": X[:, 0], "d": column}).to_batches()[0],
    "Arrow, dictionary": lambda column: arrow().table({"a": X[:, 0], "d": column}),
}


def rows_of(column, container):
    if container.startswith("pandas"):
        return pd.DataFrame({"a": X[:, 0], "d": column})
    if container.startswith("list"):
        return IN_ROWS["list of Python's"](column)
    return IN_ROWS[container](column)


FITS = {
    "fit": lambda rows: GLMRegressor().fit(rows, TARGET),
    "search": lambda rows: GLMClassifierCV().fit(rows, LABELS),
    "chunks": lambda rows: GLMRegressor().fit(Chunks([rows]), TARGET),
}
REFUSED = r"(?i:date|time|duration|period|NaT|20\d\d|\d\d:\d\d|\d+ (micro)?seconds)"
"""A dtype, or a value."""


@pytest.mark.parametrize("where", FITS)
@pytest.mark.parametrize(("kind", "container"), CASES)
def test_features(kind, container, where):
    rows = rows_of(made(kind, container), container)
    if isinstance(rows, list) and where == "chunks":
        rows = np.array(rows, dtype=object)
    error = ValueError
    words = rf"^column [01]( \('d'\))? of X (is of|has) .*{REFUSED}.*(days since|drop such rows)"
    if isinstance(rows, np.ndarray) and where == "chunks":
        words = r"^chunk 0 is of (object|datetime64|timedelta64).*, and features are real numbers"
    with pytest.raises(error, match=words):
        FITS[where](rows)


@pytest.mark.parametrize("container", ["pandas", "pandas, Arrow", "polars", "Arrow"])
@pytest.mark.parametrize("kind", DATES)
def test_a_prediction(kind, container):
    model = GLMRegressor().fit(pd.DataFrame(X, columns=["a", "d"]), TARGET)
    dates = rows_of(made(kind, container), container)
    with pytest.raises(ValueError, match=rf"^column 1 \('d'\) of X .*{REFUSED}"):
        model.predict(dates)


@pytest.mark.parametrize("kind", DATES)
def test_a_parquet_file(kind, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow().table({"a": X[:, 0], "d": of_arrow(DATES[kind])})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"column 'd' of .* is of {REFUSED}.*days since a date"):
        Chunks.from_parquet(tmp_path / "x.parquet")


# --- One for each row --------------------------------------------------------------------------

ARGUMENTS = {
    "y": lambda dates: GLMRegressor().fit(X, dates),
    "y of Huber": lambda dates: GLMRegressor("huber").fit(X, dates),
    "y of a search": lambda dates: GLMRegressorCV(cv=2).fit(X, dates),
    "y of labels": lambda dates: GLMClassifier().fit(X, dates),
    "y of labels of a search": lambda dates: GLMClassifierCV(cv=2).fit(X, dates),
    "y of chunks": lambda dates: GLMRegressor().fit(Chunks([X, X]), [dates, dates]),
    "sample_weight": lambda dates: GLMRegressor().fit(X, TARGET, dates),
    "sample_weight of labels": lambda dates: GLMClassifier().fit(X, LABELS, dates),
    "sample_weight of a search": lambda dates: GLMClassifierCV(cv=2).fit(X, LABELS, dates),
    "offset": lambda dates: GLMRegressor().fit(X, TARGET, offset=dates),
    "offset of labels": lambda dates: GLMClassifier().fit(X, LABELS, offset=dates),
    "offset of predict": lambda dates: MODEL.predict(X, dates),
    "y of score": lambda dates: MODEL.score(X, dates),
    "y of a search's score": lambda dates: SEARCH.score(X, dates),
    "sample_weight of score": lambda dates: MODEL.score(X, TARGET, dates),
    "y of labels of score": lambda dates: LABELLED.score(X, dates),
    "y of covariance": lambda dates: MODEL.covariance(X, dates),
}
MODEL = GLMRegressor().fit(X, TARGET)
LABELLED = GLMClassifier().fit(X, LABELS)
SEARCH = GLMRegressorCV(cv=2, alphas=2).fit(X, TARGET)


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize(("kind", "container"), CASES)
def test_an_argument(kind, container, argument):
    name = argument.split()[0]
    words = rf"^{name} (is of|has) .*{REFUSED}.*(days since a date|no dates or durations|drop such)"
    with pytest.raises(ValueError, match=words):
        ARGUMENTS[argument](made(kind, container))


# --- Settings ----------------------------------------------------------------------------------

DURATION = np.timedelta64(1, "m")
"""To Python it is the integer 1: as `max_time` it would be a second."""

SETTINGS = {
    "C": lambda value: GLMClassifier(C=value).fit(X, LABELS),
    "alpha": lambda value: GLMRegressor(alpha=value).fit(X, TARGET),
    "l1_ratio": lambda value: GLMRegressor(l1_ratio=value).fit(X, TARGET),
    "epsilon": lambda value: GLMRegressor("huber", epsilon=value).fit(X, TARGET),
    "power": lambda value: GLMRegressor("tweedie", power=value).fit(X, TARGET),
    "tol": lambda value: GLMRegressor(tol=value).fit(X, TARGET),
    "max_iter": lambda value: GLMRegressor(max_iter=value).fit(X, TARGET),
    "max_time": lambda value: GLMRegressor(max_time=value).fit(X, TARGET),
    "max_time of a search": lambda value: GLMRegressorCV(max_time=value).fit(X, TARGET),
    "Cs": lambda value: GLMClassifierCV(Cs=[value]).fit(X, LABELS),
    "alphas": lambda value: GLMRegressorCV(alphas=np.array([value])).fit(X, TARGET),
    "alphas, how many": lambda value: GLMRegressorCV(alphas=value).fit(X, TARGET),
    "l1_ratios": lambda value: GLMRegressorCV(l1_ratios=[value]).fit(X, TARGET),
    "class_weight": lambda value: GLMClassifier(class_weight={False: value}).fit(X, LABELS),
    "memory_limit": lambda value: Chunks(X, memory_limit=value),
    "test_size": lambda value: Chunks(X).train_test_split(test_size=value),
}


@pytest.mark.parametrize(
    "value", [DURATION, np.datetime64(1, "D"), datetime.timedelta(1), pd.Timedelta(1, "s")]
)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting(setting, value):
    with pytest.raises((TypeError, ValueError), match=rf"^{setting.split()[0].rstrip(',')} "):
        SETTINGS[setting](value)


def test_masked_strengths():
    strengths = np.ma.array([1.0, 10.0], mask=[False, True])
    with pytest.raises((TypeError, ValueError), match=r"Cs.*masked value in row 1|Cs must be"):
        GLMClassifierCV(Cs=strengths).fit(X, LABELS)
