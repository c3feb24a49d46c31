"""Each loss by finite differences, by its conjugate, and by its minimum over the intercept."""

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, curvatures, residuals, values
from provenglm.model.losses import Huber, Logistic, Loss, Poisson, ScalarLoss, Softmax, Squared
from provenglm.model.tweedie import Gamma, Tweedie
from scipy.optimize import minimize, minimize_scalar

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def samples(loss, n=200, spread=3.0, seed=0):
    """Scores, (n, K), and targets."""
    rng = np.random.default_rng(seed)
    if isinstance(loss, Softmax):
        return rng.normal(size=(n, loss.outputs)) * spread, rng.integers(0, loss.outputs, n)
    scores = rng.normal(size=(n, 1)) * spread
    if isinstance(loss, Logistic):
        return scores, rng.integers(0, 2, n) * 1.0
    if isinstance(loss, Poisson):
        return scores, rng.poisson(2, n) * 1.0
    if isinstance(loss, Tweedie):
        target = rng.gamma(2, 1, n)
        return scores, target if isinstance(loss, Gamma) else target * (rng.random(n) < 0.7)
    return scores, rng.normal(size=n)


def moved(scores, k, by):
    """The scores of one output moved."""
    new = scores.copy()
    new[:, k] += by
    return new


def test_every_loss_has_a_formula():
    def below(kind):
        return {kind, *(deeper for one in kind.__subclasses__() for deeper in below(one))}

    public = {
        kind for kind in below(Loss) - {Loss, ScalarLoss} if kind.__module__.startswith("provenglm")
    }
    assert public == {type(loss) for loss in LOSSES}


@MANY
def test_as_in_a_textbook(loss):
    scores, target = samples(loss)
    np.testing.assert_allclose(
        loss.value(scores, target), values(loss, scores, target), rtol=1e-13, atol=1e-14
    )
    np.testing.assert_allclose(
        loss.residual(scores, target),
        residuals(loss, scores, target),
        rtol=1e-13,
        atol=1e-14,
    )
    diagonal = np.einsum("ikk->ik", curvatures(loss, scores, target))
    np.testing.assert_allclose(loss.curvature(scores, target), diagonal, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("loss", [Tweedie(1.001), Tweedie(1.5), Tweedie(1.99), Gamma()])
def test_targets_of_any_size(loss):
    target = np.repeat([1e-200, 1e-30, 1.0, 1e30], 5)
    scores = np.tile([-60.0, -1.0, 0.0, 30.0, 60.0], 4)[:, None]
    value, residual = loss.value_and_residual(scores, target)
    expected = values(loss, scores, target)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-15)  # it cancels
    expected = residuals(loss, scores, target)
    np.testing.assert_allclose(residual, expected, rtol=1e-12)
    bend = np.einsum("ikk->ik", curvatures(loss, scores, target))
    np.testing.assert_allclose(loss.curvature(scores, target), bend, rtol=1e-12)


@MANY
def test_residual_and_curvature_are_derivatives(loss):
    # Central differences: of order h^2 = 1e-10 by Taylor, and eps / h = 2e-11 by rounding.
    scores, target = samples(loss)
    h = 1e-5
    if isinstance(loss, Huber):
        # At the two kinks there is no second derivative.
        away = np.abs(np.abs(scores[:, 0] - target) - loss.epsilon) > 2 * h
        scores, target = scores[away], target[away]
    for k in range(loss.outputs):
        up, down = moved(scores, k, h), moved(scores, k, -h)
        slope = (loss.value(up, target) - loss.value(down, target)) / (2 * h)
        size = 1 + np.abs(loss.value(scores, target))
        assert np.all(np.abs(loss.residual(scores, target)[:, k] - slope) < 1e-9 * size)
        bend = (loss.residual(up, target) - loss.residual(down, target))[:, k] / (2 * h)
        assert np.all(np.abs(loss.curvature(scores, target)[:, k] - bend) < 1e-9 * size)


@MANY
def test_value_and_residual_are_the_two(loss):
    scores, target = samples(loss)
    value, residual = loss.value_and_residual(scores, target)
    assert np.array_equal(value, loss.value(scores, target))
    # Of the logistic loss in another way, which is faster by itself: two units of rounding off.
    assert np.allclose(residual, loss.residual(scores, target), rtol=0, atol=2**-52)


