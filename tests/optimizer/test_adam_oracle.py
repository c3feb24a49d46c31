"""AdamW and MARS against NumPy after every step, in every way in which they are run."""

import warnings

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle as oracle
import pytest
from mxnet import autograd, gluon
from problems import ONE, TWO

SHAPES = {"a_weight": (4, 3, 2), "b_weight": (5, 4), "norm_gamma": (5,), "c_bias": (3,)}
LR = 0.02
BATCH = 4
BETAS = {"beta1": 0.9, "beta2": 0.99}
KINDS = {
    "AdamW": {},
    "AdamW without averages": {"beta1": 0.0, "beta2": 0.0, "epsilon": 0.1},
    "MARS": {"gamma": 0.025, "max_norm": None},
    "MARS, Nesterov": {"gamma": 0.1, "max_norm": None},
    "MARS, cut in some steps": {"gamma": 0.025, "max_norm": 1.0},
    "MARS, cut in all": {"gamma": 0.025, "max_norm": 0.1},
    "MARS, gamma 0, cut": {"gamma": 0.0, "max_norm": 0.5},
    "MARS, gamma 1": {"gamma": 1.0, "max_norm": 0.5},
    "MARS, exempt": {"gamma": 0.1, "max_norm": 0.5, "exempt": "(gamma|bias)$"},
}
FEATURES = {
    "plain": {},
    "all": {"wd": 0.1, "wd_mult": 0.5, "lr_mult": 0.3, "clip": 0.3, "rescale": 0.7, "decay": 0.1},
}
# Float32's rounding of the parts, over steps of 0.02 that all add up.
TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-5}


class Run:
    """A trainer of bare Parameters, and the oracle beside it."""

    def __init__(self, kind, feature="plain", contexts=ONE, dtype="float64", **kwargs):
        self.feature, self.contexts, self.dtype = FEATURES[feature], contexts, dtype
        self.rng = np.random.default_rng(1)
        self.grad_req = kwargs.pop("grad_req", "write")
        self.params = [self._parameter(name, shape) for name, shape in SHAPES.items()]
        own = BETAS | KINDS[kind]
        decay = self.feature.get("decay")
        schedule = decay and mx.lr_scheduler.MultiFactorScheduler([20], decay, base_lr=LR)
        kvstore = {key: kwargs.pop(key) for key in ("kvstore", "update_on_kvstore") & kwargs.keys()}
        self.optimizer = getattr(gs, kind.partition(",")[0].partition(" ")[0])(
            learning_rate=None if schedule else LR,
            lr_scheduler=schedule,
            wd=self.feature.get("wd", 0.0),
            clip_gradient=self.feature.get("clip"),
            rescale_grad=self.feature.get("rescale", 1.0),
            multi_precision=dtype == "float16",
            **own,
            **kwargs,
        )
        self.trainer = gs.SVRGTrainer(self.params, self.optimizer, **kvstore)
        self.exempt = own.pop("exempt", None)
        self.own = own | {"max_norm": own.get("max_norm") or np.inf}
        self.weights = [p.data(contexts[0]).asnumpy().astype("float64") for p in self.params]
        self.states = [oracle.AdamState(weight.shape) for weight in self.weights]
        self.t = 0

    def _parameter(self, name, shape):
        param = gluon.Parameter(name, shape=shape, dtype=self.dtype, grad_req=self.grad_req)
        param.initialize(mx.init.Zero(), ctx=self.contexts)
        param.set_data(mx.nd.array(self.rng.normal(size=shape), dtype=self.dtype))
        if name.startswith("b_"):
            param.lr_mult = self.feature.get("lr_mult", 1.0)
            param.wd_mult = self.feature.get("wd_mult", 1.0)
        return param

    def step(self, samples=BATCH, passes=1):
        """Take a step, and the oracle's; of a smaller batch the sum is smaller."""
        sums = [np.zeros(shape) for shape in SHAPES.values()]
        for _ in range(passes):
            with autograd.record():
                losses = []
                for total, param in zip(sums, self.params, strict=True):
                    for ctx in self.contexts:
                        grad = samples * self.rng.normal(0.1, 0.3, size=param.shape)
                        grad = grad.astype(self.dtype)
                        total += grad
                        factor = mx.nd.array(grad, ctx=ctx, dtype=self.dtype)
                        losses.append((param.data(ctx) * factor).sum())
            autograd.backward(losses)
        if self.dtype == "float16":  # what the devices add up is rounded, too
            sums = [sum(g.asnumpy() for g in p.list_grad()).astype("float64") for p in self.params]
        self.trainer.step(samples * passes)
        if self.grad_req == "add":
            for param in self.params:
                param.zero_grad()
        self.t += 1
        rule = oracle.MARS(
            LR * (self.feature.get("decay", 1.0) if self.t > 20 else 1.0),
            wd=self.feature.get("wd", 0.0),
            rescale=self.feature.get("rescale", 1.0) / (samples * passes),
            clip=self.feature.get("clip", np.inf),
            **self.own,
        )
        for i, (param, total) in enumerate(zip(self.params, sums, strict=True)):
            ours = rule._replace(lr=rule.lr * param.lr_mult, wd=rule.wd * param.wd_mult)
            is_exempt = bool(self.exempt) and self.optimizer.is_exempt(param.name)
            self.weights[i] = ours.step(self.weights[i], total, self.states[i], is_exempt)

    def check(self):
        """Compare weights and states on every device."""
        for k, ctx in enumerate(self.contexts):
            for i, param in enumerate(self.params):
                weight, state = param.data(ctx).asnumpy(), self._updater(k).states[i]
                if self.dtype == "float16":
                    master, state = state
                    assert np.array_equal(weight, master.asnumpy().astype("float16"))
                    weight = master.asnumpy()
                theirs = self.states[i]
                self._compare(weight, self.weights[i])
                named = [theirs.mean, theirs.var, theirs.last]
                for ours, oracles in zip(state, named, strict=False):
                    assert np.dtype(ours.dtype) == self.dtype.replace("float16", "float32")
                    self._compare(ours.asnumpy(), oracles)

    def _updater(self, k):
        if self.trainer._update_on_kvstore:
            return self.trainer._kvstore._updater
        return self.trainer._updaters[k]

    def _compare(self, ours, oracles):
        assert np.abs(ours - oracles).max() <= TOLERANCES[self.dtype] * np.abs(oracles).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "feature"),
    [*((kind, "all") for kind in KINDS), ("MARS, cut in some steps", "plain")],
)
def test_fifty_steps_are_the_oracles_to_1e10(kind, feature):
    """The last batch of each ten is smaller."""
    run = Run(kind, feature)
    for number in range(50):
        run.step(samples=1 if number % 10 == 9 else BATCH)
        run.check()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "aggregate"), [("AdamW", np.inf), ("MARS, exempt", 3), ("MARS, cut in some steps", 1)]
)
def test_every_dtype_fused_and_not(kind, aggregate, dtype, fused):
    run = Run(kind, "all", ONE, dtype, use_fused_step=fused, aggregate_num=aggregate)
    for number in range(6):
        run.step(samples=1 if number == 4 else BATCH)
        run.check()


