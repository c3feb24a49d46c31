"""Sparse features in the estimators: the same answers as dense ones, and nothing changed of X."""

import itertools
import pickle
import re
import tempfile
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from provenglm import GLMClassifier, GLMRegressor, constants
from scipy.optimize import minimize
from scipy.sparse import coo_array, csc_array, csc_matrix, csr_array, csr_matrix, lil_matrix, random
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from walking import take

TOLERANCE = 1e-6
TIGHT = 1e-12
TABLE = list(
    itertools.product(
        ["float32", "float64"], ["weights", "none"], ["balanced", "skewed"], ["scaled", "raw"]
    )
)
MODELS = {
    "binary": GLMClassifier(C=1.0),
    "binary, balanced": GLMClassifier(C=100.0, class_weight="balanced"),
    "softmax": GLMClassifier(C=1.0),
    "squared": GLMRegressor(alpha=1e-3),
    "huber": GLMRegressor("huber", alpha=1e-3),
    "poisson": GLMRegressor("poisson", alpha=1e-3),
}


@pytest.fixture
def never_dense(monkeypatch):
    """However small: as large data go."""
    monkeypatch.setattr(constants, "SMALL_DATA", 0)


def features(dtype, units, n=200, p=5, density=0.4):
    """Most numbers are 0; raw ones have scales from 1e-2 to 1e2, and the last column no zeros."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.4)
    if units == "raw":
        X = (X + rng.normal(size=p)) * 10.0 ** np.linspace(-2, 2, p)
    X[:, :-1] *= rng.random((n, p - 1)) < density
    return X.astype(dtype)


def target(name, X, shares):
    rng = np.random.default_rng(8)
    deviation = X.std(axis=0, dtype=np.float64)
    used = deviation > 0
    z = (X - X.mean(axis=0, dtype=np.float64))[:, used] / deviation[used]
    z = z @ rng.normal(size=(z.shape[1], 3)) / np.sqrt(z.shape[1])
    if name == "softmax":
        z[:, 0] += 3 * (shares == "skewed")
        return (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z = z[:, 0]
    if name.startswith("binary"):
        return rng.random(len(z)) < expit(z - 2 * (shares == "skewed"))
    if name == "poisson":
        return rng.poisson(np.exp(z - (2 if shares == "skewed" else -1)))
    outliers = 30 * rng.exponential(size=len(z)) * (rng.random(len(z)) < 0.1)
    return 3 + z + rng.normal(size=len(z)) + outliers * (shares == "skewed")


def weights_of(given, n):
    return np.random.default_rng(7).integers(0, 4, n).astype(float) if given == "weights" else None


def fitted(model, X, y, weight=None, **arguments):
    with warnings.catch_warnings():
        # At such a tol some say that float64 has no more digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(model).set_params(random_state=0, **arguments).fit(X, y, weight)


def difference(model, peer, X):
    """Of what each feature adds to the scores, and of the scores at the mean."""
    X = np.asarray(X, np.float64)
    vectors = []
    for each in (model, peer):
        coef = np.atleast_2d(each.coef_)
        middle = np.atleast_1d(each.intercept_) + coef @ X.mean(axis=0)
        vectors.append(np.column_stack([coef * X.std(axis=0), middle]))
    return np.abs(vectors[0] - vectors[1]).max() / np.abs(vectors[1]).max()


@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
@pytest.mark.parametrize("name", MODELS)
def test_sparse_is_dense(never_dense, name, dtype, given, shares, units):
    X = features(dtype, units)
    y, weight = target(name, X, shares), weights_of(given, len(X))
    with pytest.MonkeyPatch.context() as patch:
        take(patch, "sampled-newton")
        model = fitted(MODELS[name], csr_array(X), y, weight, tol=TIGHT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "SMALL_DATA", 8_000_000)
        take(patch, "newton-cholesky")
        peer = fitted(MODELS[name], X, y, weight, tol=TIGHT)
    assert peer.solver_ == "newton-cholesky"
    assert difference(model, peer, X) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_small_problems_are_made_dense(name):
    X = features("float64", "raw")
    y = target(name, X, "balanced")
    sparse, dense = fitted(MODELS[name], csr_array(X), y), fitted(MODELS[name], X, y)
    assert sparse.solver_ == "newton-cholesky"
    np.testing.assert_array_equal(sparse.coef_, dense.coef_)


# --- More columns than a Hessian has -----------------------------------------------------------


WIDE = MODELS | {
    # With more columns than rows, a scale of 0 is near.
    "huber": GLMRegressor("huber", alpha=0.05),
    "poisson": GLMRegressor("poisson", alpha=0.02),
}


@pytest.fixture
def many(monkeypatch):
    """From 300 columns on, as from 2,500 on."""
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    monkeypatch.setattr(constants, "MOST_WEIGHTS", 300)


def wide(seed=0, n=160, p=400, dtype="float64"):
    """As of words: frequent and rare ones, some that never occur, positive numbers."""
    rng = np.random.default_rng(seed)
    frequency = np.minimum(0.5, 8 / (1 + np.arange(p)) ** 0.8)
    X = rng.exponential(size=(n, p)) * (rng.random((n, p)) < frequency)
    X[:, rng.permutation(p)[:20]] = 0
    return (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "given"), [("float32", "weights"), ("float64", "none")])
@pytest.mark.parametrize("name", WIDE)
def test_many_columns(many, name, given, dtype):
    X = wide(dtype=dtype)
    y, weight = target(name, X, "balanced"), weights_of(given, len(X))
    sparse = fitted(WIDE[name], csr_array(X), y, weight, tol=1e-16, max_iter=2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "SMALL_DATA", 8_000_000)
        patch.setattr(constants, "MOST_WEIGHTS", 2500)
        if "L1" not in name:
            take(patch, "newton-cholesky")
        dense = fitted(WIDE[name], X, y, weight, tol=1e-16, max_iter=2000)
    assert sparse.solver_ != dense.solver_ or "L1" in name
    assert np.abs(sparse.coef_ - dense.coef_).max() < TOLERANCE * np.abs(dense.coef_).max()
    assert np.abs(sparse.intercept_ - dense.intercept_).max() < TOLERANCE * 10


@pytest.mark.parametrize("intercept", [True, False])
def test_many_columns_against_another_solver(many, intercept):
    X = wide()
    y = target("binary", X, "balanced")
    model = fitted(GLMClassifier(C=10, fit_intercept=intercept), csr_array(X), y, tol=1e-13)
    peer = LogisticRegression(C=10, fit_intercept=intercept, tol=1e-10, max_iter=10_000)
    peer = fitted_peer(peer, X, y)
    assert np.abs(model.coef_ - peer.coef_).max() < TOLERANCE * np.abs(peer.coef_).max() * 10
    z = X @ model.coef_[0] + model.intercept_
    value = np.logaddexp(0, z).mean() - y @ z / len(y) + (model.coef_**2).sum() / (20 * len(y))
    assert model.objective_ == pytest.approx(value, rel=1e-12)
    ridge = fitted(GLMRegressor(alpha=0.01, fit_intercept=intercept), csr_array(X), y, tol=1e-14)
    peer = Ridge(alpha=0.01 * len(y), fit_intercept=intercept, solver="svd").fit(X, y * 1.0)
    assert np.abs(ridge.coef_ - peer.coef_).max() < TOLERANCE * np.abs(peer.coef_).max()


def fitted_peer(peer, X, y):
    """Logistic regression to the end of L-BFGS: scikit-learn's, and SciPy's from there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer.fit(X, y)
    l2 = 1 / (peer.C * len(y))
    free = float(peer.fit_intercept)

    def value_and_gradient(v):
        z = X @ v[:-1] + free * v[-1]
        r = (expit(z) - y) / len(y)
        value = np.logaddexp(0, z).mean() - y @ z / len(y) + l2 / 2 * v[:-1] @ v[:-1]
        return value, np.append(X.T @ r + l2 * v[:-1], free * r.sum())

    start = np.append(peer.coef_[0], peer.intercept_)
    options = {"gtol": 1e-12, "ftol": 0.0, "maxiter": 10_000, "maxcor": 50}
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    peer.coef_ = found.x[None, :-1]
    return peer