@MANY
def test_every_result_has_a_column_for_each_score(loss):
    scores, target = samples(loss, n=20)
    share, row, whole = np.full(20, 1 / 20), (20,), (20, loss.outputs)
    dual = loss.residual(scores, target)
    second, sure = (
        loss.second_derivative(scores, target, 0.3),
        loss.sure_second_derivative(scores, target),
    )
    assert loss.observed(target).shape == dual.shape == whole
    assert loss.inside(dual, target).shape == loss.curvature(scores, target).shape == whole
    assert second.diagonal.shape == sure.diagonal.shape == second.times(scores).shape == whole
    assert second.total(share).shape == second.inverse_of_total(share).shape == (loss.outputs,) * 2
    assert loss.conjugate(dual, target).shape == loss.fenchel(scores, dual, target).shape == row
    assert loss.value(scores, target).shape == loss.least_curvature(scores, target).shape == row
    shapes = [array.shape for array in loss.quadratic_step(scores, target, scores)]
    assert shapes == [whole, row, row]
    bound = loss.balanced(share @ dual, share @ loss.observed(target))
    assert bound.constant.shape == (loss.outputs,)
    assert isinstance(bound.terms, float) or bound.terms(scores, target).shape == row


@MANY
def test_nothing_is_written_to(loss):
    scores, target = samples(loss)
    for array in (scores, target):
        array.flags.writeable = False
    loss.value_and_residual(scores, target)
    loss.curvature(scores, target)
    loss.second_derivative(scores, target)
    dual = loss.residual(scores, target)
    dual.flags.writeable = False
    loss.conjugate(dual, target)


@MANY
def test_equality_of_fenchel_at_the_residual(loss):
    scores, target = samples(loss)
    dual = loss.residual(scores, target)
    sums = (dual * scores).sum(axis=1)
    np.testing.assert_allclose(
        loss.value(scores, target) + loss.conjugate(dual, target), sums, rtol=1e-11, atol=1e-12
    )


@MANY
def test_inequality_of_fenchel_elsewhere(loss):
    scores, target = samples(loss)
    others, _ = samples(loss, seed=1)
    dual = loss.residual(others, target)
    sums = (dual * scores).sum(axis=1)
    slack = loss.value(scores, target) + loss.conjugate(dual, target) - sums
    assert np.all(slack >= -1e-12 * (1 + np.abs(sums)))
    # And so that the test can fail: it is an inequality indeed.
    assert slack.max() > 0.1


