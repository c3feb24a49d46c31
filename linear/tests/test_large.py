"""Memory maps and chunks give what the same rows in one array give."""

import itertools
import tracemalloc
import warnings

import large_data
import numpy as np
import pytest
from provenglm import Chunks, GLMClassifier, GLMRegressor, constants, workers
from provenglm.methods import block_subsample
from provenglm.model import problem, sampling
from provenglm.model.losses import Logistic
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

TABLE = list(itertools.product(["uint8", "float32", "float64"], ["weights", "none"]))
N, P = 6000, 8


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    """A few thousand rows take the ways of many millions."""
    monkeypatch.setattr(constants, "SMALL", 0)
    monkeypatch.setattr(constants, "BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(constants, "PART_ROWS", 1000)


@pytest.fixture
def long(monkeypatch):
    """The rows are too many to be read into memory."""
    monkeypatch.setattr(constants, "SMALL_DATA", 0)


def features(dtype, n=N, p=P):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.4)
    if dtype == "uint8":
        X = np.clip(40 * X + 120, 0, 255)
    return X.astype(dtype)


def standard(X):
    return (X - X.mean(axis=0, dtype=float)) / X.std(axis=0, dtype=float)


def labels_of(X, classes, seed=8):
    rng = np.random.default_rng(seed)
    z = standard(X) @ rng.normal(size=(X.shape[1], classes)) / 2
    z[:, 0] += 2
    return (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def weights_of(given, n):
    return np.random.default_rng(7).integers(0, 4, n).astype(float) if given == "weights" else None


def sorted_by_class(X, classes):
    y = labels_of(X, classes)
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


def fitted(model, X, y, weight=None):
    with warnings.catch_warnings():
        # At such a tol both may say that float64 has no more digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, sample_weight=weight)


def same(model, peer, X, tolerance):
    ours, theirs = (
        np.column_stack([np.atleast_2d(m.coef_) * X.std(axis=0, dtype=float), m.intercept_])
        for m in (model, peer)
    )
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("form", large_data.NAMES)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("given", ["weights", "none"])
def test_two_classes_bit_for_bit(tmp_path, form, dtype, given):
    X = features(dtype)
    y, weight = labels_of(X, 2), weights_of(given, N)
    X_disk = large_data.forms(tmp_path, X)[form]
    # A fit reads a small file by columns into an array by rows; predictions read its blocks.
    seen = np.asfortranarray(X) if form == "memmap by columns" else X
    how = {"C": 0.1, "class_weight": "balanced", "random_state": 0}
    model = GLMClassifier(**how).fit(X_disk, y, weight)
    peer = GLMClassifier(**how).fit(X, y, weight)
    assert np.array_equal(model.coef_, peer.coef_)
    assert np.array_equal(model.decision_function(X_disk), peer.decision_function(seen))
    assert np.array_equal(model.predict(X_disk), peer.predict(seen))
    assert model.score(X_disk, y) == peer.score(seen, y)


@pytest.mark.parametrize("form", ["memmap", "files"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("dtype", "given"), TABLE)
def test_many_rows_sorted_by_class(tmp_path, monkeypatch, long, form, classes, dtype, given):
    monkeypatch.setattr(constants, "LEAST_ROWS", 1000)
    X, y = sorted_by_class(features(dtype, p=4), classes)
    weight = weights_of(given, N)
    how = {"C": 0.1, "tol": 1e-12, "max_iter": 200, "random_state": 0, "class_weight": {0: 2.0}}
    model = GLMClassifier(**how)
    fitted(model, large_data.forms(tmp_path, X)[form], y, weight)
    peer = fitted(GLMClassifier(**how), X, y, weight)
    same(model, peer, X, 1e-6)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
@pytest.mark.parametrize(("dtype", "given"), TABLE)
def test_regressions_of_many_rows(tmp_path, long, loss, dtype, given):
    X = features(dtype)
    rng = np.random.default_rng(9)
    z = standard(X) @ rng.normal(size=P) / 3
    y = rng.poisson(np.exp(z)) if loss == "poisson" else z + rng.standard_t(3, N)
    weight = weights_of(given, N)
    how = {"loss": loss, "alpha": 1e-3, "tol": 1e-12, "random_state": 0}
    X_disk = large_data.forms(tmp_path, X)["files"]
    model = fitted(GLMRegressor(**how), X_disk, y, weight)
    peer = fitted(GLMRegressor(**how), X, y, weight)
    same(model, peer, X, 1e-6)
    assert np.allclose(model.predict(X_disk), peer.predict(X), rtol=1e-5, atol=1e-6)
    assert model.score(X_disk, y) == pytest.approx(peer.score(X, y))


def test_a_part_of_the_rows_has_nearly_their_derivatives(tmp_path, monkeypatch, long):
    monkeypatch.setattr(constants, "MIN_SUBSAMPLE_RATIO", 0)
    monkeypatch.setattr(constants, "BLOCK_BYTES", 64 * 3 * 4)
    X, y = sorted_by_class(features("float32", 40_000, 3), 2)
    weight = weights_of("weights", len(y))
    given = problem.Problem(large_data.mapped(tmp_path / "x.npy", X), y, Logistic(), 0.1, weight)
    objective, _ = sampling.prepare(given, workers.Workers(0), 2000, np.random.default_rng(0))
    part = block_subsample.BlockSubsample.of(objective, 1)
    theta = np.array([0.1, -0.2, 0.3, 0.4])
    gradient, hessian = part.derivatives(theta[:, None])
    # Naive: each class of the part has the share that it has of all rows.
    Z = np.column_stack(
        [(X - objective.scaling.center) * objective.scaling.inverse, np.ones(len(X))]
    )

    def of(slices):
        chosen = np.concatenate([np.arange(len(X))[some] for some in slices])
        share = weight[chosen].copy()
        for label in (0, 1):
            here = y[chosen] == label
            share[here] *= weight[y == label].sum() / weight.sum() / share[here].sum()
        return Z[chosen], share, expit(Z[chosen] @ theta), y[chosen]

    some, share, p, target = of(part.table.rows.slices())
    wanted = some.T @ (share * (p - target)) + objective.penalty * theta
    assert np.allclose(gradient[:, 0], wanted, rtol=0, atol=1e-5)
    of_all = objective.snapshot(theta[:, None]).gradient[:, 0]
    assert np.allclose(wanted, of_all, rtol=0, atol=0.05)
    every = constants.BLOCK_STRIDE * constants.GROWTH
    some, share, p, target = of(objective.table.subsampled(every).rows.slices())
    wanted = (some.T * (share * p * (1 - p))) @ some + np.diag(objective.penalty)
    assert np.allclose(part.hessian(theta[:, None]), wanted, rtol=0, atol=1e-5)
    assert np.allclose(hessian, wanted, rtol=0, atol=0.05)


def test_a_part_of_few_blocks_has_one(tmp_path):
    rows = large_data.mapped(tmp_path / "x.npy", features("float32", 40_000, 3))
    objective, _ = sampling.prepare(
        problem.Problem(rows, np.arange(40_000) % 2, Logistic(), 0.1),
        workers.Workers(0),
        2000,
        np.random.default_rng(0),
    )
    count = len(objective.rows.slices())
    for stride in (1, count, 2 * count, 1000 * count):
        assert len(objective.own.subsampled(stride).rows.slices()) == (count if stride == 1 else 1)


def test_a_start_from_a_part(tmp_path, monkeypatch, long):
    monkeypatch.setattr(constants, "MIN_SUBSAMPLE_RATIO", 1)
    monkeypatch.setattr(constants, "ROWS_BESIDE_BLOCKS", 10)
    X, y = sorted_by_class(features("uint8", 40_000, 3), 2)
    model = GLMClassifier(random_state=0).fit(large_data.mapped(tmp_path / "x.npy", X), y)
    peer = GLMClassifier(tol=1e-12).fit(X, y)
    assert model.solver_ == "sampled-newton"
    # An eighth of the rows leads nearer than a sample of 2,000 would.
    assert model.history_[0]["objective"] - peer.objective_ < 3e-4
    same(model, peer, X, 1e-3)


@pytest.mark.full
def test_no_copy(tmp_path):
    X, y = sorted_by_class(features("uint8", 200_000, 50), 2)
    mapped = large_data.mapped(tmp_path / "x.npy", X)
    del X
    GLMClassifier().fit(mapped[:100], np.arange(100) % 2)  # imports
    tracemalloc.start()
    model = GLMClassifier(random_state=0, tol=1e-3).fit(mapped, y)
    peak = tracemalloc.get_traced_memory()[1]
    model.predict(mapped)
    both = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The file has 10 MB, in float32 40, and a sample of float64 has 20.
    assert "sampled-newton" in model.solver_
    assert peak < 36e6
    assert both < 36e6


@pytest.mark.full
@pytest.mark.parametrize("n", [40_000, 100_000])
def test_corners_keep_to_the_limit(tmp_path, monkeypatch, n):
    monkeypatch.setattr(constants, "BLOCK_BYTES", 3 << 19)
    X, y = sorted_by_class(features("uint8", n, 60), 2)
    model = GLMClassifier(C=200 / n, l1_ratio=0.8, random_state=0)
    clone(model).fit(X[:100], np.arange(100) % 2)  # imports
    np.save(tmp_path / "x.npy", X)
    tracemalloc.start()
    model.fit(Chunks([tmp_path / "x.npy"], memory_limit="64 MB"), y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A copy in float64 would have 20 MB, or 49 and more beside it; there is none.
    assert model.solver_ == "coordinate-descent"
    assert peak < 64e6
    peer = fitted(clone(model).set_params(tol=1e-10), X, y)
    assert model.coef_.any()
    assert model.objective_ == pytest.approx(peer.objective_, abs=1e-7)
    assert model.gap_ >= model.objective_ - peer.objective_