# --- Formats -----------------------------------------------------------------------------------


X = features("float64", "scaled")
Y = target("binary", X, "balanced")
COUNTS = np.random.default_rng(3).integers(-9, 10, X.shape) * (X != 0)


def unsorted():
    matrix = csr_matrix(X)
    for row in range(len(X)):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        matrix.indices[part] = matrix.indices[part][::-1]
        matrix.data[part] = matrix.data[part][::-1]
    matrix.has_sorted_indices = False
    return matrix


def twice():
    """Each number as two halves."""
    matrix = csr_matrix(X)
    return csr_matrix(
        (np.repeat(matrix.data / 2, 2), np.repeat(matrix.indices, 2), 2 * matrix.indptr), X.shape
    )


def with_zeros():
    n, p = X.shape
    return csr_array((X.ravel(), np.tile(np.arange(p), n), np.arange(0, X.size + 1, p)), X.shape)


def with_int64():
    matrix = csr_array(X)
    matrix.indices, matrix.indptr = matrix.indices.astype("int64"), matrix.indptr.astype("int64")
    return matrix


def on_disk():
    """As joblib hands large arrays to its workers."""
    matrix = csr_array(X)
    for name in ("data", "indices", "indptr"):
        part = getattr(matrix, name)
        with tempfile.TemporaryFile() as file:
            part.tofile(file)
            file.flush()
            setattr(matrix, name, np.memmap(file, part.dtype, "r"))
    return matrix


