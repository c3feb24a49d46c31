import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from gluon_svrg.svrg import OptimalCoefficient, Snapshot

LR = 0.2


def clipped(pair):
    return float(np.clip((pair[0] + 1e-30) / (pair[1] + 1e-30), 0, 1))


def expected_run(problem, scope, window, epochs):
    """SVRG with the estimated coefficient in NumPy; the weights after each step, the last sums."""
    params = [p.copy() for p in problem.params]
    rate = float(np.float32(LR))
    trajectory = []
    for _ in range(epochs):
        snapshot = [p.copy() for p in params]
        mean = oracle.full_gradient(problem.gradient, snapshot, problem.batches)
        sums = np.zeros((len(params), 2))
        for x, y in problem.batches:
            total, b = [np.zeros_like(p) for p in params], len(x)
            here, there = (problem.gradient(point, x, y) for point in (params, snapshot))
            used = sums if scope == "parameter" else sums.sum(0, keepdims=True)
            alphas = [clipped(used[i % len(used)]) for i in range(len(params))]
            for i, (a, c, m) in enumerate(zip(here, there, mean, strict=True)):
                control = c - b * m
                total[i] += a - alphas[i] * control
                pair = [(control * (a - b * m)).sum(), (control * control).sum()]
                sums[i] = (1 - 1 / window) * sums[i] + np.array(pair) / b**2
            for p, g in zip(params, total, strict=True):
                p -= rate * float(np.float32(1 / len(x))) * g
            trajectory.append([p.copy() for p in params])
    return trajectory, sums


@pytest.mark.parametrize("scope", ["parameter", "network"])
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("contexts", [problems.ONE, problems.TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp"])
def test_every_step_is_that_of_numpy(kind, contexts, window, scope):
    problem = problems.make(kind, contexts, samples=40)
    expected, sums = expected_run(problem, scope, window, epochs=3)
    estimator = runs.estimator_of(problem, lr=LR, context=contexts)
    recorder = problems.Recorder()
    coefficient = OptimalCoefficient(scope, window)
    handler = gs.SVRGHandler(coefficient=coefficient)
    estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler, recorder])
    for ours, theirs in zip(recorder.weights, expected, strict=True):
        assert problems.relative_difference(ours, theirs) < 1e-11
    assert coefficient.value() == pytest.approx(clipped(sums.sum(0)), rel=1e-9)
    if scope == "parameter":
        names = list(problem.net.collect_params())
        by_name = dict(zip(sorted(names), coefficient.values(), strict=True))
        ours = [by_name[name] for name in names]
        assert ours == pytest.approx([clipped(s) for s in sums], rel=1e-9)
    else:
        assert coefficient.values() == pytest.approx([coefficient.value()] * len(sums))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_keeps_the_type_of_the_gradient(dtype):
    grads, there, full = (
        [mx.nd.array(values, dtype=dtype)] for values in ([1.0, 3.0], [0.5, 3.5], [0.25, 0.25])
    )
    coefficient = OptimalCoefficient()
    before = grads[0].asnumpy()
    coefficient.correct(0, grads, there, full, 2)
    assert grads[0].dtype == np.dtype(dtype)
    # The first batch has 1: a - (c - 2 mu).
    np.testing.assert_allclose(grads[0].asnumpy(), [1.0, 0.0], atol=1e-6)
    # ((0, 3) . (0.5, 2.5)) / ((0, 3) . (0, 3)), by samples.
    assert coefficient.value() == pytest.approx(7.5 / 9, rel=1e-3)
    again = [mx.nd.array(before, dtype=dtype)]
    coefficient.correct(0, again, there, full, 2)
    np.testing.assert_allclose(again[0].asnumpy(), [1, 3 - 3 * 7.5 / 9], rtol=2e-3)


def test_without_variance_at_the_snapshot_it_is_one():
    grads, there = [mx.nd.ones(3)], [mx.nd.ones(3)]
    coefficient = OptimalCoefficient()
    coefficient.correct(0, grads, there, [mx.nd.ones(3)], 1)
    assert coefficient.values() == [1.0]


