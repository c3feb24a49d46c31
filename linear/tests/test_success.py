"""What ends a fit without a warning: a proof, or an estimate that a proof supports."""

import math
import sys
import time
import warnings

import numpy as np
import pytest
from provenglm import (
    GLMClassifier,
    GLMClassifierCV,
    GLMRegressor,
    GLMRegressorCV,
    constants,
    solve as solve_module,
)
from provenglm.model.solution import StopReason, judged
from provenglm.proof import certificate as certificate_module
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from walking import take

pytestmark = pytest.mark.slow

GAPS = {"proven": 0.5, "near": 50.0, "far": 200.0, "infinite": math.inf, "none": math.nan}


@pytest.mark.parametrize("reason", StopReason)
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("decrement", [0.0, 0.01, 0.5, 2.0, math.nan])
@pytest.mark.parametrize("change", [0.0, 0.6, 10.0])
def test_the_one_place_that_decides(reason, gap, decrement, change):
    # `tol` asks for 1; rounding is 1e-3 of that.
    end = judged(reason, GAPS[gap], decrement, 1.0, 1e-3, change)
    if reason.is_unbounded or reason is StopReason.INTERRUPTED:
        assert end is reason
    elif gap == "proven":
        assert end is StopReason.CONVERGED
    else:
        # Nothing but a proof within a hundred times of what is asked supports an estimate.
        assert not end.is_success or gap == "near" or reason.is_success
        if end.is_success and reason is StopReason.STALLED:
            assert decrement <= 0.05
        if reason is StopReason.ESTIMATED:
            rounded = StopReason.ROUNDED if change > 0.5 else None
            believed = StopReason.ROUNDING if decrement <= 1e-3 else StopReason.ESTIMATED
            assert end is (rounded or (believed if gap == "near" else StopReason.UNPROVEN))
        if reason.is_cut_off:
            assert end is reason