def read_only(matrix):
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


FORMATS = {
    "csr_array": lambda: csr_array(X),
    "csr_matrix": lambda: csr_matrix(X),
    "csc_array": lambda: csc_array(X),
    "csc_matrix": lambda: csc_matrix(X),
    "coo_array": lambda: coo_array(X),
    "lil_matrix": lambda: lil_matrix(X),
    "unsorted": unsorted,
    "duplicates": twice,
    "zeros that are stored": with_zeros,
    "int64": with_int64,
    "read-only": lambda: read_only(csr_array(X)),
    "read-only and unsorted": lambda: read_only(unsorted()),
    "on disk": on_disk,
    "pandas": lambda: pd.DataFrame.sparse.from_spmatrix(csr_matrix(X)),
}


def parts_of(matrix):
    names = ("data", "indices", "indptr", "row", "col", "rows", "coords")
    return {name: pickle.dumps(getattr(matrix, name)) for name in names if hasattr(matrix, name)}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(never_dense, name):
    given = FORMATS[name]()
    before = parts_of(given)
    model = fitted(GLMClassifier(), given, Y, tol=1e-10)
    assert parts_of(given) == before
    expected = fitted(GLMClassifier(), csr_array(X), Y, tol=1e-10)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(
        model.decision_function(given), X @ model.coef_[0] + model.intercept_, atol=1e-12
    )
    assert parts_of(given) == before


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float32"])
def test_dtypes(never_dense, dtype):
    given = COUNTS.astype(dtype)
    sparse = csr_array(given)
    model = fitted(GLMClassifier(), sparse, Y, tol=1e-12)
    assert sparse.dtype == given.dtype
    assert (sparse.toarray() == given).all()
    expected = fitted(GLMClassifier(), given.astype(np.float64), Y, tol=1e-12)
    assert difference(model, expected, given) < TOLERANCE


def test_whole_numbers_beyond_float32(never_dense):
    large = COUNTS.astype(np.int64) * (1 << 30) + (COUNTS != 0)
    sparse = fitted(GLMClassifier(), csr_array(large), Y, tol=1e-12)
    assert difference(sparse, fitted(GLMClassifier(), large, Y, tol=1e-12), large) < TOLERANCE


