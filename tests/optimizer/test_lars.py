"""LARS: what is its own: the ratio, the exemptions, lazy updates, MXNet's LARS beside it."""

import re
import warnings

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.optimizer.lars import trust_ratio
from mxnet import autograd, gluon
from mxnet.gluon import nn

NAMES = {0: "a_weight", 1: "norm_gamma", 2: "norm_beta", 3: "b_weight", 4: "b_bias"}
RATES = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}


def arrays(shapes, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [mx.nd.array(rng.normal(size=shape), dtype=dtype) for shape in shapes]


def run(optimizer, shapes, steps=3, dtype="float32"):
    """Return the weights after some steps with the same weights and gradients for everyone."""
    weights = arrays(shapes, dtype=dtype)
    updater = mx.optimizer.get_updater(optimizer)
    for step in range(steps):
        updater(list(range(len(shapes))), arrays(shapes, 1 + step, dtype), weights)
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ratio_is_the_papers(dtype):
    norms = (mx.nd.array(v, dtype=dtype) for v in ([2.0, 10.0], [4.0, 0.5]))
    ratio = trust_ratio(*norms, wd=mx.nd.array([0.0, 0.1], dtype=dtype), eta=0.5, epsilon=0.25)
    assert np.dtype(ratio.dtype) == dtype
    np.testing.assert_allclose(ratio.asnumpy(), [0.5 * 2 / 4.25, 0.5 * 10 / 1.75], rtol=1e-6)


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("other", [0.0, 3.0, np.inf, np.nan])
def test_the_ratio_is_1_where_a_norm_is_0_or_not_finite(bad, other):
    good = [1.0, 1.0]
    weight_norm, grad_norm = mx.nd.array([bad, other, 2.0]), mx.nd.array([other, bad, 2.0])
    ratio = trust_ratio(weight_norm, grad_norm, 0.1, eta=0.5, epsilon=1e-8).asnumpy()
    assert ratio[:2].tolist() == good
    assert ratio[2] == pytest.approx(0.5 / 1.1)


@pytest.mark.parametrize("fused", [False, True])
def test_the_ratio_is_taken_before_clipping(fused):
    weight, grad = mx.nd.array([3.0, 4.0]), mx.nd.array([30.0, 40.0])
    optimizer = gs.LARS(1.0, eta=1.0, epsilon=0.0, clip_gradient=35.0, use_fused_step=fused)
    optimizer.update([0], [weight], [grad], [None])
    np.testing.assert_allclose(weight.asnumpy(), [3 - 0.1 * 30, 4 - 0.1 * 35], rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("aggregate", [1, 4, np.inf])
def test_it_equals_mxnets_where_that_one_knows_the_names(momentum, aggregate):
    """By `idx2name`, where MXNet's exempts as it should; it sets wd_mult = 0 there as well."""
    shapes = [(6, 4), (6,), (6,), (3, 6), (3,)]
    rates = RATES | {"momentum": momentum, "rescale_grad": 0.5, "param_idx2name": NAMES}
    theirs = mx.optimizer.LARS(eps=1e-8, **rates)
    ours = gs.LARS(aggregate_num=aggregate, **rates)
    ours.set_wd_mult({"norm_gamma": 0.0, "norm_beta": 0.0, "b_bias": 0.0})
    for a, b in zip(run(ours, shapes), run(theirs, shapes), strict=True):
        # The sums of squares are added up in another order, so the last bits differ.
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def effective_rates(optimizer):
    """Return |step| / |gradient| of each parameter of a small net after a step of a Trainer."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
    net.initialize()
    mx.random.seed(3)
    x, y = arrays([(16, 3), (16, 2)])
    params = {n: p for n, p in net.collect_params().items() if p.grad_req != "null"}
    for param in params.values():
        param.set_data(mx.nd.random.normal(shape=param.shape))
    trainer = gluon.Trainer(params, optimizer)
    with mx.autograd.record():
        loss = gluon.loss.L2Loss()(net(x), y).sum()
    loss.backward()
    before = {name: param.data().asnumpy() for name, param in params.items()}
    trainer.step(1)
    return {
        name.removeprefix("net_"): np.abs(param.data().asnumpy() - before[name]).sum()
        / np.abs(param.grad().asnumpy()).sum()
        for name, param in params.items()
    }


def test_gamma_beta_and_bias_are_exempt_in_a_trainer_and_not_under_mxnets():
    """MXNet's looks for the names in idx2name, which a Trainer leaves empty."""
    exempt = ["batchnorm0_gamma", "batchnorm0_beta", "dense1_bias"]
    theirs = effective_rates(mx.optimizer.LARS(learning_rate=0.1))
    ours = effective_rates(gs.LARS(learning_rate=0.1))
    for name in exempt:
        assert theirs[name] < 0.1 * 0.05
        assert ours[name] == pytest.approx(0.1, rel=1e-3)
    for name in ("dense0_weight", "dense1_weight"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
        assert ours[name] < 0.1 * 0.05


@pytest.mark.parametrize(
    ("exempt", "names"),
    [
        (gs.LARS().is_exempt, {"norm_gamma", "norm_beta", "b_bias"}),
        (r"^b_", {"b_weight", "b_bias"}),
        (lambda name: "a" in name[:1], {"a_weight"}),
        (["b_bias", "a_weight"], {"b_bias", "a_weight"}),
        (None, set()),
    ],
    ids=["default", "regex", "predicate", "names", "none"],
)
def test_which_parameters_are_exempt(exempt, names):
    optimizer = gs.LARS(exempt=exempt)
    assert {name for name in NAMES.values() if optimizer.is_exempt(name)} == names


@pytest.mark.parametrize("fused", [False, True])
def test_the_exemption_of_a_trainer_is_by_the_parameters_own_names(fused):
    """Not by what the optimizer was told in param_idx2name for the same index."""
    param = gluon.Parameter("x_gamma", shape=(2,))
    optimizer = gs.LARS(0.5, use_fused_step=fused, param_idx2name={0: "x_weight"})
    param.initialize(mx.init.One())
    trainer = gluon.Trainer([param], optimizer)
    with mx.autograd.record():
        loss = (param.data() * 2).sum()
    loss.backward()
    trainer.step(1)
    assert param.data().asnumpy().tolist() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_more_parameters_than_one_kernel_takes(momentum):
    """MXNet's kernels hold 60 and write past the end with more."""
    shapes = [(3,)] * 130
    names = {i: f"x{i}_gamma" for i in range(125)}
    rates = RATES | {"momentum": momentum, "param_idx2name": names}
    whole = run(gs.LARS(aggregate_num=np.inf, **rates), shapes)
    single = run(gs.LARS(aggregate_num=1, **rates), shapes)
    assert all(np.array_equal(a, b) for a, b in zip(whole, single, strict=True))


def test_float16_without_a_master_copy_takes_its_norms_in_float32():
    """The squares of 300 and the norm of the gradient's 10,000 entries are beyond float16."""
    shapes = [(100, 100)]
    weight, grad = mx.nd.full(shapes[0], 2, dtype="float16"), mx.nd.full(shapes[0], 300)
    for fused in (False, True):
        ours = weight.copy()
        optimizer = gs.LARS(1.0, eta=0.5, use_fused_step=fused)
        optimizer.update([0], [ours], [grad.astype("float16")], [None])
        # ratio = 0.5 * 200 / 30000, step = ratio * 300 = 1; to float16's precision
        np.testing.assert_allclose(ours.asnumpy(), 1.0, rtol=2e-3)


@pytest.mark.parametrize("kind", ["LARS", "Signum"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_never_waits_for_the_device(kind, fused, dtype, monkeypatch):
    optimizer = getattr(gs, kind)(0.1, 0.9, use_fused_step=fused, clip_gradient=1.0, wd=0.1)
    updater = mx.optimizer.get_updater(optimizer)
    shapes = [(3, 2), (4, 3)]
    weights, grads = arrays(shapes, 0, dtype), arrays(shapes, 1, dtype)

    def wait(*args):
        raise AssertionError("a host round trip")

    for name in ("asnumpy", "asscalar", "wait_to_read", "__bool__"):
        monkeypatch.setattr(mx.nd.NDArray, name, wait)
    updater([0, 1], grads, weights)


def sparse_gradient(seed, dtype="float32"):
    rows = np.array([1, 4])
    data = np.random.default_rng(seed).normal(size=(2, 3))
    sparse = mx.nd.sparse.row_sparse_array((data, rows), shape=(6, 3), dtype=dtype)
    return sparse, rows


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["x_weight", "x_bias"])
def test_a_lazy_update_is_the_dense_one_on_the_rows_of_the_gradient(momentum, name):
    start = arrays([(6, 3)])[0]
    rates = RATES | {"momentum": momentum, "param_idx2name": {0: name}, "clip_gradient": 0.5}
    lazy, dense = start.copy(), start.copy()
    lazily = mx.optimizer.get_updater(gs.LARS(lazy_update=True, **rates))
    densely = mx.optimizer.get_updater(gs.LARS(**rates))
    untouched = [0, 2, 3, 5]
    for seed in range(3):
        grad, rows = sparse_gradient(seed)
        lazily([0], [grad], [lazy])
        densely([0], [grad.tostype("default")], [dense])
        # The same rows for both, so that the norms stay the same.
        dense[untouched] = start[untouched]
        np.testing.assert_allclose(lazy.asnumpy(), dense.asnumpy(), rtol=1e-5)
    assert np.array_equal(lazy.asnumpy()[untouched], start.asnumpy()[untouched])
    assert not np.array_equal(lazy.asnumpy()[rows], start.asnumpy()[rows])


def test_an_embedding_with_sparse_gradients_trains_lazily():
    net = nn.Embedding(6, 3, sparse_grad=True)
    net.initialize()
    before = net.weight.data().asnumpy()
    trainer = gluon.Trainer(net.collect_params(), gs.LARS(0.1, 0.9, lazy_update=True))
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 4])).sum()
    loss.backward()
    trainer.step(1)
    changed = (net.weight.data().asnumpy() != before).all(axis=1)
    assert changed.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("kind", ["LARS", "Signum"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_sparse_gradient_on_the_dense_path_is_an_error(kind, fused):
    optimizer = getattr(gs, kind)(use_fused_step=fused, param_idx2name={0: "embedding"})
    weight = arrays([(6, 3)])[0]
    with pytest.raises(ValueError, match=r"'embedding' is row_sparse.* create the parameter with"):
        optimizer.update([0], [weight], [sparse_gradient(0)[0]], [None])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"eta": 0}, r"eta must be positive, got 0: "),
        ({"eta": -1.0}, r"eta must be positive, got -1.0: "),
        ({"eta": float("nan")}, r"eta must be positive, got nan: "),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0: "),
        ({"momentum": -0.1}, r"momentum must be in \[0, 1\), got -0.1: "),
        ({"lazy_update": True, "use_fused_step": False}, r"needs use_fused_step=True, got False"),
        ({"lazy_update": True, "multi_precision": True}, r"needs multi_precision=False, got True"),
        ({"aggregate_num": 0}, r"aggregate_num must be a positive integer, or numpy.inf .*got 0"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gs.LARS(**kwargs)


@pytest.mark.parametrize("kind", ["LARS", "Signum"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("momentum", "state", "shown"),
    [
        (0.9, None, "None"),
        (0.9, (2,), r"\(2,\)"),
        (0.9, (1, 1), r"\(1, 1\)"),
        (0.0, (3, 2), "3, 2"),
    ],
)
def test_a_state_that_does_not_fit_is_an_error(kind, fused, momentum, state, shown):
    optimizer = getattr(gs, kind)(0.1, momentum, use_fused_step=fused)
    weight, grad = arrays([(3, 2), (3, 2)])
    before = weight.asnumpy()
    state = state and mx.nd.zeros(state)
    with pytest.raises(ValueError, match=rf"the state of '0' has shape .*{shown}"):
        optimizer.update([0], [weight], [grad], [state])
    assert np.array_equal(weight.asnumpy(), before)


def test_a_compiled_regular_expression_tells_what_is_exempt():
    lars = gs.LARS(exempt=re.compile("^first"))
    assert lars.is_exempt("first_weight")
    assert not lars.is_exempt("second_first")


@pytest.mark.parametrize("exempt", [5, True])
def test_an_exemption_of_another_kind_is_an_error(exempt):
    with pytest.raises(
        ValueError, match=r"exempt must be a regular expression, a predicate .* got"
    ):
        gs.LARS(exempt=exempt)


@pytest.mark.parametrize("make", [gs.LARS, gs.Signum])
@pytest.mark.parametrize("use_fused_step", [False, True])
def test_a_refused_step_does_not_count(make, use_fused_step):
    optimizer = make(momentum=0.9, use_fused_step=use_fused_step)
    weight = mx.nd.ones((2,))
    with pytest.raises(ValueError, match="load the states of this run"):
        optimizer.update([0], [weight], [weight], [None])
    assert optimizer.num_update == 0


def test_a_learning_rate_beside_a_mere_function_is_an_error():
    with pytest.raises(ValueError, match=r"learning_rate=0.2 cannot replace the base of <function"):
        gs.LARS(learning_rate=0.2, lr_scheduler=lambda num_update: 0.1)


NORMED = {0: "dense0_weight", 1: "dense0_bias", 2: "norm0_gamma", 3: "norm0_beta"}


def exempting(exempt, names=NORMED, steps=2):
    """The warnings of the first steps of a LARS with this `exempt`."""
    optimizer = gs.LARS(exempt=exempt, param_idx2name=names)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        for _ in range(steps):
            arrays = [[mx.nd.ones(3) for _ in names] for _ in range(2)]
            optimizer.update(list(names), *arrays, [None] * len(names))
    return [str(warning.message) for warning in told if warning.category is UserWarning]


def never(name):
    return False


@pytest.mark.parametrize(
    ("exempt", "given"),
    [
        (["gamma", "beta", "bias"], "'beta', 'bias', 'gamma'"),
        (["norm0_gamma", "beta"], "'beta'"),
        ("gama$", "the regular expression 'gama$'"),
        (re.compile("^x"), "the regular expression '^x'"),
        # Its text has an address: the processes of a run would name the test differently.
        pytest.param(never, f"the predicate {never!r}", id="predicate"),
        ([str(i) for i in range(9)], "'0', '1', '2', '3', '4', ..."),
    ],
)
def test_what_exempts_nothing_is_told_once_with_names_that_are_there(exempt, given):
    (message,) = exempting(exempt)
    assert message.startswith(f"LARS(exempt=...): no parameter matches {given}; the parameters are")
    assert "'norm0_gamma'" in message


@pytest.mark.parametrize(
    "exempt", ["gamma$", ["dense0_bias"], list(NORMED.values()), str.islower, None, [], ()]
)
def test_what_exempts_something_or_is_empty_is_not_told(exempt):
    assert exempting(exempt) == []


def test_the_default_may_exempt_nothing():
    optimizer = gs.LARS(param_idx2name={0: "a_weight"})
    optimizer.update([0], [mx.nd.ones(3)], [mx.nd.ones(3)], [None])  # a warning is an error


def test_a_trainer_of_several_devices_tells_it_once_and_with_all_names():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=3), nn.BatchNorm(in_channels=2))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = gluon.Trainer(net.collect_params(), gs.LARS(exempt=["beta", "net_dense0_bias"]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        for _ in range(2):
            with autograd.record():
                losses = [net(mx.nd.ones((4, 3), ctx=ctx)) for ctx in (mx.cpu(0), mx.cpu(1))]
            autograd.backward(losses)
            trainer.step(8)
    (message,) = [str(warning.message) for warning in told if warning.category is UserWarning]
    assert "matches 'beta'; the parameters are 'net_batchnorm0_beta', " in message


@pytest.mark.parametrize("exempt", ["(gamma", "*"])
def test_a_string_that_is_no_regular_expression(exempt):
    with pytest.raises(ValueError, match=rf"exempt={re.escape(repr(exempt))} is no regular expr"):
        gs.LARS(exempt=exempt)


@pytest.mark.parametrize(
    ("kind", "way_out"), [("lars", "give lazy_update=True"), ("signum", "train it with MXNet's")]
)
def test_what_takes_a_sparse_gradient(kind, way_out):
    weight = mx.nd.ones((6, 3))
    with pytest.raises(ValueError, match=rf"sparse_grad=False, or {way_out}"):
        gs.optimizer.create(kind, momentum=0).update([0], [weight], [sparse_gradient(0)[0]], [None])


@pytest.mark.parametrize("kind", [gs.LARS, gs.MARS])
def test_gluons_own_save_states_keeps_who_is_exempt_by_a_predicate(kind, tmp_path):
    def trainer():
        param = gluon.Parameter("conv_weight", shape=(2,))
        other = gluon.Parameter("dense_weight", shape=(2,))
        for each in (param, other):
            each.initialize(mx.init.One())
        return gluon.Trainer([param, other], kind(exempt=lambda name: "conv" not in name))

    trainer().save_states(str(tmp_path / "a.states"))
    loaded = trainer()
    loaded.load_states(str(tmp_path / "a.states"))
    names = ("conv_weight", "dense_weight")
    assert [loaded.optimizer.is_exempt(name) for name in names] == [False, True]


def test_its_learning_rate_without_one_is_that_of_mxnet_2():
    assert gs.LARS().learning_rate == 0.1
    assert gs.optimizer.create("lars").learning_rate == 0.1
    assert gs.LARS(0.3).learning_rate == 0.3
    scheduler = mx.lr_scheduler.FactorScheduler(10, base_lr=0.02)
    assert gs.LARS(lr_scheduler=scheduler).learning_rate == 0.02
    assert scheduler.base_lr == 0.02
