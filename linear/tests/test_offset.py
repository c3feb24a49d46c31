"""Offsets of the scores: against Newton's method that adds them, and in every form of the data."""

import re
from dataclasses import dataclass

import large_data
import numpy as np
import pytest
import sklearn
from elastic_net_oracle import values as losses_of
from linear_oracle import Dense, target_of
from provenglm import GLMClassifier, GLMRegressor, constants
from provenglm.model.losses import Huber, Logistic, Poisson, Squared
from provenglm.model.offset import LogisticWithOffset
from provenglm.model.problem import Problem
from provenglm.model.tweedie import Gamma, Tweedie
from scipy.sparse import csr_array
from sklearn.metrics import d2_tweedie_score, mean_tweedie_deviance, r2_score
from sklearn.model_selection import GridSearchCV, KFold
from walking import take

LOSSES = [Squared(), Poisson(), Tweedie(1.3), Gamma()]
MANY = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


@dataclass
class WithOffset(Dense):
    """The objective as it is written down: offsets are added to the scores."""

    offset: np.ndarray = None

    def scores(self, theta):
        return super().scores(theta) + self.offset[:, None]


def data(loss, n=300, p=4, seed=0):
    """Features, targets that follow the offsets, offsets far from 0, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.7)
    offset = rng.normal(size=n) + 4
    scores = X @ rng.normal(size=(p, 1)) / 2
    y = target_of(loss, scores, rng)
    y = y * np.exp(offset) if loss.has_logarithm else y + offset
    return X * [0.01, 1, 1, 100], y, offset, rng.integers(0, 3, n) + rng.random(n)


def optimum(loss, X, y, offset, weight, l2, intercept=True):
    problem = Problem(X, y, loss, l2, weight, intercept)
    scale = 1 / X.std(axis=0)
    dense = WithOffset.of(problem, 0.0, scale)
    dense.offset = offset
    start = np.zeros((X.shape[1] + 1, 1))
    theta, least = dense.minimum(start)
    constant = dense.part(slice(None))
    constant.X = constant.X * np.append(np.zeros(X.shape[1]), 1.0)
    return theta[:-1, 0] * scale, theta[-1, 0], least, constant.minimum(start)[1]


def model_of(loss, **settings):
    power = {"power": loss.power} if isinstance(loss, Tweedie) else {}
    return GLMRegressor(loss.name, **power, **settings)


@pytest.mark.parametrize("alpha", [1e-4, 1.0])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@MANY
def test_the_optimum_is_that_of_scores_with_offsets(loss, weighted, intercept, alpha):
    X, y, offset, weight = data(loss)
    weight = weight if weighted else None
    model = model_of(loss, alpha=alpha, fit_intercept=intercept, tol=1e-12)
    model.fit(X, y, sample_weight=weight, offset=offset)
    coef, bias, least, _ = optimum(loss, X, y, offset, weight, alpha, intercept)
    scale = X.std(axis=0)
    np.testing.assert_allclose(model.coef_ * scale, coef * scale, rtol=0, atol=1e-7)
    assert model.intercept_ == pytest.approx(bias, abs=1e-7)
    assert model.objective_ == pytest.approx(least, rel=1e-11)
    assert model.gap_ >= model.objective_ - least - 1e-12 * (1 + abs(least))
    assert [row["objective"] for row in model.history_][-1] == pytest.approx(model.objective_)


@MANY
def test_tol_is_relative_to_the_best_constant_beside_the_offsets(loss):
    X, y, offset, weight = data(loss, n=60)
    _, _, least, constant = optimum(loss, X, y, offset, weight, 1e-3)
    model = model_of(loss, alpha=1e-3, tol=1e-3).fit(X, y, weight, offset)
    # The first snapshot is that constant.
    assert model.history_[0]["objective"] == pytest.approx(constant, rel=1e-9)
    assert model.objective_ - least <= 1e-3 * (constant - least)


@MANY
def test_a_constant_offset_moves_the_intercept_alone(loss):
    X, y, _, weight = data(loss)
    plain = model_of(loss).fit(X, y, weight)
    moved = model_of(loss).fit(X, y, weight, offset=2.5)
    np.testing.assert_allclose(moved.coef_, plain.coef_, rtol=1e-9)
    assert moved.intercept_ == pytest.approx(plain.intercept_ - 2.5)
    assert moved.objective_ == pytest.approx(plain.objective_)


@MANY
def test_every_form_of_the_data(loss, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "SMALL", 0)
    X, y, offset, weight = data(loss)
    expected = model_of(loss, alpha=0.1, tol=1e-11).fit(X, y, weight, offset).coef_
    for name, form in large_data.forms(tmp_path, X).items():
        given = (offset,) if "memmap" in name else (large_data.pieces(offset),)
        model = model_of(loss, alpha=0.1, tol=1e-11).fit(form, y, weight, *given)
        np.testing.assert_allclose(model.coef_, expected, rtol=1e-5, err_msg=name)
        predicted = model.predict(form, *given)
        np.testing.assert_allclose(predicted, model.predict(X, offset), rtol=1e-12, err_msg=name)
    # Nothing is copied that has a number for each row.
    monkeypatch.setattr(constants, "LONG_ROWS", 100)
    model = model_of(loss, alpha=0.1, tol=1e-11).fit(form, y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-5)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)  # sparse rows are not made dense
    model = model_of(loss, alpha=0.1, tol=1e-11).fit(csr_array(X), y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-5)


def test_huber_with_its_scale():
    # Targets less the offsets are the same problem, and the same numbers.
    X, y, offset, weight = data(Squared())
    y[:20] += 50
    model = GLMRegressor("huber", alpha=0.1, tol=1e-10).fit(X, y, weight, offset)
    same = GLMRegressor("huber", alpha=0.1, tol=1e-10).fit(X, y - offset, weight)
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-6)
    assert model.scale_ == pytest.approx(same.scale_)
    assert model.objective_ == pytest.approx(same.objective_)
    assert isinstance(model._loss(), Huber)


@pytest.mark.parametrize(
    ("loss", "alpha"), [(Poisson(), 10.0), (Gamma(), 0.05)], ids=lambda value: str(value)
)
def test_an_l1_penalty_has_the_same_strength(loss, alpha):
    X, y, offset, weight = data(loss)
    model = model_of(loss, alpha=alpha, l1_ratio=1.0, tol=1e-11).fit(X, y, weight, offset)
    z = (X @ model.coef_ + model.intercept_ + offset)[:, None]
    value = np.average(losses_of(loss.name, z, y), weights=weight)
    assert model.objective_ == pytest.approx(value + alpha * np.abs(model.coef_).sum())
    # The conditions of the optimum: gradients of size alpha where coefficients are not 0.
    residual = loss.residual(z[:, 0], y)
    gradient = X.T @ (residual * weight) / weight.sum()
    free = model.coef_ != 0
    assert 0 < free.sum() < len(free)
    np.testing.assert_allclose(gradient[free], -alpha * np.sign(model.coef_[free]), rtol=1e-4)
    assert np.abs(gradient[~free]).max() <= alpha


def test_a_warm_start_goes_on_from_where_it_was():
    X, y, offset, weight = data(Poisson())
    model = GLMRegressor("poisson", alpha=1e-3, warm_start=True).fit(X, y, weight, offset)
    first = model.objective_
    model.fit(X, y, weight, offset)
    assert model.history_[0]["objective"] == pytest.approx(first, rel=1e-12)


@MANY
def test_predictions_and_scores_have_the_offset(loss):
    X, y, offset, weight = data(loss)
    model = model_of(loss, alpha=0.1).fit(X, y, weight, offset)
    scores = X @ model.coef_ + model.intercept_
    prediction = model.predict(X, offset=offset)
    expected = np.exp(scores + offset) if loss.has_logarithm else scores + offset
    np.testing.assert_allclose(prediction, expected, rtol=1e-12)
    found = model.score(X, y, sample_weight=weight, offset=offset)
    if loss.has_logarithm:
        power = getattr(loss, "power", 1)
        told = d2_tweedie_score(y, prediction, sample_weight=weight, power=power)
        deviance = mean_tweedie_deviance(y, prediction, sample_weight=weight, power=power)
        own = np.average(loss.deviance(scores + offset, y), weights=weight)
        assert own == pytest.approx(deviance / 2, rel=1e-9)
    else:
        told = r2_score(y, prediction, sample_weight=weight)
    assert found == pytest.approx(told, rel=1e-9)
    assert found > model.score(X, y, sample_weight=weight, offset=0)


def test_weighted_rates_are_counts_with_an_exposure():
    X, y, offset, _ = data(Poisson())
    exposure = np.exp(offset)
    counts = GLMRegressor("poisson", alpha=0, tol=1e-11).fit(X, y, offset=offset)
    rates = GLMRegressor("poisson", alpha=0, tol=1e-11).fit(X, y / exposure, exposure)
    np.testing.assert_allclose(rates.coef_, counts.coef_, rtol=1e-6)


def test_a_search_hands_each_fold_its_offsets():
    X, y, offset, _ = data(Poisson())
    with sklearn.config_context(enable_metadata_routing=True):
        model = GLMRegressor("poisson").set_fit_request(offset=True).set_score_request(offset=True)
        search = GridSearchCV(model, {"alpha": [1e-3]}, cv=KFold(3)).fit(X, y, offset=offset)
    for fold, (train, test) in enumerate(KFold(3).split(X)):
        one = GLMRegressor("poisson", alpha=1e-3).fit(X[train], y[train], offset=offset[train])
        expected = one.score(X[test], y[test], offset=offset[test])
        assert search.cv_results_[f"split{fold}_test_score"][0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (np.zeros(299), "offset has the shape (299,), and X has 300 rows: give one number per row"),
        (np.full(300, np.nan), "offset has NaN in row 0, and the fit needs finite numbers"),
        (["a"] * 300, "offset has something that is not a number"),
        (np.linspace(1, 1000, 300), "offset is 1000 in row 299, and loss='poisson' predicts exp("),
        (np.where(np.arange(300) == 7, -365.0, 0.0), "offset is -365 in row 7, and loss='poisson'"),
        (
            np.where(np.arange(300) == 7, 365.0, 0.0),
            "offset is 365 in row 7, and loss='poisson' predicts exp(scores + offset), which is "
            "beyond any exposure: give the logarithm of the exposure, numpy.log(exposure)",
        ),
    ],
)
def test_what_is_refused(offset, told):
    X, y, _, _ = data(Poisson())
    with pytest.raises(ValueError, match=re.escape(told)):
        GLMRegressor("poisson").fit(X, y, offset=offset)


# --- The logistic loss -----------------------------------------------------------------------


def labels(n=300, seed=0):
    """Features, labels that follow the offsets, offsets far from 0, and weights."""
    X, _, _, weight = data(Squared(), n, seed=seed)
    rng = np.random.default_rng(seed + 1)
    offset = 2 * rng.normal(size=n) + 3
    scores = X @ (rng.normal(size=4) / X.std(axis=0)) + offset - 2 + rng.logistic(size=n)
    return X, (scores > 0).astype(int), offset, weight


@pytest.mark.parametrize("C", [0.01, 100.0])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_optimum_of_two_classes(weighted, intercept, C):
    X, y, offset, weight = labels()
    weight = weight if weighted else None
    total = len(y) if weight is None else weight.sum()
    model = GLMClassifier(C, fit_intercept=intercept, tol=1e-12).fit(X, y, weight, offset)
    coef, bias, least, constant = optimum(
        Logistic(), X, y, offset, weight, 1 / C / total, intercept
    )
    scale = X.std(axis=0)
    np.testing.assert_allclose(model.coef_[0] * scale, coef * scale, rtol=0, atol=1e-7)
    assert model.intercept_[0] == pytest.approx(bias, abs=1e-7)
    assert model.objective_ == pytest.approx(least, rel=1e-11)
    assert model.gap_ >= model.objective_ - least - 1e-12
    rough = GLMClassifier(C, fit_intercept=intercept, tol=1e-2).fit(X, y, weight, offset)
    assert rough.gap_ >= rough.objective_ - least - 1e-12
    if intercept:  # The first snapshot is the best constant beside the offsets.
        assert rough.history_[0]["objective"] == pytest.approx(constant, rel=1e-9)


def test_every_form_of_the_data_of_two_classes(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "SMALL", 0)
    X, y, offset, weight = labels()
    expected = GLMClassifier(tol=1e-11).fit(X, y, weight, offset)
    for name, form in large_data.forms(tmp_path, X).items():
        given = offset if "memmap" in name else large_data.pieces(offset)
        model = GLMClassifier(tol=1e-11).fit(form, y, weight, given)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            model.decision_function(form, given), expected.decision_function(X, offset), rtol=1e-5
        )
    # Nothing is copied that has a number for each row.
    monkeypatch.setattr(constants, "LONG_ROWS", 100)
    model = GLMClassifier(tol=1e-11).fit(form, y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)  # sparse rows are not made dense
    model = GLMClassifier(tol=1e-11).fit(csr_array(X), y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)


WAYS = [
    ("sampled-newton", {"LEAST_ROWS": 200}, np.float32, "dense"),
    ("subspace-newton", {}, np.float64, "dense"),
    ("newton-cg", {"MOST_WEIGHTS": 3}, np.float64, "sparse"),
    ("newton-cholesky", {}, np.float64, "wide"),
    ("subspace-newton", {}, np.float64, "wide"),
    ("coordinate-descent", {}, np.float64, "l1"),
    ("coordinate-descent", {"SMALL_HESSIAN": 0.0}, np.float64, "l1"),
]


@pytest.mark.parametrize(("way", "change", "dtype", "kind"), WAYS)
def test_every_way_has_the_offsets(monkeypatch, way, change, dtype, kind):
    for name, value in change.items():
        monkeypatch.setattr(constants, name, value)
    X, y, offset, weight = labels(600)
    X = X / X.std(axis=0)
    if kind == "wide":
        X, y, offset, weight = X[:40], y[:40], offset[:40], weight[:40]
        X = np.hstack([X, np.random.default_rng(0).normal(size=(40, 60))])
    monkeypatch.setattr(constants, "SMALL_DATA", 0 if kind == "sparse" else 10**8)
    take(monkeypatch, way)
    ratio = 0.7 if kind == "l1" else 0.0
    form = csr_array(X) if kind == "sparse" else X.astype(dtype)
    C = 0.1
    model = GLMClassifier(C, l1_ratio=ratio, tol=1e-9).fit(form, y, weight, offset)
    assert model.solver_ == way
    z = model.decision_function(form, offset)
    share = weight / weight.sum()
    strength = 1 / C / weight.sum()
    coef = model.coef_[0]
    penalty = (1 - ratio) / 2 * coef @ coef + ratio * np.abs(coef).sum()
    value = share @ Logistic().value(z, y) + strength * penalty
    assert model.objective_ == pytest.approx(value, rel=1e-6)
    # The conditions of the optimum.
    residual = share * Logistic().residual(z, y)
    slope = X.T @ residual + strength * (1 - ratio) * coef
    near = 2e-5 * np.abs(X).max()
    assert abs(residual.sum()) < near
    free = coef != 0
    np.testing.assert_allclose(slope[free], -strength * ratio * np.sign(coef[free]), atol=near)
    assert (np.abs(slope[~free]) <= strength * ratio + near).all()


def test_offsets_of_one_class_against_the_best_constant_alone():
    _, y, offset, weight = labels()
    loss, rows = LogisticWithOffset(offset, y), np.arange(len(y))
    best = loss.null_scores(rows, weight)
    around = [weight @ loss.value(best + np.full(len(y), h), rows) for h in (-1e-4, 0, 1e-4)]
    assert around[1] < min(around[0], around[2])
    assert abs(weight @ loss.residual(np.full(len(y), best), rows)) < 1e-10 * weight.sum()


def test_a_constant_offset_of_two_classes_moves_the_intercept_alone():
    X, y, _, weight = labels()
    plain = GLMClassifier(tol=1e-10).fit(X, y, weight)
    moved = GLMClassifier(tol=1e-10).fit(X, y, weight, offset=100.0)
    np.testing.assert_allclose(moved.coef_, plain.coef_, rtol=1e-5)
    assert moved.intercept_ == pytest.approx(plain.intercept_ - 100)
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        wanted = getattr(plain, method)(X)
        np.testing.assert_allclose(getattr(moved, method)(X, 100.0), wanted, rtol=1e-4)
    assert moved.score(X, y, weight, 100.0) == plain.score(X, y, weight)
    np.testing.assert_array_equal(moved.predict(X, 100.0), plain.predict(X))
    np.testing.assert_allclose(
        moved.standard_errors(X, y, weight, 100.0), plain.standard_errors(X, y, weight), rtol=1e-5
    )


def test_classes_that_offsets_leave_separable_have_no_optimum():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    model = GLMClassifier(C=np.inf)
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="no finite optimum"):
        model.fit(X, [0, 0, 1, 1], offset=[1.0, 0.0, 0.0, -1.0])


def test_offsets_of_three_classes_are_refused():
    X, _, offset, _ = labels()
    told = "there are 3 classes, and offset supports two: fit one class against the others"
    with pytest.raises(ValueError, match=told):
        GLMClassifier().fit(X, np.arange(300) % 3, offset=offset)
    with pytest.raises(ValueError, match=told):
        GLMClassifier().fit(X, np.arange(300) % 3).predict(X, offset)
