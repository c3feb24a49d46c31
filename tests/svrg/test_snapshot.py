"""The frozen twin: any Block, any context, and a full gradient that stays accurate."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO


class Branching(gluon.Block):
    """A plain Block whose forward pass is Python control flow, which no symbol can hold."""

    def __init__(self):
        super().__init__()
        self.small = nn.Dense(3, in_units=6)
        self.large = nn.Dense(3, in_units=6)
        self.large.hybridize(static_alloc=True)

    def forward(self, x):
        return self.small(x) if x.shape[0] < 8 else self.large(x)


class Scaled(gluon.HybridBlock):
    """A HybridBlock with a parameter of its own, a Constant and a nested output."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=6)
            self.scale = self.params.get("scale", shape=(1, 3), init="ones")
            self.offset = self.params.get_constant("offset", [[0.1, 0.2, 0.3]])

    def hybrid_forward(self, F, x, scale, offset):
        scores = self.dense(x)
        return F.broadcast_add(F.broadcast_mul(scores, scale), offset), (scores, scores)


def make_nets():
    def sequential():
        net = nn.HybridSequential()
        net.add(nn.Dense(5, activation="tanh", in_units=6), nn.BatchNorm(), nn.Dense(3, in_units=5))
        return net

    def traced():
        data = mx.sym.var("data")
        scores = mx.sym.FullyConnected(data, num_hidden=3, name="traced")
        return gluon.SymbolBlock(scores, data)

    return {
        "hybrid sequential": sequential,
        "plain block": Branching,
        "nested output": Scaled,
        "symbol block": traced,
    }


NETS = make_nets()


def initialized(name, contexts, **hybridize):
    net = NETS[name]()
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    net(mx.nd.ones((9, 6)))  # layers without in_units learn their shapes
    if hybridize:
        net.hybridize(**hybridize)
    return net


def backward_of(net, contexts):
    loss = gluon.loss.SoftmaxCELoss()

    def backward(batch):
        devices = contexts[: len(batch[0])]
        parts = [gluon.utils.split_and_load(part, devices, even_split=False) for part in batch]
        losses = []
        with autograd.record():
            for x, y in zip(*parts, strict=True):
                scores = net(x)
                losses.append(loss(scores[0] if isinstance(scores, (tuple, list)) else scores, y))
        autograd.backward(losses)
        return losses

    return backward


def batches(sizes=(12, 12, 6), seed=0):
    rng = np.random.default_rng(seed)
    return [
        (mx.nd.array(rng.normal(size=(n, 6))), mx.nd.array(rng.integers(0, 3, n))) for n in sizes
    ]


@pytest.mark.parametrize(
    "hybridize",
    [{}, {"active": True}, {"static_alloc": True, "static_shape": True}],
    ids=["eager", "hybridized", "static"],
)
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", NETS)
def test_at_its_own_weights_the_twin_has_the_networks_gradient(name, contexts, hybridize):
    net = initialized(name, contexts, **hybridize)
    backward = backward_of(net, contexts)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    for batch in batches():
        net.collect_params().zero_grad()
        backward(batch)
        twin = snapshot.gradient(backward, batch)
        assert sum(twin.samples) == len(batch[0])
        for param_name, grads in twin.sums.items():
            for ours, theirs in zip(
                grads, net.collect_params()[param_name].list_grad(), strict=True
            ):
                assert np.array_equal(ours.asnumpy(), theirs.asnumpy()), param_name


@pytest.mark.parametrize("name", NETS)
def test_the_twin_stays_behind_while_the_network_moves(name):
    net = initialized(name, ONE, static_alloc=True, static_shape=True)
    backward = backward_of(net, ONE)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    snapshot = gs.Snapshot(net)
    snapshot.take()
    batch = batches()[0]
    first = {k: v[0].asnumpy() for k, v in snapshot.gradient(backward, batch).sums.items()}
    for _ in range(2):
        backward(batch)
        trainer.step(12, ignore_stale_grad=True)
        later = snapshot.gradient(backward, batch).sums
        assert all(np.array_equal(first[k], later[k][0].asnumpy()) for k in first)
    snapshot.take()
    moved = snapshot.gradient(backward, batch).sums
    assert any(not np.array_equal(first[k], moved[k][0].asnumpy()) for k in first)


