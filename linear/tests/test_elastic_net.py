"""The penalty with corners: scikit-learn's coefficients, exact zeros, and what is refused.

scikit-learn's own solvers go to the end of their precision. For Poisson's loss, which has no such
peer, an oracle of proximal gradients does.
"""

import itertools
import warnings

import numpy as np
import pytest
from elastic_net_oracle import proximal_gradient
from provenglm import GLMClassifier, GLMRegressor, constants
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, LogisticRegression

RATIOS = (0.1, 0.5, 1.0)
TOLERANCE = 1e-6
TABLE = list(itertools.product(["dense", "csr"], RATIOS, ["weights", "none"]))
KIND = pytest.mark.parametrize(("kind", "ratio", "given"), TABLE)
TIGHT = 1e-13


def features(kind, n=200, p=15):
    """Features, a third of them zeros, of which some matter; correlated."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.2)
    X[rng.random(X.shape) < 0.33] = 0
    return X, csr_array(X) if kind == "csr" else X


def scores(X, outputs=1):
    return X[:, : 4 * outputs].reshape(len(X), outputs, 4).sum(axis=2)


def weights_of(given, n):
    return np.random.default_rng(7).integers(0, 4, n).astype(float) if given == "weights" else None


def fitted(model, X, y, weight=None):
    with warnings.catch_warnings():
        # At such a tol both may say that float64 has no more digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, sample_weight=weight)


def assert_same(model, coef, intercept):
    scale = max(1.0, np.abs(coef).max())
    assert np.abs(np.ravel(model.coef_) - np.ravel(coef)).max() < TOLERANCE * scale
    assert np.abs(np.ravel(model.intercept_) - np.ravel(intercept)).max() < TOLERANCE * scale
    # Exact zeros, and at the same places, but for those that are zero by a hair.
    clear = np.abs(np.ravel(coef)) > 1e-5
    assert np.array_equal(np.ravel(model.coef_)[clear] != 0, np.ones(clear.sum(), bool))


@pytest.mark.parametrize("classes", [2, 3])
@KIND
def test_logistic_regression(kind, ratio, given, classes):
    dense, X = features(kind)
    rng = np.random.default_rng(8)
    z = scores(dense, 3)[:, :classes]
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    weight = weights_of(given, len(y))
    model = fitted(GLMClassifier(0.2, l1_ratio=ratio, tol=TIGHT), X, y, weight)
    # Before scikit-learn 1.8 l1_ratio alone did nothing.
    named = {"penalty": "elasticnet"} if LogisticRegression().penalty == "l2" else {}
    peer = LogisticRegression(
        C=0.2, l1_ratio=ratio, solver="saga", tol=1e-12, max_iter=20_000, random_state=0, **named
    )
    fitted(peer, dense, y, weight)
    shift = peer.intercept_.mean() if classes > 2 else 0.0
    assert_same(model, peer.coef_, peer.intercept_ - shift)
    least = 0 if ratio == 0.1 else 1  # So little of it need not leave any out.
    assert least <= (model.coef_ == 0).sum() < model.coef_.size
    penalty = 1 / (0.2 * (len(y) if weight is None else weight.sum()))
    F = mean_loss(dense @ model.coef_.T + model.intercept_, y, weight)
    F += penalty * (1 - ratio) / 2 * (model.coef_**2).sum()
    F += penalty * ratio * np.abs(model.coef_).sum()
    assert model.objective_ == pytest.approx(F, rel=1e-12)
    assert 0 <= model.gap_ < 1e-10


def mean_loss(z, y, weight):
    if z.shape[1] == 1:
        z = np.hstack([np.zeros_like(z), z])
    top = z.max(axis=1, keepdims=True)
    losses = np.log(np.exp(z - top).sum(axis=1)) + top[:, 0] - z[np.arange(len(y)), y]
    return np.average(losses, weights=weight)


@pytest.mark.parametrize("intercept", [True, False])
@KIND
def test_elastic_net(kind, ratio, given, intercept):
    dense, X = features(kind)
    y = scores(dense)[:, 0] + np.random.default_rng(1).normal(size=len(dense)) + 3
    weight = weights_of(given, len(y))
    model = GLMRegressor(alpha=0.3, l1_ratio=ratio, tol=TIGHT, fit_intercept=intercept)
    fitted(model, X, y, weight)
    peer = ElasticNet(0.3, l1_ratio=ratio, tol=1e-14, max_iter=100_000, fit_intercept=intercept)
    fitted(peer, dense, y, weight)
    assert_same(model, peer.coef_, peer.intercept_)
    assert np.array_equal(model.coef_ == 0, peer.coef_ == 0)


@KIND
def test_poisson(kind, ratio, given):
    dense, X = features(kind)
    y = np.random.default_rng(2).poisson(np.exp(scores(dense)[:, 0] / 5))
    weight = weights_of(given, len(y))
    model = fitted(GLMRegressor("poisson", alpha=0.1, l1_ratio=ratio, tol=TIGHT), X, y, weight)
    coef, intercept = proximal_gradient("poisson", dense, y, weight, 0.1 * ratio, 0.1 * (1 - ratio))
    assert_same(model, coef, intercept)
    assert model.gap_ < 1e-10


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_more_features_than_rows(ratio):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 900))
    y = X[:, :5].sum(axis=1) + 0.1 * rng.normal(size=60)
    model = fitted(GLMRegressor(alpha=0.1, l1_ratio=ratio, tol=TIGHT), X, y)
    peer = fitted(ElasticNet(0.1, l1_ratio=ratio, tol=1e-14, max_iter=100_000), X, y)
    assert_same(model, peer.coef_, peer.intercept_)
    assert model.solver_ == "coordinate-descent"
    assert "a penalty on sizes" in model.why_


LOSSES = ["logistic", "softmax", "squared", "poisson", "gamma"]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("given", ["weights", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_few_sparse_columns_of_many_rows(monkeypatch, loss, given, intercept, ratio):
    # As where there are too many numbers for a dense copy.
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    rng = np.random.default_rng(6)
    X = features("dense")[0]
    X[X != 0] += 2  # means that are not 0, and zeros
    z = scores(X, 3) / 8 - 1
    if loss in ("logistic", "softmax"):
        z = z[:, : 2 + (loss == "softmax")]
        y = (3 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
        model = GLMClassifier(0.05)
    else:
        y = {
            "poisson": lambda: rng.poisson(np.exp(z[:, 0])),
            "gamma": lambda: rng.gamma(2, np.exp(z[:, 0])),
            "squared": lambda: z[:, 0] + rng.normal(size=len(X)),
        }[loss]()
        model = GLMRegressor(loss, alpha=0.1)
    model.set_params(l1_ratio=ratio, fit_intercept=intercept, tol=TIGHT)
    weight = weights_of(given, len(y))
    dense, sparse = (fitted(clone(model), data, y, weight) for data in (X, csr_array(X)))
    assert sparse.solver_ == dense.solver_
    assert_same(sparse, dense.coef_, dense.intercept_)
    assert sparse.coef_.any()
    if ratio == 1:
        assert (sparse.coef_ == 0).any()
    assert sparse.objective_ == pytest.approx(dense.objective_, rel=1e-12)
    assert sparse.gap_ < 1e-9


def many_columns():
    """More numbers, zeros included, than are made dense, and more columns than a Hessian."""
    rng = np.random.default_rng(4)
    rows, columns = rng.integers(0, 3000, (2, 30_000))
    X = csr_array((rng.random(30_000), (rows, columns)), shape=(3000, 3000))
    return X, X[:, :900].toarray().reshape(3000, 3, 300).sum(axis=2), rng


@pytest.mark.full
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_many_sparse_columns(ratio):
    X, z, rng = many_columns()
    y = (3 * z[:, 0] - 0.5 + rng.logistic(size=3000) > 0).astype(int)
    model = GLMClassifier(1.0, l1_ratio=ratio, tol=1e-11).fit(X, y)
    assert model.gap_ < 1e-10
    assert 0 < (model.coef_ != 0).sum() < 1500
    assert model.solver_ == "coordinate-descent"
    dense = GLMClassifier(1.0, l1_ratio=ratio, tol=1e-11).fit(X.toarray(), y)
    assert model.objective_ == pytest.approx(dense.objective_, abs=1e-10)
    assert np.abs(model.coef_ - dense.coef_).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("given", ["weights", "none"])
def test_many_sparse_columns_squared(given):
    X, z, rng = many_columns()
    y = z[:, 0] + 0.1 * rng.normal(size=3000)
    weight = weights_of(given, 3000)
    model = GLMRegressor(alpha=1e-3, l1_ratio=0.8, tol=1e-12).fit(X, y, weight)
    peer = ElasticNet(1e-3, l1_ratio=0.8, tol=1e-13, max_iter=50_000)
    fitted(peer, X.toarray(), y, weight)
    assert_same(model, peer.coef_, peer.intercept_)
    assert np.array_equal(model.coef_ == 0, peer.coef_ == 0)


@pytest.mark.parametrize("classes", ["three", "counts"])
def test_many_sparse_columns_of_other_losses(classes):
    X, z, rng = many_columns()
    if classes == "three":
        y = (5 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
        model = GLMClassifier(0.5, l1_ratio=0.7).fit(X, y)
    else:
        y = rng.poisson(np.exp(z[:, 0] - 1))
        model = GLMRegressor("poisson", alpha=1e-3, l1_ratio=0.7).fit(X, y)
    assert model.stop_reason_.startswith("the optimum")
    assert 0 < (model.coef_ != 0).sum() < 0.5 * model.coef_.size
    assert model.gap_ < 1e-6


@pytest.mark.filterwarnings("error")
def test_two_pairs_of_classes_far_apart():
    # The last steps shift a pair or all classes: there is no curvature to be learned from them.
    rng, n = np.random.default_rng(2), 300
    pair, X = rng.integers(0, 2, n), rng.normal(size=(n, 6))
    X[:, 0] = (2 * pair - 1) * (3 + rng.random(n))
    y = 2 * pair + (X[:, 1] + rng.logistic(size=n) > 0)
    model = GLMClassifier(1e2, l1_ratio=1, tol=1e-9).fit(csr_array(X), y)
    assert model.gap_ < 1e-9


@pytest.mark.slow
def test_a_start_from_a_sample():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30_000, 220)).astype(np.float32) * 10.0 ** rng.uniform(-1, 1, 220)
    X = X.astype(np.float32)
    y = (X[:, :9] / X[:, :9].std(axis=0)).sum(axis=1) / 3 + rng.logistic(size=len(X)) > 0
    model = GLMClassifier(1e-3, l1_ratio=0.7, random_state=0).fit(X, y)
    null = np.log(2)
    exact = GLMClassifier(1e-3, l1_ratio=0.7, tol=1e-11, random_state=1).fit(X, y)
    begun = model.history_[0]["objective"]
    assert begun - exact.objective_ < 0.15 * (null - exact.objective_)
    assert model.stop_reason_.startswith("the optimum")
    assert model.history_[-1]["passes"] < 20
    assert 0 < (model.coef_ != 0).sum() < 220
    gained = null - exact.objective_
    assert exact.gap_ < 1e-9 * gained
    assert model.objective_ - exact.objective_ < 2e-6 * gained


def test_a_penalty_too_great_leaves_nothing():
    X, _ = features("dense")
    y = (scores(X)[:, 0] > 0).astype(int)
    model = GLMClassifier(1e-4, l1_ratio=1.0).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_[0] == pytest.approx(np.log(y.mean() / (1 - y.mean())))
    assert model.gap_ <= 1e-14
    assert model.stop_reason_.startswith("the optimum")
    regressor = GLMRegressor(alpha=1e3, l1_ratio=0.5).fit(X, y.astype(float))
    assert not regressor.coef_.any()


def test_duplicate_and_constant_columns():
    X, _ = features("dense")
    y = scores(X)[:, 0] + np.random.default_rng(1).normal(size=len(X))
    wide = np.column_stack([X, X[:, :3], np.full(len(X), 7.0), np.zeros(len(X))])
    for ratio in (0.5, 1.0):
        narrow = GLMRegressor(alpha=0.1, l1_ratio=ratio, tol=1e-10).fit(X, y)
        model = GLMRegressor(alpha=0.1, l1_ratio=ratio, tol=1e-10).fit(wide, y)
        assert (model.coef_[-2:] == 0).all()
        assert model.gap_ < 1e-8
        if ratio == 1.0:  # The optimum is then any share of two columns that are the same.
            together = model.coef_[:15].copy()
            together[:3] += model.coef_[15:18]
            assert np.abs(together - narrow.coef_).max() < 1e-5


def test_nothing_penalised_is_the_way_without():
    X, _ = features("dense")
    y = (scores(X)[:, 0] + np.random.default_rng(1).logistic(size=len(X)) > 0).astype(int)
    plain = GLMClassifier(np.inf).fit(X, y)
    for ratio in (0.5, 1.0):
        model = GLMClassifier(np.inf, l1_ratio=ratio).fit(X, y)
        assert np.array_equal(model.coef_, plain.coef_)
    assert np.array_equal(
        GLMClassifier(l1_ratio=0).fit(X, y).coef_, GLMClassifier().fit(X, y).coef_
    )


def test_warm_start():
    X, _ = features("dense")
    y = (scores(X)[:, 0] + np.random.default_rng(1).logistic(size=len(X)) > 0).astype(int)
    model = GLMClassifier(0.2, l1_ratio=1.0, warm_start=True).fit(X, y)
    cold = model.n_iter_
    coef = model.coef_.copy()
    model.fit(X, y)
    assert model.n_iter_ < cold
    assert np.abs(model.coef_ - coef).max() < 1e-4


@pytest.mark.parametrize("ratio", [-0.1, 1.1, np.nan, np.inf])
def test_ratio_out_of_range(ratio):
    for model in (GLMClassifier(l1_ratio=ratio), GLMRegressor(l1_ratio=ratio)):
        with pytest.raises(ValueError, match="l1_ratio must be a"):
            model.fit([[0.0], [1.0], [2.0]], [0, 1, 0])


@pytest.mark.parametrize("ratio", ["0.5", None, True])
def test_ratio_that_is_no_number(ratio):
    for model in (GLMClassifier(l1_ratio=ratio), GLMRegressor(l1_ratio=ratio)):
        with pytest.raises(TypeError, match="l1_ratio must be a number"):
            model.fit([[0.0], [1.0], [2.0]], [0, 1, 0])


def test_what_has_no_way():
    X, y = [[0.0], [1.0], [2.0]], [0, 1, 0]
    with pytest.raises(ValueError, match="loss='huber' supports the L2 penalty only"):
        GLMRegressor("huber", l1_ratio=0.5).fit(X, y)


def test_clone_keeps_the_ratio():
    assert clone(GLMClassifier(l1_ratio=0.25)).l1_ratio == 0.25
    assert GLMRegressor().l1_ratio == 0.0
