"""Each defect of MXNet's SVRGModule, shown there and absent here."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule
from mxnet.gluon import nn

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = (X @ np.arange(1, 5)).astype("float32")


def module_with(layer, kvstore=None):
    """Return MXNet's SVRGModule of a linear model and its data iterator, 3 batches of 4."""
    data, label = mx.sym.var("data"), mx.sym.var("label")
    scores = mx.sym.FullyConnected(data, num_hidden=1, name=layer)
    module = SVRGModule(
        mx.sym.LinearRegressionOutput(scores, label),
        label_names=["label"],
        update_freq=1,
        logger=logging.getLogger("quiet"),
    )
    iterator = mx.io.NDArrayIter(X, Y, batch_size=4, label_name="label")
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(mx.init.One())
    module.init_optimizer(kvstore=kvstore, optimizer_params={"learning_rate": 0.01})
    return module, iterator


# Both sides compute in float32, the expected values in float64: 1e-5; 1e-4 where a step is divided
# by the learning rate to get the gradient back.


def one_step(module, iterator):
    """Take one step of MXNet's SVRG; return the weights after it."""
    module.update_full_grads(iterator)
    iterator.reset()
    module.forward_backward(next(iterator))
    module.update()
    return module.get_params()[0]


def our_step(layer):
    net = nn.Dense(1, in_units=4, prefix=f"{layer}_")
    net.initialize(mx.init.One())
    estimator = runs.estimator_of(net, mx.gluon.loss.L2Loss(), lr=0.01)
    batches = [(mx.nd.array(X[i : i + 4]), mx.nd.array(Y[i : i + 4])) for i in (0, 4, 8)]
    estimator.fit(batches, batches=1, event_handlers=[gs.SVRGHandler()])
    return {name: param.data() for name, param in net.collect_params().items()}


def expected_step():
    """One step of SVRG from the snapshot itself is a step along the full gradient."""
    params = [np.ones((1, 4)), np.zeros(1)]
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]
    full = oracle.full_gradient(oracle.linear_gradient, params, batches)
    return [param - 0.01 * mean for param, mean in zip(params, full, strict=True)]


@pytest.mark.parametrize("layer", ["dense", "fullyconnected0"])
def test_defect_1_full_in_a_parameters_name(layer):
    """MXNet takes a parameter with 'full' in its name, as FullyConnected gives by default, for an
    accumulator of its own, and overwrites it by its gradient."""
    weight, bias = expected_step()
    ours = our_step(layer)
    np.testing.assert_allclose(ours[f"{layer}_weight"].asnumpy(), weight, rtol=1e-5)
    np.testing.assert_allclose(ours[f"{layer}_bias"].asnumpy(), bias, rtol=1e-5)

    theirs = one_step(*module_with(layer))
    if layer == "dense":
        np.testing.assert_allclose(theirs["dense_weight"].asnumpy(), weight, rtol=1e-5)
    else:
        # 4 = the batch size, by which MXNet divides in the step only: it is the bare sum.
        gradient = (np.ones((1, 4)) - weight) / 0.01 * 4
        np.testing.assert_allclose(theirs["fullyconnected0_weight"].asnumpy(), gradient, rtol=1e-4)


def test_defect_2_the_second_full_gradient_at_unchanged_weights():
    """MXNet never empties its accumulator: after the second pass it is off by 1/3 (3 batches)."""
    module, iterator = module_with("dense")
    module.update_full_grads(iterator)
    first = module._param_dict[0]["dense_weight"].asnumpy()
    module.update_full_grads(iterator)
    second = module._param_dict[0]["dense_weight"].asnumpy()
    np.testing.assert_allclose(second, first * (1 + 1 / 3), rtol=1e-5)

    problem = problems.make("linear")
    snapshot = gs.Snapshot(problem.net)
    snapshot.take()
    backward = problems.backward_of(problem.net, problem.loss)
    passes = [snapshot.full_gradient(backward, problem.ndarrays()).means for _ in range(2)]
    for name, mean in passes[0].items():
        assert np.array_equal(mean.asnumpy(), passes[1][name].asnumpy())


def test_another_defect_a_kvstore_empties_the_weights():
    """With a kvstore that runs the optimizer, init_optimizer pulls the empty accumulators into the
    weights, so training starts from zero, whatever the initializer was."""
    module, _ = module_with("dense", kvstore=mx.kv.create("local"))
    (weight,), _ = module._exec_group.param_arrays
    assert not weight.asnumpy().any()
    (untouched,), _ = module_with("dense")[0]._exec_group.param_arrays
    assert untouched.asnumpy().all()


def test_a_model_that_it_saved_trains_as_a_block(tmp_path, monkeypatch):
    """As docs/migrating-from-svrgmodule.md says."""
    monkeypatch.chdir(tmp_path)
    module, _ = module_with("fc1")
    module.save_checkpoint("model", 0)
    mx.sym.load("model-symbol.json").get_internals()["fc1_output"].save("net.json")
    net = mx.gluon.SymbolBlock.imports("net.json", ["data"], "model-0000.params")
    weight = net.collect_params()["fc1_weight"].data().asnumpy()
    assert np.array_equal(weight, module.get_params()[0]["fc1_weight"].asnumpy())
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    data = mx.io.NDArrayIter(X, Y, batch_size=4)
    estimator = gs.Estimator(net, mx.gluon.loss.L2Loss(), trainer=trainer)
    losses = estimator.fit(data, epochs=3, event_handlers=[gs.SVRGHandler()]).history.column(
        "training loss"
    )
    assert losses[2] < losses[0]
