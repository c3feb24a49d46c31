"""Offsets of the scores: against Newton's method that adds them, and in every form of the data."""

import re
from dataclasses import dataclass, replace

import large_data
import numpy as np
import pytest
import sklearn
from elastic_net_oracle import values as losses_of
from linear_oracle import Dense, target_of
from long_double import LongDouble
from provenglm import (
    Chunks,
    GLMClassifier,
    GLMClassifierCV,
    GLMRegressor,
    GLMRegressorCV,
    constants,
    plan,
)
from provenglm.model.budget import memory_budget
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.null_model import best_intercept
from provenglm.model.problem import Problem
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows
from provenglm.rows.parts import ArrayPart
from provenglm.rows.table import Table
from provenglm.workers import Workers
from scipy.sparse import csr_array
from sklearn.metrics import d2_tweedie_score, mean_tweedie_deviance, r2_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
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
    # Rows on disk stay there, and sparse rows are not made dense.
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    model = model_of(loss, alpha=0.1, tol=1e-11).fit(form, y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-5)
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
    residual = loss.residual(z, y)[:, 0]
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
    # Rows on disk stay there, and sparse rows are not made dense.
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    model = GLMClassifier(tol=1e-11).fit(form, y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)
    model = GLMClassifier(tol=1e-11).fit(csr_array(X), y, weight, offset)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)


def table_of(y, share, offset, *, is_far=False):
    """Return a table of rows whose features do not matter."""
    X = np.zeros((len(y), 1))
    rows = DiskRows([ArrayPart(X)]) if is_far else DenseRows(X)
    return Table(rows, y, share, Workers(len(y)), offset)


def test_offsets_of_one_class_against_the_best_constant_alone():
    _, y, offset, weight = labels()
    loss, share = Logistic(), weight / weight.sum()
    best, offset = best_intercept(loss, table_of(y, share, offset[:, None])), offset[:, None]
    around = [share @ loss.value(best + offset + h, y) for h in (-1e-4, 0, 1e-4)]
    assert around[1] < min(around[0], around[2])
    assert abs(share @ loss.residual(best + offset, y)) < 1e-10


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


def test_offsets_of_three_classes_need_a_column_for_each():
    X, _, offset, _ = labels()
    y = np.arange(300) % 3
    told = re.escape(
        "offset has the shape (300,), and X has 300 rows of 3 classes: give one number per "
        "row and class, in an array of shape (300, 3) whose columns are in the order of classes_"
    )
    with pytest.raises(ValueError, match=told):
        GLMClassifier().fit(X, y, offset=offset)
    with pytest.raises(ValueError, match=told):
        GLMClassifier().fit(X, y).predict(X, offset)
    table = np.zeros((300, 3))
    table[7, 1] = np.nan
    with pytest.raises(ValueError, match="offset has NaN in row 7"):
        GLMClassifier().fit(X, y, offset=table)


# --- Every way, judged in long double ----------------------------------------------------------

EVERY_LOSS = [Logistic(), Softmax(3), Squared(), Huber(1.35), Poisson(), Tweedie(1.4), Gamma()]


def made(loss, strength, l1_ratio=0.0, **settings):
    """The estimator; `strength` is beside the mean loss of n rows."""
    if loss.has_classes:
        C = np.inf if strength == 0 else 1 / strength
        return GLMClassifier(C, l1_ratio=l1_ratio, **settings)
    return model_of(loss, alpha=strength, l1_ratio=l1_ratio, **settings)