def caught_by(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit()
    return model, [w for w in caught if w.category is ConvergenceWarning]


def unproven(monkeypatch):
    """No proof succeeds."""
    for name, module in list(sys.modules.items()):
        for bound in ("duality_gap", "gap_of_residuals"):
            if name.startswith("provenglm.") and hasattr(module, bound):
                monkeypatch.setattr(module, bound, lambda *_: math.inf)
    for name in ("newton_bound", "qr_bound", "penalty_bound"):
        monkeypatch.setattr(certificate_module.Certificate, name, lambda *_: math.inf)


def data_of(name, n, p, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    z = X @ rng.normal(size=p) / math.sqrt(p)
    return X, {
        "logistic": z + rng.logistic(size=n) > 0,
        "softmax": np.digitize(z + rng.logistic(size=n), [-1, 1]),
        "squared": z + rng.normal(size=n),
        "poisson": rng.poisson(np.exp(z)) + (np.arange(n) == 0),
        "gamma": rng.gamma(2, np.exp(z)) + 0.01,
        "tweedie": rng.gamma(2, np.exp(z)) * (rng.random(n) < 0.8) + (np.arange(n) == 0),
    }[name]


def model_of(name, **settings):
    if name in ("logistic", "softmax"):
        return GLMClassifier(**settings)
    return GLMRegressor(name, alpha=1e-3, **settings)


METHODS = {
    "newton-cholesky": (np.asarray, 60, 3, {}),
    "sampled-newton": (np.asarray, 400, 3, {"LEAST_ROWS": 100}),
    "newton-cg": (csr_array, 60, 30, {"SMALL_DATA": 0}),
    "few dense rows": (np.asarray, 60, 30, {}),
    "fewer rows than features": (np.asarray, 20, 300, {}),
}
LOSSES = ["logistic", "softmax", "squared", "poisson", "gamma", "tweedie"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_estimate_alone_is_no_success(monkeypatch, loss, method):
    form, n, p, limits = METHODS[method]
    for name, limit in limits.items():
        monkeypatch.setattr(constants, name, limit)
    if "newton" in method:
        take(monkeypatch, method)
    elif loss != "softmax":
        take(monkeypatch, "subspace-newton")
    X, y = data_of(loss, n, p)
    proven, none = caught_by(lambda: model_of(loss).fit(form(X), y))
    assert not none
    assert proven.stop_reason_ == StopReason.CONVERGED.value
    unproven(monkeypatch)
    model, caught = caught_by(lambda: model_of(loss).fit(form(X), y))
    assert len(caught) == 1
    assert model.stop_reason_ in (StopReason.UNPROVEN.value, StopReason.STALLED.value)
    if model.stop_reason_ == StopReason.UNPROVEN.value:
        assert "nothing proves it: give a penalty or a stronger one" in str(caught[0].message)
    # The same point is there, told otherwise, or a later one: as near as was proven.
    apart = 1e-4 * abs(proven.objective_) + proven.gap_
    assert model.objective_ == pytest.approx(proven.objective_, abs=apart)


@pytest.mark.parametrize("search", [GLMClassifierCV, GLMRegressorCV])
@pytest.mark.parametrize("kind", ["joint", "fold by fold", "chunks"])
def test_nor_is_it_in_a_search(monkeypatch, search, kind):
    from provenglm import Chunks

    rows = 2000 if kind != "fold by fold" else 60
    X, y = data_of("logistic" if search is GLMClassifierCV else "poisson", rows, 3)
    form = Chunks([X[:700], X[700:]]) if kind == "chunks" else X
    settings = {} if search is GLMClassifierCV else {"loss": "poisson"}
    _, none = caught_by(lambda: search(**settings).fit(form, y))
    assert not none
    unproven(monkeypatch)
    _, caught = caught_by(lambda: search(**settings).fit(form, y))
    assert any("of the path" in str(w.message) for w in caught)
    assert any("nothing proves it" in str(w.message) for w in caught)


def test_a_constant_is_not_called_the_optimum():
    # One target of 1e25: the estimate is 1e-30, and nothing is known.
    rng = np.random.default_rng(1)
    X = rng.standard_normal((30, 20))
    X[:, 0] += 1e6
    y = rng.gamma(2, np.exp(0.5 * X[:, 1])) + 0.1
    y[0] = 1e25
    model, caught = caught_by(
        lambda: GLMRegressor("gamma", alpha=1e-8, l1_ratio=1.0, tol=1e-5).fit(X, y)
    )
    assert caught or model.gap_ < 1e-3 * model.objective_


def test_a_polynomial_of_degree_10_is_not_called_solved():
    # As NIST's Filip: without a penalty no digit of the smallest singular value is left.
    x = np.linspace(-8.8, -3.1, 82)
    X, y = x[:, None] ** np.arange(1, 11), np.sin(x)
    model, caught = caught_by(lambda: GLMRegressor(alpha=0).fit(X, y))
    enough = 1e-6 * (np.var(y) / 2 - model.objective_)
    assert caught or model.gap_ <= 100 * enough


@pytest.mark.parametrize("loss", LOSSES)
def test_no_estimate_is_above_a_proof(loss):
    X, y = data_of(loss, 400, 5)
    model = model_of(loss).fit(X, y)
    assert model.decrement_ <= model.gap_
    assert all(row["decrement"] <= row["gap"] for row in model.history_)
    last = model.history_[-1]
    assert (last["objective"], last["gap"]) == (model.objective_, model.gap_)


@pytest.mark.parametrize("loss", [*LOSSES, "huber"])
def test_the_checks_count_as_time(monkeypatch, loss):
    X, y = data_of("squared" if loss == "huber" else loss, 60, 3)
    module = sys.modules[type(model_of(loss)).__module__]
    check = module.check_features

    def slow(*arguments, **settings):
        time.sleep(0.05)
        return check(*arguments, **settings)

    monkeypatch.setattr(module, "check_features", slow)
    model = model_of(loss).fit(X, y)
    assert all(row["seconds"] >= 0.05 for row in model.history_)
    late, caught = caught_by(lambda: model_of(loss, max_time=0.04, tol=0.0).fit(X, y))
    assert late.stop_reason_ == StopReason.MAX_TIME.value
    assert "raise max_time or tol" in str(caught[0].message)


def test_the_proof_counts_as_time(monkeypatch):
    take(monkeypatch, "sampled-newton")
    X, y = data_of("logistic", 3000, 4)
    at = certificate_module.Certificate.at
    calls = []

    def slow(*arguments):
        calls.append(time.sleep(0.05))
        return at(*arguments)

    monkeypatch.setattr(certificate_module.Certificate, "at", slow)
    lines = []
    monkeypatch.setattr("provenglm.api.progress.show", lines.append)
    model = GLMClassifier(C=1e6, verbose=2).fit(X, y)
    assert calls
    before = model.history_[-2]["seconds"] if len(model.history_) > 1 else 0.0
    assert model.history_[-1]["seconds"] >= before + 0.05
    assert "GLMClassifier: proving the distance to the optimum" in lines
    assert f"(proven: at most {model.gap_:.1e})" in lines[-1]


@pytest.mark.parametrize("loss", [*LOSSES, "huber"])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
def test_the_same_call_gives_the_same_bits(monkeypatch, loss, l1_ratio):
    if loss == "huber" and l1_ratio:
        return
    if not l1_ratio:
        take(monkeypatch, "sampled-newton")
    monkeypatch.setattr(constants, "LEAST_ROWS", 100)
    X, y = data_of("squared" if loss == "huber" else loss, 3000, 6)
    fits = [
        model_of(loss, l1_ratio=l1_ratio, random_state=seed, tol=1e-3).fit(X, y)
        for seed in (None, None, 1)
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert fits[0].history_[-1]["objective"] == fits[1].history_[-1]["objective"]
    assert fits[2].objective_ == pytest.approx(fits[0].objective_, rel=1e-2)


def test_another_seed_is_another_way(monkeypatch):
    take(monkeypatch, "sampled-newton")
    X, y = data_of("logistic", 20_000, 10)
    fits = [GLMClassifier(tol=1e-4, random_state=seed).fit(X, y) for seed in (0, 1, 2)]
    assert (fits[0].coef_ != fits[1].coef_).any()
    assert (fits[1].coef_ != fits[2].coef_).any()


@pytest.mark.parametrize("weight", [1e-19, 1e-300])
def test_a_class_of_next_to_no_weight(weight):
    X, y = data_of("logistic", 60, 3)
    weights = np.where(y, 1.0, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GLMClassifier().fit(X, y, sample_weight=weights)
    assert np.isfinite(model.objective_)
    assert model.predict_proba(X)[:, 0].max() < 1e-6


def test_products_that_overflow_are_a_value_error(monkeypatch):
    monkeypatch.setattr(solve_module, "duality_gap", lambda *_: 0.0)
    monkeypatch.setattr(
        "provenglm.model.losses.Squared.value_at", lambda _, scores, __: scores + math.nan
    )
    with pytest.raises(
        ValueError, match=r"objective is nan in snapshot 0: .* look for a wrong one"
    ):
        GLMRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
