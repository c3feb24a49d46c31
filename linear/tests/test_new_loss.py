"""A loss that is not in the package: a class and an entry in the table are all that a fit needs."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from provenglm import GLMRegressor, GLMRegressorCV
from provenglm.api import regressor
from provenglm.model.losses import Dual, Huber, Logistic, Poisson, ScalarLoss, x_log_x
from provenglm.model.tweedie import Gamma, Tweedie
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning


@dataclass(frozen=True)
class LogCosh(ScalarLoss):
    """log cosh(z - y): squared for small errors, their size for large ones."""

    name = "logcosh"
    needs_all_targets = True

    def value_at(self, scores, target):
        # Not log(cosh(e)), which loses the digits of small errors and overflows for large ones.
        size = np.abs(scores - target)
        return size + np.log1p(np.expm1(-2 * size) / 2)

    def residual_at(self, scores, target):
        return np.tanh(scores - target)

    def curvature_at(self, scores, target):
        decay = np.exp(-2 * np.abs(scores - target))
        return 4 * decay / np.square(1 + decay)

    def conjugate_at(self, dual, target):
        entropy = (x_log_x(1 + dual) + x_log_x(1 - dual)) / 2
        return np.where(np.abs(dual) <= 1, entropy + dual * target, np.inf)

    def inside_at(self, dual, target):
        return np.clip(dual, -1, 1)

    def balanced_at(self, excess, mean):
        size = abs(excess)
        mixed = size / (size + 1)
        constant = float(-mixed * np.sign(excess))

        def terms(scores, target):
            scores = scores.astype(np.float64)
            dual = self.inside_at((1 - mixed) * self.residual_at(scores, target) + constant, target)
            return np.maximum(self.fenchel_at(scores, dual, target), 0)

        return Dual(1 - mixed, constant, 0.0, terms if mixed else 0.0)

    def null_score(self, target, weight):
        found = minimize(
            lambda b: weight @ self.value_at(b + np.zeros(len(target)), target), np.median(target)
        )
        return float(found.x[0])


@pytest.fixture(autouse=True)
def in_the_table(monkeypatch):
    monkeypatch.setitem(regressor._LOSSES, "logcosh", LogCosh)


def problem(seed):
    rng = np.random.default_rng(seed)
    n, p = rng.integers(20, 300), rng.integers(1, 6)
    X = rng.normal(size=(n, p))
    return X, X @ rng.normal(size=p) * rng.choice([1, 5]) + rng.standard_t(1.5, size=n), rng


@pytest.mark.parametrize("seed", range(4))
def test_its_optimum(seed):
    X, y, _ = problem(seed)
    model = GLMRegressor("logcosh", alpha=0.01, tol=1e-10).fit(X, y)

    def objective(w):
        size = np.abs(X @ w[:-1] + w[-1] - y)
        loss = np.logaddexp(size, -size) - np.log(2)
        return loss.mean() + 0.005 * w[:-1] @ w[:-1]

    found = minimize(objective, np.zeros(X.shape[1] + 1), tol=1e-12)
    assert model.objective_ == pytest.approx(found.fun, rel=1e-9)
    np.testing.assert_allclose(model.coef_, found.x[:-1], atol=1e-4)
    chosen = GLMRegressorCV("logcosh", alphas=[0.01], cv=3, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(chosen.coef_, model.coef_, atol=1e-4)


def test_what_it_lacks_is_said():
    X, y, _ = problem(0)
    model = GLMRegressor("logcosh", alpha=0.1).fit(X, y)
    with pytest.raises(ValueError, match="'logcosh', which no estimator of scikit-learn has"):
        model.to_sklearn()
    with pytest.raises(NotImplementedError, match="loss='logcosh' has no Fisher information"):
        model.standard_errors(X, y)


def test_its_gap_is_a_bound_though_it_knows_nothing_of_its_third_derivative():
    for seed in range(60):
        X, y, rng = problem(seed)
        alpha = 10 ** rng.uniform(-9, 0)
        rough = {"tol": rng.choice([1e-1, 1e-2, 1e-3]), "max_iter": rng.integers(1, 4)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = GLMRegressor("logcosh", alpha=alpha, **rough).fit(X, y)
            exact = GLMRegressor("logcosh", alpha=alpha, tol=1e-13).fit(X, y)
        assert model.objective_ - exact.objective_ <= model.gap_ + 1e-12


@pytest.mark.parametrize("loss", [Logistic(), Poisson(), Gamma(), Tweedie(1.2), Tweedie(1.7)])
def test_the_slope_bounds_the_third_derivative(loss):
    z, h = np.tile(np.linspace(-4, 4, 401), 2), 1e-5
    target = np.repeat([1.0, 3.0 if isinstance(loss, Gamma) else 0.0], 401)
    third = (loss.curvature_at(z + h, target) - loss.curvature_at(z - h, target)) / (2 * h)
    size = np.abs(third) / loss.curvature_at(z, target)
    assert 0.9 * loss.self_concordance <= size.max() <= loss.self_concordance * (1 + 1e-6)


def test_a_loss_reads_its_own_arguments():
    assert isinstance(GLMRegressor("huber", epsilon=2.0)._loss(), Huber)
    assert GLMRegressor("tweedie", power=1.2)._loss() == Tweedie(1.2)
    assert GLMRegressor("tweedie", power=2)._loss() == Gamma()
    assert GLMRegressor("gamma", power=7)._loss() == Gamma()
