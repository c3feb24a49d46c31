"""GLMRegressorCV against loops over folds and alphas, and against scikit-learn's."""

import itertools
import warnings

import numpy as np
import pytest
from provenglm import Chunks, GLMRegressor, GLMRegressorCV
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.metrics import d2_tweedie_score, get_scorer, r2_score
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

ALPHAS = np.logspace(1, -4, 4)
POWERS = {"poisson": 1.0, "tweedie": 1.5, "gamma": 2.0}
LOSSES = ["squared", "huber", *POWERS]


@pytest.fixture(params=["together", "one by one"])
def way(request, solve_together):
    """Folds in one pass, or each by itself."""
    solve_together(request.param == "together")
    return request.param


def problem(loss, n=300, p=5, seed=0):
    """Features of unequal scales with offsets, targets of the loss, and weights with zeros."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    mean = np.exp(X @ rng.normal(size=p) / 3)
    y = {
        "squared": np.log(mean) + rng.normal(size=n),
        "huber": np.log(mean) + rng.standard_t(2, size=n),
        "poisson": rng.poisson(mean),
        "gamma": mean * rng.gamma(2, size=n),
        "tweedie": mean * rng.gamma(2, size=n) * (rng.random(n) < 0.8),
    }[loss]
    weight = rng.uniform(0.2, 3, n)
    weight[:7] = 0
    return (X + rng.normal(size=p)) * 10.0 ** rng.uniform(-1, 1, p), y, weight


def score_of(loss, y, prediction, weight):
    if loss in POWERS:
        return d2_tweedie_score(y, prediction, sample_weight=weight, power=POWERS[loss])
    return r2_score(y, prediction, sample_weight=weight)


@parametrize_with_checks(
    [GLMRegressorCV(alphas=3, cv=3), GLMRegressorCV("poisson", alphas=3, cv=3)]
)
@pytest.mark.slow
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_point_equals_an_independent_fit(way, loss, intercept, weighted):
    X, y, weight = problem(loss)
    weight = weight if weighted else None
    cv = ShuffleSplit(2, test_size=0.3, random_state=0)
    kwargs = {"fit_intercept": intercept, "tol": 1e-12}
    model = GLMRegressorCV(loss, alphas=ALPHAS, cv=cv, **kwargs).fit(X, y, weight)
    own = np.ones(len(y)) if weight is None else weight
    scores = np.empty((2, len(ALPHAS)))
    for (f, (train, test)), (k, alpha) in itertools.product(
        enumerate(cv.split(X)), enumerate(ALPHAS)
    ):
        one = GLMRegressor(loss, alpha=alpha, **kwargs).fit(X[train], y[train], own[train])
        point = model.coefs_paths_[f, 0, k, 0]
        wanted = np.append(one.coef_, one.intercept_) if intercept else one.coef_
        np.testing.assert_allclose(point, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
        scores[f, k] = score_of(loss, y[test], one.predict(X[test]), own[test])
    np.testing.assert_allclose(model.scores_[:, 0], scores, rtol=0, atol=1e-5)
    assert model.alpha_ == ALPHAS[scores.mean(axis=0).argmax()]
    last = GLMRegressor(loss, alpha=model.alpha_, **kwargs).fit(X, y, own)
    np.testing.assert_allclose(model.predict(X), last.predict(X), rtol=1e-5)
    assert model.objective_ == pytest.approx(last.objective_, rel=1e-9)
    assert hasattr(model, "scale_") == (loss == "huber")
    assert model.score(X, y, weight) == pytest.approx(last.score(X, y, weight), abs=1e-6)


def peer_of(loss, alpha, total):
    if loss == "squared":
        return Ridge(alpha=alpha * total)
    if loss == "huber":
        return HuberRegressor(alpha=alpha * total, tol=1e-8, max_iter=10_000)
    kind = {"poisson": PoissonRegressor, "gamma": GammaRegressor}[loss]
    return kind(alpha=alpha, solver="newton-cholesky", tol=1e-10)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "gamma"])
def test_scores_are_those_of_scikit_learns_regressors(loss):
    X, y, _ = problem(loss)
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # else their solvers do not arrive
    model = GLMRegressorCV(loss, alphas=ALPHAS, cv=3, tol=1e-10).fit(X, y)
    for k, alpha in enumerate(ALPHAS):
        scores = cross_val_score(peer_of(loss, alpha, 200), X, y, cv=3)
        np.testing.assert_allclose(model.scores_[:, 0, k], scores, rtol=0, atol=1e-5)
    assert model.alpha_ == ALPHAS[model.scores_.mean(axis=(0, 1)).argmax()]


def test_it_is_elastic_net_cv():
    X, y, _ = problem("squared")
    cv, ratios = KFold(3, shuffle=True, random_state=0), [0.5, 1.0]
    # The number of them has another name before scikit-learn 1.7.
    number = "n_alphas" if ElasticNetCV().get_params().get("n_alphas") == 100 else "alphas"
    other = ElasticNetCV(l1_ratio=ratios, cv=cv, tol=1e-10, max_iter=100_000, **{number: 6})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(X, y)
    kwargs = {"cv": cv, "scoring": "neg_mean_squared_error", "tol": 1e-11}
    model = GLMRegressorCV(alphas=6, l1_ratios=ratios, **kwargs).fit(X, y)
    np.testing.assert_allclose(model.alphas_, other.alphas_, rtol=1e-9)
    of_folds = -np.moveaxis(other.mse_path_, 2, 0)
    np.testing.assert_allclose(model.scores_, of_folds, rtol=1e-5)
    assert model.alpha_ == pytest.approx(other.alpha_)
    assert model.l1_ratio_ == other.l1_ratio_
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-5 * np.abs(other.coef_).max())
    assert (
        model.coefs_paths_[:, 1, 0, 0, :-1] == 0
    ).mean() > 0.5  # the greatest leaves next to none
    one = GLMRegressorCV(alphas=6, l1_ratios=[1.0], **kwargs).fit(X, y)
    np.testing.assert_allclose(one.alphas_, model.alphas_[1])


def test_it_is_ridge_cv():
    X, y, weight = problem("squared", n=297)
    splits = list(KFold(3).split(X))
    other = RidgeCV(alphas=297 * ALPHAS, cv=splits, scoring="r2").fit(X, y)
    # Ridge's penalty is beside the sum of a fold's 198 rows, this one beside their mean.
    model = GLMRegressorCV(alphas=297 / 198 * ALPHAS, cv=splits, tol=1e-10).fit(X, y)
    assert model.alpha_ * 198 == pytest.approx(other.alpha_)
    assert model.scores_.mean(axis=(0, 1)).max() == pytest.approx(other.best_score_, abs=1e-8)
    numbered = GLMRegressorCV(alphas=3, cv=3).fit(X, y, weight)
    np.testing.assert_allclose(numbered.alphas_ * weight.sum(), [1e4, 1.0, 1e-4])


def test_the_path_has_every_order_and_no_penalty(way):
    X, y, _ = problem("poisson")
    kwargs = {"cv": 3, "tol": 1e-11}
    model = GLMRegressorCV("poisson", alphas=[0.1, 0.0, 1.0], **kwargs).fit(X, y)
    ordered = GLMRegressorCV("poisson", alphas=[1.0, 0.1, 0.0], **kwargs).fit(X, y)
    np.testing.assert_allclose(
        model.coefs_paths_, ordered.coefs_paths_[:, :, [1, 2, 0]], rtol=0, atol=1e-5
    )
    train = next(KFold(3).split(X))[0]
    one = GLMRegressor("poisson", alpha=0, tol=1e-11).fit(X[train], y[train])
    np.testing.assert_allclose(model.coefs_paths_[0, 0, 1, 0, :-1], one.coef_, rtol=1e-4)


@pytest.mark.parametrize("loss", ["squared", "tweedie"])
def test_every_gap_is_a_bound_of_the_distance(way, loss):
    X, y, _ = problem(loss)
    model = GLMRegressorCV(loss, alphas=ALPHAS, cv=3, tol=1e-3).fit(X, y)
    for (f, (train, _)), (k, alpha) in itertools.product(
        enumerate(KFold(3).split(X)), enumerate(ALPHAS)
    ):
        exact = GLMRegressor(loss, alpha=alpha, tol=1e-12).fit(X[train], y[train])
        *coef, intercept = model.coefs_paths_[f, 0, k, 0]
        scores = X[train] @ coef + intercept
        value = exact._loss().value_at(scores, y[train]).mean() + alpha / 2 * np.dot(coef, coef)
        above = value - exact.objective_
        assert -1e-12 <= above <= model.gaps_[f, 0, k] + 1e-12
    assert model.gaps_.min() > 0


@pytest.mark.parametrize("kind", ["float32", "csr", "chunks", "jobs"])
@pytest.mark.parametrize("loss", ["squared", "huber", "tweedie"])
def test_rows_of_any_kind(way, loss, kind):
    X, y, weight = problem(loss)
    X = np.rint(20 * X)
    kwargs = {"alphas": [1.0, 0.01], "cv": 3, "tol": 1e-11, "random_state": 0}
    plain = GLMRegressorCV(loss, **kwargs).fit(X, y, weight)
    form = {"float32": X.astype(np.float32), "csr": csr_array(X), "jobs": X}.get(kind)
    if kind == "chunks":
        form, y = Chunks([X[:100], X[100:]]), [y[:100], y[100:]]
    model = GLMRegressorCV(loss, **kwargs, n_jobs=2 if kind == "jobs" else None)
    model.fit(form, y, weight)
    np.testing.assert_allclose(model.scores_, plain.scores_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.predict(form), plain.predict(X), rtol=1e-4, atol=1e-4)


def test_a_scorer_sees_the_regressor():
    X, y, _ = problem("tweedie")

    def scorer(estimator, X, y):
        return estimator.score(X, y)

    own, given = (
        GLMRegressorCV("tweedie", alphas=ALPHAS, power=1.2, cv=3, scoring=scoring).fit(X, y)
        for scoring in (None, scorer)
    )
    np.testing.assert_allclose(given.scores_, own.scores_, rtol=1e-9)
    named = GLMRegressorCV(alphas=ALPHAS, cv=3, scoring="neg_mean_absolute_error").fit(X, y)
    assert named.score(X, y) == get_scorer("neg_mean_absolute_error")(named, X, y)


def test_a_prediction_beyond_float64_loses_and_does_not_end_the_search():
    X, y, _ = problem("poisson")
    X[0] = 1e6  # in the test rows of the first fold alone
    model = GLMRegressorCV("poisson", alphas=[1e-6, 1e6], cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model.fit(X, y)
    assert model.alpha_ == 1e6


def test_covariance_is_that_of_the_chosen_alpha():
    X, y, weight = problem("gamma")
    chosen = GLMRegressorCV("gamma", alphas=ALPHAS, cv=3, tol=1e-10).fit(X, y, weight)
    one = GLMRegressor("gamma", alpha=chosen.alpha_, tol=1e-10).fit(X, y, weight)
    np.testing.assert_allclose(
        chosen.standard_errors(X, y, weight), one.standard_errors(X, y, weight), rtol=1e-5
    )


def test_without_refit_it_is_the_mean_of_the_best_points():
    X, y, _ = problem("huber", n=120)
    model = GLMRegressorCV("huber", alphas=[1.0, 0.1], cv=4).fit(X, y)
    assert model.scale_ > 0
    model.set_params(refit=False).fit(X, y)
    best = model.scores_[:, 0].argmax(axis=1)
    points = [model.coefs_paths_[fold, 0, k, 0] for fold, k in enumerate(best)]
    np.testing.assert_array_equal(model.coef_, np.mean(points, axis=0)[:-1])
    assert model.alphas_[best].mean() == model.alpha_
    assert not {"gap_", "scale_"} & set(vars(model))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"alphas": []}, ValueError, "alphas must have at least one alpha"),
        ({"alphas": [1.0, -2.0]}, ValueError, "finite numbers of at least 0, got -2"),
        ({"alphas": [np.inf]}, ValueError, "finite numbers of at least 0, got inf"),
        ({"alphas": [np.nan]}, ValueError, "finite numbers of at least 0, got nan"),
        ({"alphas": 0}, ValueError, "alphas must be a positive integer, got 0"),
        ({"alphas": 0.5}, TypeError, "alphas must be a number of alphas or a list of them"),
        ({"loss": "absolute"}, ValueError, "loss must be one of"),
        ({"loss": "huber", "l1_ratios": [0.0, 0.5]}, ValueError, "l1_ratio is 0.5, and loss='hub"),
        ({"loss": "gamma"}, ValueError, "loss='gamma' needs numbers above 0"),
        ({"loss": "poisson", "cv": KFold(2)}, ValueError, "in the training rows of fold 1, y is 0"),
        ({"cv": 60}, ValueError, "all scores of the path are NaN"),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_bad_arguments_are_refused_in_a_sentence(change, error, words):
    X, y, _ = problem("squared", n=60)
    y = np.where(np.arange(60) < 30, 0.0, np.abs(y))
    with pytest.raises(error, match=words):
        GLMRegressorCV(**change).fit(X, y)


def test_folds_without_a_weight_are_refused():
    X, y, _ = problem("squared", n=60)
    last = (np.arange(60) >= 40).astype(float)
    with pytest.raises(ValueError, match="the training rows of fold 2 all have sample_weight 0"):
        GLMRegressorCV(cv=KFold(3)).fit(X, y, last)
    with pytest.raises(ValueError, match="whose test rows all have sample_weight 0"):
        GLMRegressorCV(cv=KFold(3)).fit(X, y, 1 - last)


def test_what_is_not_reached_is_warned_of_once(way):
    X, y, _ = problem("gamma")
    with pytest.warns(ConvergenceWarning) as seen:
        GLMRegressorCV("gamma", alphas=[1.0, 1e-4], max_iter=1, tol=1e-14).fit(X, y)
    assert "alpha=" in str(seen[0].message)
    assert ["of the path" in str(one.message) for one in seen] == [True, False]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_path_on_all_rows_is_a_fit_for_each_alpha(loss, weighted):
    X, y, weight = problem(loss)
    given = (X, y, weight if weighted else None)
    ratios = [0.0] if loss == "huber" else [0.0, 0.7]
    search = GLMRegressorCV(loss, alphas=ALPHAS, l1_ratios=ratios, tol=1e-12)
    strengths, coefs, gaps = search.path(*given)
    assert not hasattr(search, "coef_")
    np.testing.assert_array_equal(strengths, np.tile(ALPHAS, (len(ratios), 1)))
    for (r, ratio), (k, alpha) in itertools.product(enumerate(ratios), enumerate(ALPHAS)):
        model = GLMRegressor(loss, alpha=alpha, l1_ratio=ratio, tol=1e-12).fit(*given)
        found = coefs[r, k]
        np.testing.assert_allclose(found[0, :-1], model.coef_, rtol=1e-4, atol=1e-7)
        assert found[0, -1] == pytest.approx(model.intercept_, rel=1e-4, abs=1e-6)
        assert 0 <= gaps[r, k] <= 1e-11 * abs(model.objective_)


def test_the_one_standard_error_rule():
    X, y, _ = problem("poisson", n=80, p=12)
    search = GLMRegressorCV("poisson", alphas=30, l1_ratios=[0.5, 1.0], cv=8)
    best = search.fit(X, y)
    r = int(np.flatnonzero(best.l1_ratios_ == best.l1_ratio_)[0])
    scores, alphas = best.scores_[:, r], best.alphas_[r]
    mean, error = scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(8)
    top = mean.argmax()
    expected = max(a for a, m in zip(alphas, mean, strict=True) if m >= mean[top] - error[top])
    chosen = search.set_params(refit="one-standard-error").fit(X, y)
    assert alphas[top] < expected == chosen.alpha_
    assert chosen.l1_ratio_ == best.l1_ratios_[r]
    model = GLMRegressor("poisson", alpha=expected, l1_ratio=chosen.l1_ratio_).fit(X, y)
    np.testing.assert_allclose(chosen.coef_, model.coef_, atol=1e-4)


def test_one_standard_error_needs_two_folds():
    X, y, _ = problem("squared")
    search = GLMRegressorCV(cv=ShuffleSplit(1), refit="one-standard-error")
    with pytest.raises(ValueError, match="needs at least two folds, and cv gives one"):
        search.fit(X, y)