def drawn(loss, n, p, seed=0, density=1.0):
    """Features, targets that follow scores with offsets, and the offsets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * (rng.random((n, p)) < density)
    shape = (n, loss.outputs) if loss.outputs > 1 else n
    offset = rng.normal(size=shape) + 1
    scores = (X @ rng.normal(size=(p, loss.outputs))) / np.sqrt(p * density)
    y = target_of(loss, scores + offset.reshape(scores.shape), rng)
    return X, y, offset


def check(model, loss, X, y, offset, weight, penalty, rough=1.0):
    """The objective is that of the coefficients, and the gap and tol are kept."""
    one = LongDouble.of(X, y, weight, loss, penalty, model.fit_intercept, offset)
    at = one.theta_of(np.atleast_2d(model.coef_).T, np.atleast_1d(model.intercept_))
    found, least, constant = one.value(at), one.least(at), one.constant()[0]
    rounding = rough * one.rounding(at)
    assert abs(found - model.objective_) <= rounding
    assert model.gap_ >= found - least - rounding
    assert found - least <= max(model.tol * (constant - least), rounding)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "float32", "csr", "npy"])
@pytest.mark.parametrize("penalty", ["l2", "l1", "none"])
@pytest.mark.parametrize("loss", EVERY_LOSS, ids=lambda loss: loss.name)
def test_every_loss_and_form_in_long_double(tmp_path, monkeypatch, loss, penalty, kind):
    monkeypatch.setattr(constants, "SMALL", 0)  # a small memory map is no array, either
    l1_ratio = float(penalty == "l1")
    if loss.has_scale and penalty != "l2":
        pytest.skip("Huber's scale has no L1 penalty, and without a penalty no proof")
    X, y, offset = drawn(loss, 700, 6, density=0.6)
    X = X.astype(np.float32).astype(float)
    weight = np.random.default_rng(1).integers(0, 3, len(y)) + 0.5
    form = X
    if kind == "csr":
        form = csr_array(X)
        monkeypatch.setattr(constants, "SMALL_DATA", 0)
    elif kind == "npy":
        np.save(tmp_path / "x.npy", X)
        form = np.load(tmp_path / "x.npy", mmap_mode="r")
    elif kind == "float32":
        form = X.astype(np.float32)
    strength = 0.0 if penalty == "none" else 0.02
    total = weight.sum() if loss.has_classes else 1.0
    tol = 1e-4 if kind == "float32" else 1e-8
    model = made(loss, strength * total, l1_ratio, tol=tol).fit(form, y, weight, offset)
    penalties = strength * (1 - l1_ratio), strength * l1_ratio
    # Objectives of rows in float32 are sums in float32.
    rough = 1e9 if kind == "float32" else 1.0
    check(model, loss, X, y, offset, weight, penalties, rough)


def dense(n, p, density=1.0):
    return lambda loss: drawn(loss, n, p, density=density)


SPARSE = {"SMALL_DATA": 0}
WALK = {
    "newton": ("newton-cholesky", dense(300, 5), {}),
    "space of the rows": ("row-space-newton", dense(40, 60), {}),
    "sampled": ("sampled-newton", dense(3000, 5), {"LEAST_ROWS": 200}),
    "sampled, sparse": ("sampled-newton", dense(3000, 60, 0.05), {"LEAST_ROWS": 200, **SPARSE}),
    "subspace": ("subspace-newton", dense(400, 60), {}),
    "products": ("newton-cg", dense(300, 60, 0.05), {"MOST_WEIGHTS": 3, **SPARSE}),
    "products, dense": ("newton-cg", dense(300, 20), {}),
    "of a sample": ("sampled-newton-cg", dense(3000, 6), {"LEAST_ROWS": 300}),
    "dual": ("dual-coordinate-ascent", dense(400, 60, 0.05), {"MOST_WEIGHTS": 3, **SPARSE}),
    "dual, dense": ("dual-coordinate-ascent", dense(300, 20), {}),
    "working set": ("coordinate-descent", dense(300, 30), {}),
    "columns": ("coordinate-descent", dense(300, 400, 0.05), SPARSE),
    "columns, dense": ("coordinate-descent", dense(200, 60), {"MOST_WEIGHTS": 20}),
    "kept columns": ("coordinate-descent", dense(200, 400), {}),
    "start of a sample": ("coordinate-descent", dense(2000, 5), {"LEAST_ROWS": 100, "PRODUCT": 1}),
}
ONE, TWO, MORE = (
    [Squared(), Poisson(), Gamma(), Tweedie(1.4), Logistic()],
    [Logistic()],
    [Softmax(3)],
)
OF_LOSSES = {
    "newton": ONE + MORE,
    "space of the rows": ONE + MORE,
    "sampled": ONE + MORE,
    "sampled, sparse": ONE,
    "subspace": ONE,
    "products": ONE + MORE,
    "products, dense": MORE,
    "of a sample": MORE,
    "dual": TWO + MORE,
    "dual, dense": MORE,
    "working set": ONE + MORE,
    "columns": ONE + MORE,
    "columns, dense": ONE + MORE,
    "kept columns": [Squared()],
    "start of a sample": [loss for loss in ONE if not loss.is_quadratic] + MORE,
}


@pytest.mark.parametrize(
    ("name", "loss"),
    [(name, loss) for name in WALK for loss in OF_LOSSES[name]],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_walk_over_all_ways(monkeypatch, name, loss):
    way, make, change = WALK[name]
    for constant, value in change.items():
        monkeypatch.setattr(constants, constant, value)
    take(monkeypatch, way)
    X, y, offset = make(loss)
    form = csr_array(X) if change.items() >= SPARSE.items() else X
    strength = {"dual-coordinate-ascent": 0.3, "newton-cg": 0.1}.get(way, 1e-2)
    total = len(y) if loss.has_classes else 1.0
    has_l1 = way == "coordinate-descent"
    model = made(loss, strength * total, float(has_l1), tol=1e-7).fit(form, y, offset=offset)
    assert model.solver_ == way
    l2, l1 = (0.0, strength) if has_l1 else (strength, 0.0)
    # The passes of one way are in float32.
    rough = 1e4 if way == "sampled-newton-cg" else 10
    check(model, loss, X, y, offset, None, (l2, l1), rough)


def test_the_walk_has_all_methods():
    assert {way for way, _, _ in WALK.values()} == {row.name for row in plan.TABLE}


@pytest.mark.parametrize("loss", [Logistic(), Poisson()], ids=lambda loss: loss.name)
def test_a_part_of_the_rows_on_disk_has_its_offsets(monkeypatch, tmp_path, loss):
    for name, value in {
        "SMALL": 0,
        "LEAST_ROWS": 20,
        "SMALL_DATA": 0,
    }.items():
        monkeypatch.setattr(constants, name, value)
    take(monkeypatch, "sampled-newton")
    monkeypatch.setattr(constants, "ROWS_BESIDE_BLOCKS", 10)
    monkeypatch.setattr(constants, "BLOCK_BYTES", 1 << 12)
    X, y, offset = drawn(loss, 20_000, 4)
    np.save(tmp_path / "x.npy", X)
    total = len(y) if loss.has_classes else 1.0
    form = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = made(loss, 1e-2 * total, tol=1e-7).fit(form, y, offset=offset)
    assert model.solver_ == "sampled-newton"
    check(model, loss, X, y, offset, None, (1e-2, 0.0), 10)


@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
def test_offsets_of_a_squared_loss_are_taken_off_the_targets(l1_ratio):
    X, y, offset = drawn(Squared(), 500, 40)
    settings = {"alpha": 0.03, "l1_ratio": l1_ratio, "tol": 1e-13}
    model = GLMRegressor(**settings).fit(X, y, offset=offset)
    same = GLMRegressor(**settings).fit(X, y - offset)
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-9, atol=1e-13)
    assert model.intercept_ == pytest.approx(same.intercept_, rel=1e-9)


@pytest.mark.parametrize("common", [0.0, 1e3, -1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_offsets_with_a_large_mean(common, dtype):
    X, y, offset = drawn(Softmax(3), 900, 4)
    X = X.astype(dtype)
    plain = GLMClassifier(tol=1e-7).fit(X, y, offset=offset)
    moved = GLMClassifier(tol=1e-7).fit(X, y, offset=offset + common * np.array([1, 2, -1]))
    np.testing.assert_allclose(moved.coef_, plain.coef_, rtol=0, atol=1e-3)
    assert moved.gap_ <= 1e-7
    assert moved.objective_ == pytest.approx(plain.objective_, abs=1e-6)


def test_a_constant_offset_of_three_classes_moves_the_intercepts_alone():
    X, y, _ = drawn(Softmax(3), 300, 4)
    plain = GLMClassifier(tol=1e-10).fit(X, y)
    shift = np.array([3.0, -1.0, 1.0])
    moved = GLMClassifier(tol=1e-10).fit(X, y, offset=np.tile(shift, (300, 1)))
    np.testing.assert_allclose(moved.coef_, plain.coef_, atol=1e-5)
    expected = plain.intercept_ - shift + shift.mean()
    np.testing.assert_allclose(moved.intercept_, expected, atol=1e-5)
    table = np.tile(shift, (300, 1))
    np.testing.assert_allclose(moved.predict_proba(X, table), plain.predict_proba(X), atol=1e-6)
    # A number is the same for all classes, which changes nothing.
    same = GLMClassifier(tol=1e-10).fit(X, y, offset=5.0)
    np.testing.assert_allclose(same.coef_, plain.coef_, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [0.5, 30.0, 800.0])
@pytest.mark.parametrize("loss", EVERY_LOSS, ids=lambda loss: loss.name)
def test_the_best_intercept_beside_offsets(monkeypatch, loss, size, seed):
    monkeypatch.setattr(constants, "PART_ROWS", 37)
    _, y, offset = drawn(loss, 200, 3, seed)
    offset = offset * (size if not loss.has_logarithm else min(size, 30))
    offset = offset.reshape(200, -1)
    share = np.random.default_rng(seed).random(200)
    share /= share.sum()
    best = best_intercept(loss, table_of(y, share, offset, is_far=seed % 2 == 1))
    one = LongDouble.of(np.zeros((200, 1)), y, share, loss, (0, 0), True, offset)
    slope = share @ loss.residual(best + offset, y)
    if loss.has_scale:  # its slope is not smooth
        values = [float(share @ loss.value(best + offset + h, y)) for h in (-1e-4, 0.0, 1e-4)]
        assert values[1] <= min(values) + 1e-12 * values[1]
        return
    # Offsets of 800 make the mean loss of classes piecewise linear but for rounding.
    is_smooth = size < 800 or loss.outputs == 1
    sizes = share @ np.abs(loss.residual(best + offset, y))
    assert np.abs(slope).max() <= (1e-9 if is_smooth else 1e-2) * np.max(sizes) + 1e-14
    theta = np.vstack([np.zeros((1, loss.outputs)), best])
    least = one.constant()[0]
    allowed = (1e-12 if is_smooth else 1e-7) * (1 + abs(least))
    assert one.value(theta.astype(np.longdouble)) <= least + allowed


def test_offsets_that_separate_are_not_coefficients_that_do():
    # With the offsets each row is on its side, and no coefficient would put it there.
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    model = GLMClassifier(np.inf).fit(X, y, offset=10.0 * (2 * y - 1))
    assert "finite" not in model.stop_reason_
    assert np.abs(model.coef_).max() < 10
    table = 10.0 * np.eye(3)[np.arange(200) % 3]
    model = GLMClassifier(np.inf).fit(X, np.arange(200) % 3, offset=table)
    assert np.abs(model.coef_).max() < 10


# --- Cross-validation --------------------------------------------------------------------------

SEARCHES = {
    "together": ({"cv": 3}, {}, 1200),
    "by itself": ({"cv": 3}, {}, 200),
}


@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("loss", EVERY_LOSS, ids=lambda loss: loss.name)
def test_a_path_has_the_offsets_of_its_folds(monkeypatch, loss, name, l1_ratio):
    if l1_ratio and loss.has_scale:
        pytest.skip("Huber's scale has no L1 penalty")
    settings, change, n = SEARCHES[name]
    for constant, value in change.items():
        monkeypatch.setattr(constants, constant, value)
    X, y, offset = drawn(loss, n, 4)
    weight = np.random.default_rng(2).random(n) + 0.5
    strengths = [0.3, 0.03]
    common = {**settings, "l1_ratios": [l1_ratio], "tol": 1e-8}
    power = {"power": loss.power} if isinstance(loss, Tweedie) else {}
    if loss.has_classes:
        search = GLMClassifierCV([1 / (s * n) for s in strengths], **common)
    else:
        search = GLMRegressorCV(loss.name, alphas=strengths, **power, **common)
    search.fit(X, y, weight, offset)
    folds = StratifiedKFold(3) if loss.has_classes else KFold(3)
    for fold, (train, test) in enumerate(folds.split(X, y)):
        for k, strength in enumerate(strengths):
            one = made(loss, strength * (n if loss.has_classes else 1), l1_ratio, tol=1e-8)
            one.fit(X[train], y[train], weight[train], offset[train])
            coef = np.column_stack([np.atleast_2d(one.coef_), np.atleast_1d(one.intercept_)])
            np.testing.assert_allclose(search.coefs_paths_[fold, 0, k], coef, atol=2e-3)
            score = one.score(X[test], y[test], weight[test], offset[test])
            assert search.scores_[fold, 0, k] == pytest.approx(score, abs=2e-3)
    best = search.C_ if loss.has_classes else search.alpha_
    last = made(loss, 1 / best if loss.has_classes else best, l1_ratio, tol=1e-8)
    last.fit(X, y, weight, offset)
    np.testing.assert_allclose(search.coef_, last.coef_, atol=2e-3)
    assert search.score(X, y, weight, offset) == pytest.approx(last.score(X, y, weight, offset))
    np.testing.assert_allclose(search.predict(X, offset), last.predict(X, offset), rtol=1e-2)


def test_alphas_of_an_l1_penalty_begin_where_all_coefficients_are_0():
    X, y, offset = drawn(Poisson(), 300, 4)
    search = GLMRegressorCV("poisson", alphas=3, l1_ratios=[1.0], cv=3).fit(X, y, offset=offset)
    for factor in (0.99, 1.01):
        alpha = factor * search.alphas_.max()
        model = GLMRegressor("poisson", alpha=alpha, l1_ratio=1.0).fit(X, y, offset=offset)
        assert model.coef_.any() == (factor < 1)


def mean_error(estimator, X, y):
    return -np.abs(estimator.predict(X) - y).mean()


def error_of_half(estimator, X, y):
    return -np.abs(estimator.predict(X[::2]) - y[::2]).mean()


@pytest.mark.parametrize("scoring", ["neg_mean_absolute_error", mean_error])
def test_scorers_see_predictions_with_offsets(scoring):
    X, y, offset = drawn(Poisson(), 300, 4)
    search = GLMRegressorCV("poisson", alphas=[0.1], cv=3, scoring=scoring)
    search.fit(X, y, offset=offset)
    for fold, (train, test) in enumerate(KFold(3).split(X)):
        one = GLMRegressor("poisson", alpha=0.1).fit(X[train], y[train], offset=offset[train])
        error = np.abs(one.predict(X[test], offset[test]) - y[test]).mean()
        assert search.scores_[fold, 0, 0] == pytest.approx(-error, rel=1e-3)
    error = np.abs(search.predict(X, offset) - y).mean()
    assert search.score(X, y, offset=offset) == pytest.approx(-error)
    assert search.score(X, y, offset=0) < search.score(X, y, offset=offset)
    with pytest.warns(UserWarning, match="fit had an offset, but score has none"):
        search.score(X, y)


def test_a_scorer_that_looks_at_other_rows_is_told_that_they_have_no_offset():
    X, y, offset = drawn(Poisson(), 300, 4)
    search = GLMRegressorCV("poisson", alphas=[0.1], cv=3, scoring=error_of_half)
    with pytest.warns(UserWarning, match="fit had an offset, but predict has none"):
        search.fit(X, y, offset=offset)
    assert search.set_params(scoring=None).fit(X, y, offset=offset).coef_.any()


def test_a_search_forgets_the_offset_of_an_earlier_fit():
    X, y, offset = drawn(Poisson(), 300, 4)
    search = GLMRegressorCV("poisson", alphas=[0.1], cv=3).fit(X, y, offset=offset)
    with pytest.raises(ValueError, match="give the offset, too"):
        search.standard_errors(X, y)
    assert np.isfinite(search.standard_errors(X, y, offset=offset)).all()
    search.fit(X, y).predict(X)  # a warning would be an error


# --- Memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Logistic(), Softmax(5)], ids=lambda loss: loss.name)
def test_the_room_beside_offsets(loss):
    n, limit = 10_000, 200_000_000
    rows = Chunks([np.zeros((n, 2))], memory_limit=limit)
    plain = Problem(rows, np.zeros(n, np.uint8), loss, 1.0)
    offset = np.zeros((n, loss.outputs))
    assert memory_budget(plain) - memory_budget(replace(plain, offset=offset)) == offset.nbytes