@pytest.mark.parametrize(
    ("loss", "target", "inside"),
    [
        (Logistic(), 0.0, [0.01, 0.4, 0.99]),
        (Logistic(), 1.0, [-0.99, -0.4, -0.01]),
        (Squared(), 1.5, [-3.0, 0.0, 2.0]),
        (Huber(0.7), 1.5, [-0.69, 0.0, 0.3]),
        (Poisson(), 2.0, [-1.99, 0.0, 4.0]),
        (Poisson(), 0.0, [0.01, 1.0, 4.0]),
        (Tweedie(1.3), 2.0, [-4.0, 0.0, 3.0]),
        (Tweedie(1.3), 0.0, [0.01, 1.0, 4.0]),
        (Tweedie(1.02), 0.3, [-0.2, 2.0]),
        (Gamma(), 2.0, [-4.0, 0.0, 0.9]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_conjugate_is_the_greatest_difference(loss, target, inside):
    y = np.array([target])
    for dual in inside:
        found = minimize_scalar(
            lambda z, u=dual: float(loss.value(np.array([[z]]), y)[0] - u * z),
            bounds=(-30, 30),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert loss.conjugate(np.array([[dual]]), y)[0] == pytest.approx(-found.fun, abs=1e-8)


def test_conjugate_of_softmax_is_the_greatest_difference():
    rng = np.random.default_rng(0)
    loss = Softmax(3)
    for _ in range(5):
        y = rng.integers(0, 3, 1)
        dual = rng.dirichlet([1, 1, 1])[None] - np.eye(3)[y]
        found = minimize(
            lambda z, u=dual, c=y: float(loss.value(z[None], c)[0] - u[0] @ z),
            np.zeros(3),
            tol=1e-12,
        )
        assert loss.conjugate(dual, y)[0] == pytest.approx(-found.fun, abs=1e-8)


@pytest.mark.parametrize(
    ("loss", "target", "outside"),
    [
        (Logistic(), 0.0, [-0.1, 1.1]),
        (Logistic(), 1.0, [-1.1, 0.1]),
        (Huber(0.7), 0.0, [-0.8, 0.8]),
        (Poisson(), 2.0, [-2.1]),
        (Tweedie(1.3), 0.0, [-0.1]),
        (Gamma(), 2.0, [1.1]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_conjugate_is_infinite_outside_its_domain(loss, target, outside):
    for dual in outside:
        assert loss.conjugate(np.array([[dual]]), np.array([target]))[0] == np.inf


def test_conjugate_of_softmax_is_infinite_outside_the_simplex():
    y = np.array([0, 0])
    dual = np.array([[-1.1, 0.6, 0.5], [-0.5, 0.3, 0.3]])
    assert np.all(Softmax(3).conjugate(dual, y) == np.inf)


@pytest.mark.parametrize("score", [-800.0, -40.0, 0.0, 40.0, 800.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@MANY
def test_extreme_scores(loss, score, dtype):
    if isinstance(loss, Poisson | Tweedie) and abs(score) > 80:
        # See below: cut off.
        return
    target = np.array([0, 1, 1])
    if isinstance(loss, Softmax):
        scores = np.array([[score, 0, -score], [0, score, 0], [score, score, score]], dtype)
    else:
        scores, target = (
            np.array([[score], [score], [min(-score, 80)]], dtype),
            target.astype(dtype),
        )
        target += isinstance(loss, Gamma)
    value, residual = loss.value_and_residual(scores, target)
    exact = np.asarray(scores, np.float64)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(value, values(loss, exact, target), rtol=200 * eps, atol=200 * eps)
    np.testing.assert_allclose(
        residual, residuals(loss, exact, target), rtol=200 * eps, atol=200 * eps
    )
    assert np.all(np.isfinite(loss.curvature(scores, target)))
    assert np.all(loss.curvature(scores, target) >= 0)
    assert np.all(loss.second_derivative(scores, target).diagonal >= 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Poisson(), Tweedie(1.6), Gamma()], ids=lambda loss: loss.name)
def test_exponentials_stay_finite_at_any_score(loss, dtype):
    scores = np.array([[600.0], [800.0], [1e30], [-600.0], [-1e30]], dtype)
    target = np.ones(5, dtype)
    for array in (*loss.value_and_residual(scores, target), loss.curvature(scores, target)):
        assert np.all(np.isfinite(array))


@MANY
def test_float32_stays_float32(loss):
    # Otherwise a product with the features would convert those.
    scores, target = samples(loss)
    scores = scores.astype(np.float32)
    if not isinstance(loss, Softmax):
        target = target.astype(np.float32)
    value, residual = loss.value_and_residual(scores, target)
    assert value.dtype == residual.dtype == np.float32
    assert loss.residual(scores, target).dtype == np.float32
    assert loss.curvature(scores, target).dtype == np.float32
    assert residual.shape == scores.shape
    assert value.shape == (len(scores),)


@MANY
def test_null_scores_are_the_minimum(loss):
    rng = np.random.default_rng(0)
    _, target = samples(loss)
    weight = rng.random(len(target))
    best = loss.null_scores(target, weight)
    assert best.shape == (loss.outputs,)
    slope = weight @ loss.residual(np.tile(best, (len(target), 1)), target)
    assert np.abs(slope).max() < 1e-10 * weight.sum()
    if isinstance(loss, Softmax):
        assert best.sum() == pytest.approx(0, abs=1e-12)


def test_null_scores_of_huber_with_far_outliers():
    # Newton alone goes astray there: most targets are further than epsilon from each other.
    rng = np.random.default_rng(0)
    loss = Huber(0.01)
    target = rng.standard_cauchy(101) * 1e3
    weight = rng.random(101)
    best = loss.null_scores(target, weight)
    found = min(
        float(weight @ loss.value_at(np.full(101, z), target))
        for z in np.concatenate([target, target - 0.01, target + 0.01])
    )
    assert float(weight @ loss.value(np.full((101, 1), best), target)) <= found * (1 + 1e-12)


def test_null_scores_of_a_class_without_weight():
    # It has no finite one; what there is has to be finite and nearly 0 in probability.
    best = Softmax(3).null_scores(np.array([0, 1, 1, 2]), np.array([1.0, 1, 1, 0]))
    assert np.all(np.isfinite(best))
    assert Softmax(3).probability(best[None])[0, 2] < 1e-10


@MANY
def test_least(loss):
    _, target = samples(loss)
    least = loss.least(target)
    assert least.shape == target.shape
    grid = np.linspace(-40, 40, 20001)
    for y, floor in list(zip(target, least, strict=True))[:10]:
        if isinstance(loss, Softmax):
            scores = grid[:, None] * np.eye(loss.outputs)[y]
            of_grid = loss.value(scores, np.full(len(grid), y))
        else:
            of_grid = loss.value(grid[:, None], np.full(len(grid), y))
        assert of_grid.min() >= floor - 1e-12
        assert of_grid.min() == pytest.approx(floor, abs=1e-4)


@MANY
def test_curvature_of_a_hessian_is_the_curvature_or_stands_for_it(loss):
    scores, target = samples(loss)
    curvature = loss.curvature(scores, target)
    weight = loss.second_derivative(scores, target).diagonal
    assert weight.min() > 0
    np.testing.assert_array_equal(weight[curvature > 0], curvature[curvature > 0])


def test_curvature_of_a_hessian_of_huber_far_out():
    # No sample within epsilon: the parabola above the loss, min(1, epsilon / |r|).
    loss = Huber(0.5)
    scores, target = np.array([[100.0], [-50.0], [10.0]]), np.zeros(3)
    weight = loss.second_derivative(scores, target).diagonal
    np.testing.assert_allclose(weight, 0.5 / np.abs(scores))
