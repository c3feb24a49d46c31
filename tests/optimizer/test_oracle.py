"""LARS, NAG and Signum against NumPy after every step, in every combination that they promise."""

import inspect
import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle as oracle
import pytest
from mxnet import autograd, gluon
from problems import ONE, TWO

SHAPES = {
    "a_weight": (4, 3, 2),
    "b_weight": (5, 4),
    "zero_weight": (3, 2),  # starts at 0: the first ratio is 1
    "norm_gamma": (5,),
    "norm_beta": (5,),
    "c_bias": (3,),
}
STEPS = 3
BATCH = 2
LR = 0.1
FEATURES = {
    "wd": {"wd": 0.01},
    "wd_mult": {"wd": 0.01, "wd_mult": 0.5},
    "lr_mult": {"lr_mult": 0.3},
    "clip": {"clip": 0.2},
    "rescale": {"rescale": 0.7},
    "scheduler": {"decay": 0.1},
    "all": {
        "wd": 0.01,
        "wd_mult": 0.5,
        "lr_mult": 0.3,
        "clip": 0.2,
        "rescale": 0.7,
        "decay": 0.1,
    },
}
# Float32 rounds the rates, too; the largest difference is seen in Signum's 1 - momentum.
TOLERANCES = {"float64": 1e-10, "float32": 1e-6, "float16": 1e-6}


class Run:
    """A trainer of bare Parameters, and the oracle beside it."""

    def __init__(self, kind, momentum, feature, contexts, dtype, trainer=gluon.Trainer, **kwargs):
        self.feature = FEATURES[feature]
        self.kind, self.momentum, self.contexts, self.dtype = kind, momentum, contexts, dtype
        self.rng = np.random.default_rng(1)
        self.params = [self._parameter(name, shape) for name, shape in SHAPES.items()]
        kvstore = {key: kwargs.pop(key) for key in ("kvstore", "update_on_kvstore") & kwargs.keys()}
        decay = self.feature.get("decay")
        schedule = decay and mx.lr_scheduler.MultiFactorScheduler([1], decay, base_lr=LR)
        self.optimizer = getattr(gs, kind)(
            learning_rate=None if schedule else LR,
            lr_scheduler=schedule,
            momentum=momentum,
            wd=self.feature.get("wd", 0.0),
            clip_gradient=self.feature.get("clip"),
            rescale_grad=self.feature.get("rescale", 1.0),
            multi_precision=dtype == "float16",
            **kwargs,
        )
        self.trainer = trainer(self.params, self.optimizer, **kvstore)
        self.weights = [p.data(contexts[0]).asnumpy().astype("float64") for p in self.params]
        self.moms = [np.zeros_like(weight) for weight in self.weights]
        self.t = 0

    def _parameter(self, name, shape):
        param = gluon.Parameter(name, shape=shape, dtype=self.dtype)
        param.initialize(mx.init.Zero(), ctx=self.contexts)
        if not name.startswith("zero"):
            param.set_data(mx.nd.array(self.rng.normal(size=shape), dtype=self.dtype))
        if name.startswith("b_"):
            param.lr_mult = self.feature.get("lr_mult", 1.0)
            param.wd_mult = self.feature.get("wd_mult", 1.0)
        return param

    def step(self):
        """Take a step, and the oracle's."""
        grads = [
            [self.rng.normal(size=param.shape).astype(self.dtype) for _ in self.contexts]
            for param in self.params
        ]
        with autograd.record():
            losses = [
                (param.data(ctx) * mx.nd.array(grad, ctx=ctx, dtype=self.dtype)).sum()
                for param, parts in zip(self.params, grads, strict=True)
                for ctx, grad in zip(self.contexts, parts, strict=True)
            ]
        autograd.backward(losses)
        self.trainer.step(BATCH)
        self.t += 1
        for i, (param, parts) in enumerate(zip(self.params, grads, strict=True)):
            rule = self._rule(param)
            self.weights[i], self.moms[i] = rule.step(
                self.weights[i],
                sum(parts).astype("float64"),
                self.moms[i],
                exempt=param.name.endswith(("gamma", "beta", "bias")),
            )

    def _rule(self, param):
        decayed = self.feature.get("decay", 1.0) if self.t > 1 else 1.0
        return getattr(oracle, self.kind)(
            lr=LR * decayed * param.lr_mult,
            momentum=self.momentum,
            wd=self.feature.get("wd", 0.0) * param.wd_mult,
            rescale=self.feature.get("rescale", 1.0) / BATCH,
            clip=self.feature.get("clip", np.inf),
        )

    def check(self):
        """Compare weights and momentum on every device."""
        for k, ctx in enumerate(self.contexts):
            for i, param in enumerate(self.params):
                weight = param.data(ctx).asnumpy()
                state = self._updater(k).states[i]
                if self.dtype == "float16":
                    master, state = state
                    assert np.array_equal(weight, master.asnumpy().astype("float16"))
                    weight = master.asnumpy()
                self._compare(weight, self.weights[i])
                if self.momentum:
                    self._compare(state.asnumpy(), self.moms[i])

    def _updater(self, k):
        if self.trainer._update_on_kvstore:
            return self.trainer._kvstore._updater
        return self.trainer._updaters[k]

    def _compare(self, ours, oracles):
        assert np.abs(ours - oracles).max() <= TOLERANCES[self.dtype] * np.abs(oracles).max()


