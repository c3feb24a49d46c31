"""STORM, SARAH, PAGE and exact MARS as docs/howto/recursive.md has them, against NumPy.

The network has dropout and BatchNorm: with another mask at the weights before, or with running
statistics that are counted twice, every one of these tests would fail, as two of them show.
"""

import contextlib
import io
import re
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle
import oracle
import pytest
from mxnet import autograd
from mxnet.gluon import nn

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "recursive.md"
HIDDEN, DROP, EPSILON = 6, 0.3, 1e-5
KEPT = float(np.float32(0.9))  # of running statistics; the kernel has it in float32
LR, MOMENTUM = 0.2, 0.9


@pytest.fixture(scope="module")
def page():
    """The names that the page's code makes; its functions look up net and trainer there."""
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    )
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, PAGE, "exec"), names)
    return names


class Recording(gs.SVRGTrainer):
    """Keeps all parameters and running statistics after each step."""

    def step(self, batch_size, ignore_stale_grad=False):
        super().step(batch_size, ignore_stale_grad)
        self.trajectory = [*getattr(self, "trajectory", []), all_values(self.net)]


def all_values(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]


def prepare(page, optimizer="sgd", **arguments):
    """Put a small network of float64 into the page; return its values."""
    net = nn.HybridSequential()
    net.add(nn.Dense(HIDDEN, in_units=5), nn.BatchNorm(in_channels=HIDDEN, epsilon=EPSILON))
    net.add(nn.Activation("relu"), nn.Dropout(DROP), nn.Dense(3, in_units=HIDDEN))
    net.cast("float64")
    mx.random.seed(5)
    net.initialize(mx.init.Normal(0.7))
    arguments = arguments or {"learning_rate": LR, "momentum": MOMENTUM, "wd": 0.01}
    page["net"], page["snapshot"] = net, gs.Snapshot(net)
    page["trainer"] = Recording(net.collect_params(), optimizer, arguments)
    page["trainer"].net = net
    return all_values(net)