@pytest.mark.parametrize(("dtype", "fused"), [("float32", True), ("float64", False)])
@pytest.mark.parametrize("update_on_kvstore", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "MARS, cut in some steps"])
def test_two_devices_and_the_kvstore(kind, update_on_kvstore, dtype, fused):
    run = Run(kind, "all", TWO, dtype, use_fused_step=fused, update_on_kvstore=update_on_kvstore)
    for _ in range(6):
        run.step()
        run.check()


@pytest.mark.parametrize("kind", ["AdamW", "MARS, cut in some steps"])
def test_accumulated_gradients(kind):
    run = Run(kind, "all", grad_req="add")
    for _ in range(6):
        run.step(passes=3)
        run.check()


@pytest.mark.parametrize(("contexts", "dtype"), [(ONE, "float64"), (TWO, "float16")])
@pytest.mark.parametrize("kind", ["AdamW", "MARS, exempt"])
def test_a_checkpoint_in_between_changes_nothing(kind, dtype, contexts, tmp_path):
    run, other = Run(kind, "all", contexts, dtype), Run(kind, "all", contexts, dtype)
    for _ in range(19):
        run.step()
    run.trainer.save_states(tmp_path / "a.states")
    for ours, theirs in zip(other.params, run.params, strict=True):
        ours.set_data(theirs.data(contexts[0]))
    other.trainer.load_states(tmp_path / "a.states")
    other.rng, other.t = run.rng, run.t
    other.weights, other.states = run.weights, run.states
    for _ in range(6):  # into the schedule's next rate
        other.step()
        other.check()


@pytest.mark.parametrize(
    ("kind", "feature"),
    [("AdamW", "all"), ("MARS, exempt", "all"), ("MARS, cut in all", "all"), ("MARS", "plain")],
)
def test_fused_is_unfused_to_float32(kind, feature):
    runs = [Run(kind, feature, dtype="float32", use_fused_step=fused) for fused in (False, True)]
    for _ in range(10):
        for run in runs:
            run.step()
        for ours, theirs in zip(runs[0].params, runs[1].params, strict=True):
            np.testing.assert_allclose(
                ours.data().asnumpy(), theirs.data().asnumpy(), rtol=2e-6, atol=2e-6
            )


def test_float16_without_master_copies_is_the_rounded_step():
    rng = np.random.default_rng(0)
    weight = mx.nd.array(rng.normal(size=(6,)), dtype="float16")
    optimizer = gs.MARS(0.01, gamma=0.1, wd=0.1, max_norm=1e-3)
    updater = mx.optimizer.get_updater(optimizer)
    rule = oracle.MARS(0.01, gamma=0.1, wd=0.1, max_norm=1e-3)
    state = oracle.AdamState((6,))
    for _ in range(10):
        # Their squares are 0 in float16, and epsilon as well.
        grad = mx.nd.array(1e-4 * rng.normal(size=(6,)), dtype="float16")
        before = weight.asnumpy().astype("float64")
        with warnings.catch_warnings():  # MXNet's, of float16
            warnings.simplefilter("ignore")
            updater(0, grad, weight)
        expected = rule.step(before, grad.asnumpy().astype("float64"), state)
        assert np.abs(weight.asnumpy() - expected).max() < 1e-3
        assert np.isfinite(weight.asnumpy()).all()