# --- What the estimators do with them ----------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_predictions_of_sparse_and_dense_are_the_same(name):
    y = target(name, X, "balanced")
    for trained in (X, csr_array(X)):
        model = fitted(MODELS[name], trained, y)
        for ask in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            if hasattr(model, ask):
                found = getattr(model, ask)(csr_matrix(X.astype(np.float32)))
                np.testing.assert_allclose(found, getattr(model, ask)(X), rtol=1e-4, atol=1e-5)
        assert model.score(csc_array(X), y) == pytest.approx(model.score(X, y))


@pytest.mark.parametrize("make", [wide, lambda: features("float64", "raw")])
def test_warm_start(many, make):
    data = csr_array(make())
    y = target("binary", data.toarray(), "balanced")
    model = fitted(GLMClassifier(), data, y, warm_start=True, tol=1e-9, max_iter=1000)
    first = model.n_iter_
    coef = model.coef_
    model.fit(data, y)
    assert model.n_iter_ <= max(1, first // 2)
    assert np.abs(model.coef_ - coef).max() < 1e-3 * np.abs(coef).max()


def test_weights_are_repeated_rows(many):
    data = wide()
    y = target("softmax", data, "balanced")
    weight = np.random.default_rng(13).integers(0, 3, len(y))
    weighted = fitted(GLMClassifier(), csr_array(data), y, weight, tol=1e-12)
    repeated = fitted(
        GLMClassifier(), csr_array(data.repeat(weight, axis=0)), y.repeat(weight), tol=1e-12
    )
    assert np.abs(weighted.coef_ - repeated.coef_).max() < 1e-5 * np.abs(repeated.coef_).max()


def test_an_offset_that_float32_cannot_hold(never_dense):
    rng = np.random.default_rng(4)
    seconds = 1.7e9 + 1e5 * rng.normal(size=(len(X), 1))
    data = np.hstack([X, seconds])
    y = rng.random(len(X)) < expit(X[:, 0] + (seconds[:, 0] - 1.7e9) / 1e5)
    sparse = fitted(GLMClassifier(C=10), csr_array(data), y, tol=1e-12)
    # The peer has it about its mean; on the coefficients the offset has no influence.
    centred = np.hstack([X, seconds - 1.7e9])
    peer = fitted(GLMClassifier(C=10), centred, y, tol=1e-12)
    deviation = data.std(axis=0)
    expected = peer.coef_ * deviation
    np.testing.assert_allclose(sparse.coef_ * deviation, expected, atol=2e-5)


def test_columns_of_zeros_have_no_weight(many):
    for data in (wide(), np.hstack([X, np.zeros((len(X), 2))])):
        model = fitted(GLMClassifier(), csr_array(data), target("binary", data, "balanced"))
        assert not model.coef_[0][~data.any(axis=0)].any()
        assert model.coef_[0][data.any(axis=0)].any()


def test_nothing_of_n_times_p_is_made():
    n, p, each = 40_000, 20_000, 10
    rng = np.random.default_rng(0)
    columns = np.sort(np.minimum(rng.zipf(1.3, (n, each)) * 7 % p, p - 1), axis=1).ravel()
    data = np.ones(n * each, np.float32)
    matrix = csr_array((data, columns, np.arange(0, n * each + 1, each)), (n, p))
    matrix.sum_duplicates()
    y = rng.random(n) < expit(matrix @ rng.normal(size=p))
    tracemalloc.start()
    model = GLMClassifier(random_state=0).fit(matrix, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The matrix is 3.4 MB; one of n x p in bytes would be 800 MB.
    assert peak < 60e6
    assert model.coef_.shape == (1, p)


# --- What is refused ---------------------------------------------------------------------------


def with_value(value, at=17):
    matrix = csr_matrix(X)
    matrix.data[at] = value
    row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
    return matrix, f"row {row}, column {matrix.indices[at]}"


def broken(**parts):
    matrix = csr_array(X)
    for name, (at, value) in parts.items():
        getattr(matrix, name)[at] = value
    return matrix


SMALL = {
    "binary": GLMClassifier(tol=TIGHT),
    "binary, L1": GLMClassifier(l1_ratio=1.0, tol=1e-10),
    "softmax": GLMClassifier(tol=TIGHT),
    "squared": GLMRegressor(alpha=1e-2, tol=TIGHT),
    "squared, L1": GLMRegressor(alpha=1e-2, l1_ratio=1.0, tol=1e-10),
    "poisson": GLMRegressor("poisson", alpha=1e-2, tol=TIGHT),
    "poisson, L1": GLMRegressor("poisson", alpha=1e-2, l1_ratio=1.0, tol=1e-10),
}


@pytest.mark.parametrize("p", [600, 2600])
@pytest.mark.parametrize("name", SMALL)
def test_small_data_of_zeros_are_not_made_dense(monkeypatch, name, p):
    rng = np.random.default_rng(3)
    X = csr_array(random(500, p, density=8 / p, random_state=3))
    scores = X @ rng.normal(size=(p, 3))
    y = scores.argmax(axis=1)
    if name.startswith("binary"):
        y = scores[:, 0] + rng.logistic(size=500) > 0
    elif name.startswith("poisson"):
        y = rng.poisson(np.exp(scores[:, 0] / 2)).astype(float)
    elif name.startswith("squared"):
        y = scores[:, 0] + rng.normal(size=500)
    dense = clone(SMALL[name]).fit(X.toarray(), y)
    if name != "squared, L1":  # goes by the products of the columns

        def refuse(self, *args, toarray=csr_array.toarray, **kwargs):
            assert self.shape != X.shape
            return toarray(self, *args, **kwargs)

        monkeypatch.setattr(csr_array, "toarray", refuse)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)  # of all rows, they would be dense
    model = clone(SMALL[name]).fit(X, y)
    assert abs(model.objective_ - dense.objective_) <= 1e-9 * abs(dense.objective_)


REFUSED = {
    "NaN": (
        lambda: with_value(np.nan)[0],
        f"X has NaN in {with_value(np.nan)[1]}, and GLMClassifier needs finite numbers: drop such "
        "rows, or put sklearn.impute.SimpleImputer before it",
    ),
    "infinity, CSC": (
        lambda: csc_array(with_value(-np.inf)[0]),
        f"X has -inf in {with_value(0)[1]}, and GLMClassifier needs finite numbers: drop such "
        "rows, or make them NaN and put sklearn.impute.SimpleImputer before it",
    ),
    "a number whose square overflows": (
        lambda: with_value(1e300)[0],
        f"X has 1e+300 in {with_value(0)[1]}, and the square of such a number overflows float64: "
        "divide the column by its largest number; its coefficient is then in these units",
    ),
    "a column that is not there": (
        lambda: broken(indices=(0, 5)),
        "X is sparse, and has an entry for column 5 in row 0, but only 5 columns: create it again "
        "with the right shape",
    ),
    "a negative column": (
        lambda: broken(indices=(0, -1)),
        "X is sparse, and has an entry for column -1 in row 0, but only 5 columns: create it again "
        "with the right shape",
    ),
    "an end beyond the values": (
        lambda: broken(indptr=(-1, 10**6)),
        f"X is sparse, and its indptr does not fit its shape (200, 5) and its {np.count_nonzero(X)}"
        " values, so that GLMClassifier would read beyond them: X.check_format() tells more",
    ),
    "complex": (lambda: csr_matrix(X * 1j), "Complex data not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        GLMClassifier().fit(make(), Y)


def test_refused_in_predict():
    model = GLMClassifier().fit(csr_array(X), Y)
    with pytest.raises(ValueError, match="X has NaN in row"):
        model.predict(with_value(np.nan)[0])
    with pytest.raises(ValueError, match="X has 4 features, but GLMClassifier is expecting 5"):
        model.predict(csr_array(X[:, :4]))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        GLMClassifier().fit(csr_array(X), Y[:-1])
    with pytest.raises(ValueError, match="X has 200 rows"):
        GLMClassifier().fit(csr_array(X), Y, np.ones(3))
