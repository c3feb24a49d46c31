"""The evidence's methods take the steps of their papers: NumPy's after every step."""

from types import SimpleNamespace

import evidence_convex
import evidence_direction
import evidence_grid as grid
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import recursive_methods as methods
from mxnet import gluon

# The learning rate is one that float32 has: SGD's kernel rounds it.
N, WIDTH, CLASSES, RATE = 64, 5, 3, 0.25


def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, WIDTH)), rng.integers(0, CLASSES, N).astype("float64")


def loader_of(split, batch_size, seed=None):
    order = np.arange(N) if seed is None else np.random.default_rng(seed).permutation(N)
    x, y = (np.resize(array[order], (max(N, batch_size), *array.shape[1:])) for array in split)
    return [
        tuple(mx.nd.array(a[i : i + batch_size], dtype="float64") for a in (x, y))
        for i in range(0, len(x), batch_size)
    ]


def gradient(weight, batch):
    x, y = (array.asnumpy() for array in batch)
    scores = x @ weight.T
    errors = np.exp(scores - scores.max(axis=1, keepdims=True))
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(len(x)), y.astype(int)] -= 1
    return errors.T @ x / len(x)


def method_of(kind, decay=0.0, **attributes):
    """Return the method on a linear model of float64."""
    small = type(kind.__name__, (kind,), {"batch_size": 8, **attributes})
    gs.seed_everything(3)
    net = gluon.nn.Dense(CLASSES, use_bias=False, in_units=WIDTH)
    net.cast("float64")
    net.initialize(mx.init.Normal(0.5))
    return small(methods.Setup(net, rows(), 0, loader_of, decay))


def follow(method, number=20, rate=RATE):
    """Yield weight, batch, and the weight after its step."""
    weight = next(iter(method.net.collect_params().values())).data
    for _, batch in zip(range(number), method.batches(), strict=False):
        before = weight().asnumpy()
        method.step(batch, rate)
        yield before, batch, weight().asnumpy()


def test_qhadamw():
    method = method_of(methods.QH, decay=0.01)
    m = v = 0.0
    beta1, beta2, gamma = 0.95, 0.99, methods.GAMMA
    for t, (before, batch, after) in enumerate(follow(method, rate=0.01), 1):
        g = gradient(before, batch)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        along = (1 - gamma) * m / (1 - beta1**t) + gamma * g
        own = before - 0.01 * (along / (np.sqrt(v / (1 - beta2**t)) + 1e-8) + 0.01 * before)
        np.testing.assert_allclose(after, own, rtol=0, atol=1e-12)
    assert method.evaluations == 20 * 8


@pytest.mark.parametrize("kind", [methods.Storm, methods.StormTenth])
def test_storm(kind):
    method, d, last = method_of(kind), None, None
    for before, batch, after in follow(method):
        g = gradient(before, batch)
        d = g if d is None else g + (1 - kind.a) * (d - gradient(last, batch))
        np.testing.assert_allclose(after, before - RATE * d, rtol=0, atol=1e-12)
        last = before
    assert method.evaluations == 20 * 16