def test_the_network_is_as_before():
    net = initialized("hybrid sequential", TWO, static_alloc=True, static_shape=True)
    backward = backward_of(net, TWO)
    backward(batches()[0])
    # With static_shape MXNet does not order a read of the running statistics after the backward
    # pass that writes them.
    mx.nd.waitall()
    data = {k: p.list_data() for k, p in net.collect_params().items()}
    values = {k: p.data(mx.cpu(1)).asnumpy() for k, p in net.collect_params().items()}
    grads = {k: p.grad(mx.cpu(1)).asnumpy() for k, p in net.collect_params().items()
             if p.grad_req != "null"}  # fmt: skip
    cached_op = net._cached_op
    snapshot = gs.Snapshot(net)
    snapshot.take()
    snapshot.full_gradient(backward, batches())
    mx.nd.waitall()
    assert net._cached_op is cached_op
    for name, param in net.collect_params().items():
        assert param.list_data() is data[name]
        assert np.array_equal(param.data(mx.cpu(1)).asnumpy(), values[name])
        if name in grads:
            assert np.array_equal(param.grad(mx.cpu(1)).asnumpy(), grads[name])


def test_the_network_is_as_before_when_the_backward_pass_fails():
    net = initialized("hybrid sequential", ONE)
    data = net[0].weight.list_data()

    def backward(batch):
        raise KeyError("broken")

    snapshot = gs.Snapshot(net)
    snapshot.take()
    with pytest.raises(KeyError, match="broken"):
        snapshot.gradient(backward, batches()[0])
    assert net[0].weight.list_data() is data


def test_hooks_hear_the_network_only():
    net = initialized("hybrid sequential", ONE)
    calls = []
    net.register_forward_hook(lambda *args: calls.append("top"))
    net[0].register_forward_pre_hook(lambda *args: calls.append("layer"))
    backward = backward_of(net, ONE)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    snapshot.gradient(backward, batches()[0])
    assert calls == []
    backward(batches()[0])
    assert sorted(calls) == ["layer", "top"]


@pytest.mark.parametrize("change", ["hybridize", "cast", "layer"])
def test_a_changed_network_gets_a_new_twin_at_the_next_take(change):
    net = initialized("hybrid sequential", ONE, static_alloc=True)
    backward = backward_of(net, ONE)
    batch = batches()[0]
    snapshot = gs.Snapshot(net)
    snapshot.take()
    snapshot.gradient(backward, batch)
    if change == "hybridize":
        net.hybridize(static_alloc=True, static_shape=True)
    elif change == "cast":
        net.cast("float64")
        batch = tuple(part.astype("float64") for part in batch)
    else:
        net[2].weight.grad_req = "null"
    snapshot.take()
    backward(batch)
    twin = snapshot.gradient(backward, batch)
    for name, param in net.collect_params().items():
        assert (name in twin.sums) == (param.grad_req != "null")
        if name in twin.sums:
            assert np.array_equal(twin.sums[name][0].asnumpy(), param.grad().asnumpy())