@pytest.mark.parametrize(("sign", "expected"), [(-1, 0.0), (5, 1.0)])
def test_it_is_clamped(sign, expected):
    coefficient = OptimalCoefficient()
    there = [mx.nd.array([1.0, 2.0])]
    coefficient.correct(0, [sign * there[0]], there, [mx.nd.zeros(2)], 1)
    assert coefficient.value() == expected


def test_a_loss_scale_changes_nothing():
    """Gradients of losses times 4, and a table's of losses times 2."""
    a, c, m = mx.nd.array([1.0, 2.0]), mx.nd.array([0.5, 3.0]), mx.nd.array([0.1, 0.2])
    plain, scaled = OptimalCoefficient(), OptimalCoefficient()
    for _ in range(3):
        ours, theirs = [a.copy()], [4 * a]
        plain.correct(0, ours, [c], [m], 8)
        scaled.correct(0, theirs, [2 * c], [m], 8 * 4, 4 / 2)
        np.testing.assert_allclose(theirs[0].asnumpy(), 4 * ours[0].asnumpy(), rtol=1e-6)
    assert scaled.value() == pytest.approx(plain.value(), rel=1e-6)


def test_a_batch_is_corrected_with_what_those_before_it_gave():
    """So it stays unbiased: the coefficient does not depend on the batch."""
    first = [mx.nd.array([3.0, -1.0])], [mx.nd.array([2.0, 1.0])], [mx.nd.zeros(2)]
    coefficient = OptimalCoefficient()
    coefficient.correct(0, *first, 1)
    alpha = coefficient.value()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, c = rng.normal(size=(2, 2))
        corrected = [mx.nd.array(a)]
        other = OptimalCoefficient()
        other.correct(0, [mx.nd.array([3.0, -1.0])], first[1], first[2], 1)
        other.correct(0, corrected, [mx.nd.array(c)], first[2], 1)
        np.testing.assert_allclose(corrected[0].asnumpy(), a - alpha * c, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scope": "layer"}, ValueError, "scope must be 'parameter' or 'network', got 'layer'"),
        ({"window": 0}, ValueError, "window must be a positive integer, got 0"),
        ({"window": 2.5}, TypeError, "window must be .* integer, got 2.5"),
    ],
)
def test_bad_arguments_are_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        OptimalCoefficient(**arguments)


def test_by_hand():
    problem = problems.make("mlp", samples=40)
    expected, _ = expected_run(problem, "parameter", 16, epochs=2)
    backward = problems.backward_of(problem.net, problem.loss)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": LR})
    snapshot, batches = Snapshot(problem.net), problem.ndarrays()
    for _ in range(2):
        snapshot.take()
        trainer.set_control_variate(snapshot.full_gradient(backward, batches), OptimalCoefficient())
        for batch in batches:
            loss = backward(batch)
            trainer.correct(snapshot.gradient(backward, batch))
            trainer.step(len(loss))
    assert problems.relative_difference(problem.params, expected[-1]) < 1e-11
    assert 0 < trainer.coefficient < 1
    assert len(trainer.coefficients) == 4
    trainer.clear_control_variate()
    assert trainer.coefficient == 0
    assert trainer.optimal_coefficient is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_teaches_nothing(value):
    """MXNet's AMP leaves such a step out; the estimate would be NaN until the next snapshot."""
    coefficient = OptimalCoefficient()
    there, full = [mx.nd.array([2.0, 1.0])], [mx.nd.zeros(2)]
    coefficient.correct(0, [mx.nd.array([1.0, 1.0])], there, full, 1)
    known = coefficient.value()
    assert 0 < known < 1
    coefficient.correct(0, [mx.nd.array([value, 1.0])], there, full, 1)
    assert coefficient.value() == pytest.approx(known)


def test_few_rules_are_kept():
    coefficient = OptimalCoefficient()
    there, full = [mx.nd.array([2.0, 1.0])], [mx.nd.zeros(2)]
    for samples in range(1, 40):
        coefficient.correct(0, [mx.nd.ones(2)], there, full, samples)
    assert len(coefficient._rules) <= 16