def batches_of(sizes, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [(rng.normal(size=(n, 5)), rng.integers(0, 3, n).astype(float)) for n in sizes]
    return [tuple(mx.nd.array(part, dtype="float64") for part in batch) for batch in arrays]


def masks_of(seed, batches):
    """The dropout masks of these batches, drawn one after the other."""
    mx.random.seed(seed)
    with autograd.train_mode():
        ones = [mx.nd.ones((len(x), HIDDEN), dtype="float64") for x, _ in batches]
        return [mx.nd.Dropout(one, DROP).asnumpy() for one in ones]


class Numpy:
    """The same network: parameters, running statistics, sums of gradients, all by hand."""

    def __init__(self, values):
        self.params = [values[i].copy() for i in (0, 1, 2, 3, 6, 7)]
        self.running = [values[4].copy(), values[5].copy()]

    def gradient(self, batch, mask, params=None, counts=0):
        """The sums at `params`, by default its own; `counts`: how often statistics are counted."""
        w1, b1, gamma, beta, w2, b2 = self.params if params is None else params
        x, y = (part.asnumpy() for part in batch)
        a = x @ w1.T + b1
        root = np.sqrt(a.var(axis=0) + EPSILON)
        normal = (a - a.mean(axis=0)) / root
        h = gamma * normal + beta
        z = np.maximum(h, 0) * mask
        error = oracle.softmax(z @ w2.T + b2) - np.eye(3)[y.astype(int)]
        back = (error @ w2) * mask * (h > 0)
        inner = gamma * back
        da = inner - inner.mean(axis=0) - normal * (inner * normal).mean(axis=0)
        da = da / root
        for _ in range(counts):
            mean, var = self.running
            self.running = [
                KEPT * mean + (1 - KEPT) * a.mean(axis=0),
                KEPT * var + (1 - KEPT) * a.var(axis=0),
            ]
        gradients = [da.T @ x, da.sum(axis=0), (back * normal).sum(axis=0), back.sum(axis=0)]
        return [*gradients, error.T @ z, error.sum(axis=0)]

    def mean(self, batches, seed):
        """The mean gradient over these batches."""
        pairs = zip(batches, masks_of(seed, batches), strict=True)
        sums = [sum(parts) for parts in zip(*(self.gradient(*pair) for pair in pairs), strict=True)]
        return [total / sum(len(x) for x, _ in batches) for total in sums]

    def values(self):
        """In the order of all_values."""
        return [*self.params[:4], *self.running, *self.params[4:]]


class Recursion:
    """d = g - alpha (p - d), by hand."""

    def __init__(self, values, wrong=""):
        self.net, self.wrong, self.trajectory = Numpy(values), wrong, []
        self.velocity = [np.zeros_like(param) for param in self.net.params]

    def begin(self, batches, alpha, seed):
        self.before = [param.copy() for param in self.net.params]
        self.d, self.alpha = self.net.mean(batches, seed), alpha

    def step(self, batch, seed):
        (mask,), samples = masks_of(seed, [batch]), len(batch[0])
        grads = self.net.gradient(batch, mask, counts=1 + (self.wrong == "counts"))
        if self.wrong == "mask":
            (mask,) = masks_of(seed + 1000, [batch])
        past = self.net.gradient(batch, mask, self.before)
        self.d = [
            (g - self.alpha * (p - samples * d)) / samples
            for g, p, d in zip(grads, past, self.d, strict=True)
        ]
        self.before = [param.copy() for param in self.net.params]
        sums = [samples * d for d in self.d]
        oracle.SGD(LR, MOMENTUM, 0.01).step(self.net.params, self.velocity, sums, samples)
        self.trajectory.append([value.copy() for value in self.net.values()])


def difference(ours, theirs):
    """The largest difference of two runs, relative to the largest value, at any step."""
    assert len(ours) == len(theirs)
    return max(
        np.abs(a - b).max() / max(1.0, np.abs(b).max())
        for step, other in zip(ours, theirs, strict=True)
        for a, b in zip(step, other, strict=True)
    )


SIZES = [8, 8, 8, 5] * 3


def storm_by_hand(values, batches, a, wrong=""):
    run = Recursion(values, wrong)
    run.begin(batches[:1], 1 - a, seed=0)
    for number, batch in enumerate(batches):
        run.step(batch, seed=number)
    return run.trajectory


@pytest.mark.full
@pytest.mark.parametrize("a", [0.1, 0.5])
@pytest.mark.parametrize("hybridize", [False, True])
def test_storm_is_numpys_after_every_step(page, a, hybridize):
    batches, values = batches_of(SIZES), prepare(page)
    if hybridize:
        page["net"].hybridize(static_alloc=True)
    page["storm"](batches, a)
    by_hand = storm_by_hand(values, batches, a)
    assert difference(page["trainer"].trajectory, by_hand) < 1e-10
    # The first step is that of the plain gradient.
    (mask,) = masks_of(0, batches[:1])
    net = Numpy(values)
    grads, velocity = net.gradient(batches[0], mask), [np.zeros_like(p) for p in net.params]
    oracle.SGD(LR, MOMENTUM, 0.01).step(net.params, velocity, grads, 8)
    assert difference([by_hand[0][:4]], [net.params[:4]]) < 1e-12


@pytest.mark.parametrize("wrong", ["mask", "counts"])
def test_a_wrong_mask_and_a_second_count_of_the_statistics_are_seen(page, wrong):
    batches, values = batches_of(SIZES), prepare(page)
    page["storm"](batches, 0.1)
    assert difference(page["trainer"].trajectory, storm_by_hand(values, batches, 0.1, wrong)) > 1e-3


def test_storm_with_a_1_is_the_plain_optimizer_bit_for_bit(page):
    batches = batches_of(SIZES)
    prepare(page)
    page["storm"](batches, 1.0)
    found = page["trainer"].trajectory
    prepare(page)
    for number, batch in enumerate(batches):
        mx.random.seed(number)
        page["trainer"].step(len(page["backward"](batch)))
    plain = page["trainer"].trajectory
    assert difference(found, plain) == 0


def test_sarah_is_numpys_after_every_step(page):
    batches, values = batches_of([8, 8, 5]), prepare(page)
    page["sarah"](batches, epochs=3)
    run = Recursion(values)
    for epoch in range(3):
        run.begin(batches, 1.0, seed=epoch)
        for number, batch in enumerate(batches):
            run.step(batch, seed=3 + 3 * epoch + number)
    assert difference(page["trainer"].trajectory, run.trajectory) < 1e-10


@pytest.mark.parametrize("probability", [0.0, 0.4])
def test_page_is_numpys_after_every_step(page, probability):
    small, large, values = batches_of([4] * 12), batches_of([16] * 12, 1), prepare(page)
    page["page"](small, iter(large), probability, np.random.default_rng(3))
    run, draws, rest = Recursion(values), np.random.default_rng(3), iter(large)
    for number, batch in enumerate(small):
        if number == 0 or draws.random() < probability:
            run.begin([next(rest)], 1.0, seed=2 * number)
        run.step(batch, seed=2 * number + 1)
    assert difference(page["trainer"].trajectory, run.trajectory) < 1e-10


def test_alpha_1_that_begins_anew_at_each_step_is_plain_sgd(page):
    batches = batches_of(SIZES)
    prepare(page)
    page["page"](batches, iter(batches), 1.0, np.random.default_rng(0))
    found = page["trainer"].trajectory
    prepare(page)
    for number, batch in enumerate(batches):
        mx.random.seed(2 * number)
        page["trainer"].step(len(page["backward"](batch)))
    assert difference(found, page["trainer"].trajectory) < 1e-12


def test_exact_mars_is_numpys_after_every_step(page):
    gamma, beta = 0.1, 0.9
    batches = batches_of(SIZES)
    arguments = {"learning_rate": 0.05, "beta1": beta, "gamma": 0, "max_norm": 0.5, "wd": 0.01}
    # The gradient of a bias before BatchNorm is 0 to rounding, which Adam would enlarge.
    arguments["epsilon"] = epsilon = 1e-3
    net = Numpy(prepare(page, "mars", **arguments))
    page["exact_mars"](batches, gamma, beta)
    before = [param.copy() for param in net.params]
    states = [optimizer_oracle.AdamState(param.shape) for param in net.params]
    trajectory = []
    for number, batch in enumerate(batches):
        (mask,) = masks_of(number, [batch])
        grads = net.gradient(batch, mask, counts=1)
        past = net.gradient(batch, mask, before)
        before = [param.copy() for param in net.params]
        rule = optimizer_oracle.MARS(
            0.05,
            beta,
            epsilon=epsilon,
            gamma=gamma,
            max_norm=0.5,
            wd=0.01,
            rescale=1 / len(batch[0]),
        )
        for i, state in enumerate(states):
            state.last = past[i] / len(batch[0])
            net.params[i] = rule.step(net.params[i], grads[i], state)
        trajectory.append(net.values())
    assert difference(page["trainer"].trajectory, trajectory) < 1e-10