def test_parameters_that_a_batch_does_not_use_have_gradient_zero():
    net = initialized("plain block", ONE)
    backward = backward_of(net, ONE)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    large, small = batches((12, 6))
    expected = snapshot.gradient(backward, small).sums[net.small.weight.name][0].asnumpy()
    assert not snapshot.gradient(backward, large).sums[net.small.weight.name][0].asnumpy().any()
    full_gradient = snapshot.full_gradient(backward, [small, large, large])
    total = 30 * full_gradient.means[net.small.weight.name].asnumpy()
    np.testing.assert_allclose(total, expected, rtol=1e-6)  # float32


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_the_full_gradient_is_the_mean_over_samples(contexts):
    problem = problems.make("mlp", contexts, samples=37, batch_size=9)
    snapshot = gs.Snapshot(problem.net)
    snapshot.take()
    full_gradient = snapshot.full_gradient(backward_of(problem.net, contexts), problem.ndarrays())
    assert full_gradient.samples == 37
    expected = oracle.full_gradient(problem.gradient, problem.params, problem.batches)
    means = full_gradient.means
    ours = [means[name].asnumpy() for name in problem.net.collect_params()]
    assert problems.relative_difference(ours, expected) < 1e-14


@pytest.mark.full
def test_the_sum_does_not_wash_out():
    """After 10^8 samples' worth of gradients another 10^4 batches still count, each of them."""
    net = initialized("hybrid sequential", ONE)
    snapshot = gs.Snapshot(net, [net[0].bias.name])
    snapshot.take()
    # The full pass writes into the network's own gradient, which is idle.
    buffer, data = net[0].bias.grad(), snapshot._data[net[0].bias.name][0]
    one, large = mx.nd.ones((1,)), mx.nd.full((5,), 1e8)

    def backward(i):
        # What a backward pass would leave, without the time it takes.
        (large if i == 0 else one.broadcast_to((5,))).copyto(buffer)
        data._fresh_grad = True
        return one

    mean = snapshot.full_gradient(backward, range(10_001)).means[net[0].bias.name]
    assert mean.asnumpy().tolist() == [np.float32((1e8 + 1e4) / 10_001)] * 5
    assert np.float32(1e8) + np.float32(1) == np.float32(1e8)  # what float32 would have made of it


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_full_gradient_that_is_not_finite_names_parameter_and_batch(value):
    net = initialized("hybrid sequential", TWO)
    backward = backward_of(net, TWO)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    data = batches((12,) * 5)
    data[3][0][7, 2] = value
    message = (
        r"parameter '.*' is NaN or infinite; batch 3 \(the first is 0\) is the first that gave"
    )
    with pytest.raises(FloatingPointError, match=message):
        snapshot.full_gradient(backward, data)


def test_no_batches_is_an_error():
    net = initialized("hybrid sequential", ONE)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    with pytest.raises(ValueError, match="needs at least one batch, got none"):
        snapshot.full_gradient(backward_of(net, ONE), [])


def test_no_snapshot_is_an_error():
    net = initialized("hybrid sequential", ONE)
    with pytest.raises(RuntimeError, match=r"no snapshot yet: call take\(\)"):
        gs.Snapshot(net).gradient(backward_of(net, ONE), batches()[0])
    with pytest.raises(RuntimeError, match=r"no snapshot yet: call take\(\)"):
        gs.Snapshot(net).full_gradient(backward_of(net, ONE), batches())


@pytest.mark.parametrize(
    ("initialize", "state"), [(False, "is not initialised"), (True, "has no shape yet")]
)
def test_a_parameter_that_is_not_ready_is_an_error(initialize, state):
    net = nn.Dense(3)
    if initialize:
        net.initialize()
    with pytest.raises(RuntimeError, match=rf"{state}: call net.initialize\(\), and run one"):
        gs.Snapshot(net).take()


def test_a_gradient_of_csr_storage_is_an_error():
    net = nn.Dense(3, in_units=4)
    net.weight._grad_stype = "csr"
    net.initialize()
    with pytest.raises(ValueError, match="SVRG takes dense and row_sparse weights and gradients"):
        gs.Snapshot(net).take()


def test_a_parameter_of_another_block_is_an_error():
    net = initialized("hybrid sequential", ONE)
    with pytest.raises(ValueError, match="parameter 'center' is not in the network"):
        gs.Snapshot(net, ["center"])