@pytest.mark.parametrize(("kind", "period"), [(methods.Sarah, 8), (methods.HalfSarah, 5)])
def test_sarah(kind, period):
    method, everything = method_of(kind), loader_of(rows(), N)[0]
    for number, (before, batch, after) in enumerate(follow(method)):
        if number % period == 0:
            d = gradient(before, everything)
        else:
            d = gradient(before, batch) + d - gradient(last, batch)  # noqa: F821
        np.testing.assert_allclose(after, before - RATE * d, rtol=0, atol=1e-12)
        last = before  # noqa: F841
    begins = -(-20 // period)
    assert method.evaluations == begins * N + (20 - begins) * 16
    if kind is methods.HalfSarah:  # as much of a run of 8 passes
        assert method.evaluations == 8 * N
        assert method.done(8 * N) == 1


@pytest.mark.slow
def test_page():
    method = method_of(methods.Page)
    large, coin = method._batches(64, 1), np.random.default_rng(0)
    begins = 0
    for number, (before, batch, after) in enumerate(follow(method, 60)):
        if not number or coin.random() < 8 / 72:
            begins += 1
            d = gradient(before, next(large))
        else:
            d = d + gradient(before, batch) - gradient(last, batch)  # noqa: F821
        np.testing.assert_allclose(after, before - RATE * d, rtol=0, atol=1e-12)
        last = before  # noqa: F841
    assert begins > 2
    assert method.evaluations == 64 * begins + 16 * (60 - begins)


def test_exact_mars():
    method = method_of(methods.ExactMARS, decay=0.01)
    beta1, beta2 = 0.95, 0.99
    change = methods.GAMMA * beta1 / (1 - beta1)
    m, v, last = 0.0, 0.0, None
    for t, (before, batch, after) in enumerate(follow(method, rate=0.01), 1):
        g = gradient(before, batch)
        c = g if last is None else g + change * (g - gradient(last, batch))
        c = c / max(1, np.linalg.norm(c))
        m, v = beta1 * m + (1 - beta1) * c, beta2 * v + (1 - beta2) * c**2
        along = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
        own = before - 0.01 * (along + 0.01 * before)
        np.testing.assert_allclose(after, own, rtol=0, atol=1e-10)
        last = before
    assert method.evaluations == 20 * 16


@pytest.mark.parametrize("kind", [evidence_convex.SVRG, evidence_convex.SVRGWithTable])
def test_svrg(kind):
    method, everything = method_of(kind), loader_of(rows(), N)[0]
    batches = loader_of(rows(), 8)
    for number, (before, which, after) in enumerate(follow(method)):
        if number % 8 == 0:
            anchor, mu = before, gradient(before, everything)
        batch = batches[which]
        d = gradient(before, batch) - gradient(anchor, batch) + mu
        np.testing.assert_allclose(after, before - RATE * d, rtol=0, atol=1e-12)
    assert method.evaluations == 3 * N + 20 * 8 * (1 if method.has_table else 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [evidence_convex.LooplessSVRG, evidence_convex.SCSG])
def test_anchors_of_a_random_length(kind, monkeypatch):
    monkeypatch.setattr(evidence_convex, "SAMPLES", N)
    method, everything = method_of(kind), loader_of(rows(), N)[0]
    random = np.random.default_rng(0)
    large = method._batches(N // 4, 1)
    anchors = left = 0
    for number, (before, batch, after) in enumerate(follow(method, 60)):
        if kind is evidence_convex.SCSG:
            begins = not left
            left = (random.geometric(8 / (N // 4)) if begins else left) - 1
        else:
            begins = not number or random.random() < 8 / N
        if begins:
            anchors += 1
            anchor = before
            mu = gradient(before, next(large) if kind is evidence_convex.SCSG else everything)
        d = gradient(before, batch) - gradient(anchor, batch) + mu
        np.testing.assert_allclose(after, before - RATE * d, rtol=0, atol=1e-12)
    assert anchors > 3
    cost = N // 4 if kind is evidence_convex.SCSG else N
    assert method.evaluations == cost * anchors + 60 * 16


def test_the_estimators():
    rng = np.random.default_rng(0)
    steps = [[{"w": mx.nd.array(rng.standard_normal(4), dtype="float64")} for _ in range(2)]
             for _ in range(6)]  # fmt: skip
    made = {name: make() for name, make in evidence_direction.ESTIMATORS.items()}
    last, plain, changed, approximate = None, 0.0, 0.0, 0.0
    change = evidence_direction.CHANGE
    for number, (here, before) in enumerate(steps):
        g, p = here["w"].asnumpy(), (before if number else here)["w"].asnumpy()
        q = g if last is None else last
        for estimator in made.values():
            estimator.add(here, before if number else here, {"w": mx.nd.array(q, dtype="float64")})
        storm = g if last is None else g + 0.7 * (storm - p)  # noqa: F821
        plain = 0.9 * plain + 0.1 * g
        changed = 0.95 * changed + 0.05 * (g + change * (g - p))
        approximate = 0.95 * approximate + 0.05 * (g + change * (g - q))
        last, t = g, number + 1
        for name, own in (
            ("one batch", g),
            ("average 0.9", plain / (1 - 0.9**t)),
            ("STORM 0.3", storm),
            ("exact MARS", changed / (1 - 0.95**t)),
            ("gs.MARS", approximate / (1 - 0.95**t)),
        ):
            found = made[name].direction()["w"].asnumpy()
            np.testing.assert_allclose(found, own, rtol=0, atol=1e-12)


def test_the_path_compares_with_the_gradient_where_the_direction_was_taken(monkeypatch):
    monkeypatch.setattr(methods.NAG, "batch_size", 8)
    gs.seed_everything(3)
    net = gluon.nn.Dense(CLASSES, use_bias=False, in_units=WIDTH)
    net.cast("float64")
    net.initialize(mx.init.Normal(0.5))
    path = evidence_direction.Path(methods.Setup(net, rows(), 0, loader_of), 10)
    weights = [net.weight.data().asnumpy()]
    for _ in range(3):
        path.step()
        weights.append(net.weight.data().asnumpy())
    errors = path.errors()
    assert path.errors() == errors
    batches = loader_of(rows(), 8)
    here, before = ([gradient(w, b) for b in batches] for w in (weights[2], weights[1]))
    full, variance = np.mean(here, axis=0), np.var(here, axis=0, ddof=1).sum()
    drawn = [batch for _, batch in zip(range(3), methods.NAG.batches(path._method), strict=False)]
    error = gradient(weights[2], drawn[2]) - full
    assert errors["one batch"] == pytest.approx((error**2).sum() / variance, rel=1e-9)
    assert errors["gradient"] == pytest.approx((full**2).sum() / variance, rel=1e-9)
    changes = np.subtract(here, before)
    ratio = np.var(changes, axis=0, ddof=1).sum() / variance
    assert errors["change"] == pytest.approx(ratio, rel=1e-6)


def test_the_grid_grows_until_the_best_is_inside():
    found = {}
    while (rate := grid.missing_rate(found, 0.1)) is not None:
        found = dict(sorted({**found, rate: abs(rate - 0.75)}.items()))
    assert list(found) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert grid.cell(found) == "0.8 (0.05, 0.1, 0.2, 0.4, 1.6)"
    # All diverge: a limit.
    found = {}
    while (rate := grid.missing_rate(found, 0.1)) is not None:
        found = dict(sorted({**found, rate: float("inf")}.items()))
    assert len(found) == grid.MOST


def test_the_gradient_of_the_convex_problem(monkeypatch):
    small = SimpleNamespace(rows=rows()[0], labels=rows()[1].astype(int))
    monkeypatch.setattr(evidence_convex, "_exact_problem", lambda: (small.rows, small.labels))
    weight = np.random.default_rng(0).standard_normal((10, WIDTH)).ravel()
    _, slope = evidence_convex.objective(weight)
    for i in range(0, len(weight), 7):
        step = np.zeros_like(weight)
        step[i] = 1e-6
        ends = [evidence_convex.objective(weight + sign * step)[0] for sign in (1, -1)]
        assert slope[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)