PRODUCT = list(
    itertools.product(
        ["LARS", "NAG", "Signum"],
        [0.0, 0.9],
        FEATURES,
        [False, True],
        [1, 4, np.inf],
        ["float16", "float32", "float64"],
        [ONE, TWO],
    )
)


def test_every_optimizer_has_a_formula():
    public = {kind for kind in vars(gs.optimizer).values() if inspect.isclass(kind)}
    # AdamW is MARS with a gamma of 0, in test_adam_oracle.py.
    names = {kind.__name__ for kind in public} - {"Optimizer", "AdamW"}
    missing = names - {name for name, kind in vars(oracle).items() if hasattr(kind, "step")}
    assert not missing, f"write {missing} in NumPy, as classes in tests/optimizer_oracle.py"


@pytest.mark.parametrize(
    ("kind", "momentum", "feature", "fused", "aggregate", "dtype", "contexts"),
    PRODUCT,
    ids=["-".join(map(str, (*case[:-1], len(case[-1])))) for case in PRODUCT],
)
def test_every_step_is_the_oracles(kind, momentum, feature, fused, aggregate, dtype, contexts):
    run = Run(
        kind,
        momentum,
        feature,
        contexts,
        dtype,
        use_fused_step=fused,
        aggregate_num=aggregate,
        update_on_kvstore=False,
    )
    for _ in range(STEPS):
        run.step()
        run.check()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["LARS", "NAG", "Signum"])
def test_every_step_on_the_kvstore_is_the_oracles(kind, fused, dtype):
    run = Run(kind, 0.9, "all", TWO, dtype, use_fused_step=fused, update_on_kvstore=True)
    for _ in range(STEPS):
        run.step()
        run.check()


@pytest.mark.parametrize("wd_lh", [0.0, 0.02])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signum_decays_by_wd_lh_apart_from_the_momentum(wd_lh, momentum, fused, dtype):
    rng = np.random.default_rng(0)
    oracles = oracle.Signum(lr=0.1, momentum=momentum, wd=0.01, wd_lh=wd_lh)
    weight = rng.normal(size=(4, 3)).astype(dtype)
    ours = mx.nd.array(weight, dtype=dtype)
    optimizer = gs.Signum(0.1, momentum, wd_lh, use_fused_step=fused, wd=0.01)
    updater = mx.optimizer.get_updater(optimizer)
    weight, mom = weight.astype("float64"), np.zeros((4, 3))
    for _ in range(STEPS):
        grad = rng.normal(size=(4, 3)).astype(dtype)
        updater(0, mx.nd.array(grad, dtype=dtype), ours)
        weight, mom = oracles.step(weight, grad.astype("float64"), mom)
        np.testing.assert_allclose(ours.asnumpy(), weight, rtol=TOLERANCES[dtype], atol=0)