@pytest.mark.parametrize(
    ("losses", "got"),
    [
        ([mx.nd.ones((3,), ctx=mx.cpu(1))], r"got on cpu\(1\)"),
        ([1.0], "got 1.0"),
        (None, "got None"),  # a backward without a return
    ],
)
def test_losses_that_are_none_or_elsewhere_are_an_error(losses, got):
    net = initialized("hybrid sequential", ONE)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    with pytest.raises(ValueError, match=f"backward must return the losses.* {got}: return"):
        snapshot.gradient(lambda batch: losses, None)


def test_a_backward_without_a_backward_pass_is_an_error():
    net = initialized("hybrid sequential", ONE)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    with pytest.raises(RuntimeError, match=r"backward has to call backward\(\) on the loss"):
        snapshot.full_gradient(lambda batch: net(batch[0])[:, 0], batches())


def test_parameters_instead_of_their_names_are_an_error():
    net = initialized("hybrid sequential", ONE)
    with pytest.raises(TypeError, match="params must hold the names of parameters, got Parameter"):
        gs.Snapshot(net, net.collect_params().values())


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_block_that_is_used_twice_is_put_aside_once(hybridize):
    twice = nn.Dense(6, in_units=6, activation="tanh")
    net = nn.HybridSequential()
    net.add(twice, twice, nn.Dense(3, in_units=6))
    net.initialize(mx.init.Normal(0.5))
    if hybridize:
        twice.hybridize(static_alloc=True)
    calls = []
    twice.register_forward_hook(lambda *args: calls.append(1))
    backward = backward_of(net, ONE)
    batch = batches()[0]
    backward(batch)
    cached_op = twice._cached_op
    snapshot = gs.Snapshot(net)
    snapshot.take()
    for _ in range(2):
        snapshot.gradient(backward, batch)
        assert twice._cached_op is cached_op
        assert len(calls) == 2
    backward(batch)
    assert len(calls) == 4


def test_a_layer_that_is_added_later_belongs_to_the_next_snapshot():
    net = nn.HybridSequential()
    net.add(nn.Dense(6, in_units=6))
    net.initialize(mx.init.Normal(0.5))
    snapshot = gs.Snapshot(net)
    snapshot.take()
    net.add(nn.Dense(3, in_units=6))
    net[1].initialize(mx.init.Normal(0.5))
    snapshot.take()
    backward = backward_of(net, ONE)
    batch = batches()[0]
    own = net[1].weight.grad().asnumpy()
    twin = snapshot.gradient(backward, batch).sums[net[1].weight.name][0].asnumpy()
    assert np.array_equal(net[1].weight.grad().asnumpy(), own)
    backward(batch)
    assert np.array_equal(net[1].weight.grad().asnumpy(), twin)


def test_a_backward_of_several_passes_is_added_up():
    """grad_req='add' and a batch in two halves: the twin has the sum, as the network has."""
    net = initialized("hybrid sequential", ONE)
    net.collect_params().setattr("grad_req", "add")
    whole = backward_of(net, ONE)
    x, y = batches()[0]
    halves = [(x[:6], y[:6]), (x[6:], y[6:])]

    def backward(batch):
        return [whole(half)[0] for half in batch]

    snapshot = gs.Snapshot(net)
    snapshot.take()
    for _ in range(2):  # two batches are not added up
        net.collect_params().zero_grad()
        backward(halves)
        twin = snapshot.gradient(backward, halves)
        assert twin.samples == [12]
        for name, grads in twin.sums.items():
            own = net.collect_params()[name].grad().asnumpy()
            assert np.array_equal(grads[0].asnumpy(), own)


def test_interrupted_between_exchanges_the_network_gets_its_weights_back(monkeypatch):
    net = initialized("hybrid sequential", ONE)
    data = net[0].weight.list_data()
    snapshot = gs.Snapshot(net)
    snapshot.take()

    def interrupt(state):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(snapshot._blocks[0]), "enter", interrupt)
    with pytest.raises(KeyboardInterrupt):
        snapshot.gradient(backward_of(net, ONE), batches()[0])
    assert net[0].weight.list_data() is data
