"""An optimizer and its schedule belong to the parameters of one trainer.

With those of two trainers, 0.8 computed with the multipliers and counts of some for the others.
"""

import copy
import pickle

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.optimizer.optimizer import Optimizer
from mxnet import autograd, gluon
from mxnet.gluon import nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
TRAINERS = {"gluon": gluon.Trainer, "svrg": gs.SVRGTrainer}
NAMES = {*mx.optimizer.Optimizer.opt_registry, *Optimizer.opt_registry}
NAMES = sorted(NAMES - {"test", "ccsgd", "groupadagrad"})  # which do not train a Dense layer


def network(seed, *, prefix=None):
    mx.random.seed(seed)
    net = nn.Dense(1, in_units=4, prefix=prefix)
    net.initialize(mx.init.Normal(0.5))
    return net


def step(net, trainer, samples=20):
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(mx.nd.array(X)), mx.nd.array(Y))
    loss.backward()
    trainer.step(samples)


def optimizer_of(name, **arguments):
    return Optimizer.create_optimizer(name, learning_rate=0.1, **arguments)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("prefix", [None, "same_"])
@pytest.mark.parametrize("first", TRAINERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_second_owner_is_refused(name, first, prefix, steps):
    nets = [network(0, prefix=prefix), network(1, prefix=prefix)]
    optimizer = optimizer_of(name)
    trainer = TRAINERS[first](nets[0].collect_params(), optimizer)
    for _ in range(steps):
        step(nets[0], trainer)
    rescale = optimizer.rescale_grad
    kind, owner = type(optimizer).__name__, nets[0].weight.name
    message = f"this {kind} belongs to the parameters .*'{owner}'.* already.*: make a new {kind}"
    with pytest.raises(ValueError, match=message):
        gs.SVRGTrainer(nets[1].collect_params(), optimizer)
    assert [optimizer.param_dict[i].name for i in range(2)] == sorted(nets[0].collect_params())
    assert all(p in nets[0].collect_params().values() for p in optimizer.param_dict.values())
    assert optimizer.rescale_grad == rescale
    step(nets[0], trainer)  # the first one continues


@pytest.mark.parametrize("second", ["step", "update"])
@pytest.mark.parametrize("name", ["adamw", "lars", "mars", "sgd", "adam"])
def test_a_plain_trainer_comes_second(name, second):
    nets = [network(0), network(1)]
    trainer = gs.SVRGTrainer(nets[0].collect_params(), optimizer_of(name), update_on_kvstore=False)
    step(nets[0], trainer)
    gluon.Trainer(nets[1].collect_params(), trainer.optimizer)
    before = problems.weights_of(nets[0])
    with pytest.raises(RuntimeError, match=f"trainer of other parameters, .*'{nets[1].bias.name}'"):
        getattr(trainer, second)(20)
    assert problems.same(problems.weights_of(nets[0]), before)


def used_by_an_updater(optimizer):
    weight = mx.nd.ones((2,))
    mx.optimizer.get_updater(optimizer)(0, weight, weight)
    return optimizer


def used_by_a_module(optimizer):
    data, label = mx.sym.var("data"), mx.sym.var("label")
    out = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1), label)
    module = mx.module.Module(out, label_names=["label"])
    module.bind([("data", (20, 4))], [("label", (20, 1))])
    module.init_params()
    module.init_optimizer(optimizer=optimizer, kvstore=None)
    return optimizer


def copied(copy_of):
    def used(optimizer):
        net = network(3)
        step(net, gs.SVRGTrainer(net.collect_params(), optimizer))
        return copy_of(optimizer)

    return used


USES = {
    "an Updater": (used_by_an_updater, "those of another Updater"),
    "a Module": (used_by_a_module, "the parameters 'fullyconnected"),
    "a copy": (copied(copy.deepcopy), ""),
    "a pickled copy": (copied(lambda optimizer: pickle.loads(pickle.dumps(optimizer))), ""),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_one_that_was_used_elsewhere(name, use):
    make, whose = USES[use]
    used = make(optimizer_of(name))
    with pytest.raises(ValueError, match=f"belongs to {whose}.* already, whose updates it counts"):
        gs.SVRGTrainer(network(0).collect_params(), used)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_copies_of_one_that_was_not_used(name):
    original = optimizer_of(name)
    for number in range(3):
        net = network(number)
        step(net, gs.SVRGTrainer(net.collect_params(), copy.deepcopy(original)))
    gs.SVRGTrainer(network(4).collect_params(), original)


@pytest.mark.parametrize("form", ["ParameterDict", "dict", "list"])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("first", TRAINERS)
@pytest.mark.parametrize("name", ["sgd", "signum", "lars"])
def test_a_new_trainer_of_the_same_parameters(name, first, steps, form):
    """It continues as one trainer does; 0.8 and Gluon divide by the batch size twice."""
    weights = []
    for is_made_again in (False, True):
        net = network(0)
        arguments = {} if name == "sgd" else {"momentum": 0.0}
        optimizer = optimizer_of(name, rescale_grad=0.5, **arguments)
        trainer = TRAINERS[first](net.collect_params(), optimizer)
        for _ in range(steps):
            step(net, trainer)
        if is_made_again:
            params = net.collect_params()
            given = {
                "ParameterDict": params,
                "dict": dict(params.items()),
                "list": [params[key] for key in sorted(params)],
            }[form]
            trainer = gs.SVRGTrainer(given, optimizer)
        for _ in range(2):
            step(net, trainer)
        weights.append(problems.weights_of(net))
    assert problems.same(*weights)


def test_the_same_parameters_in_another_order_are_others():
    params = network(0).collect_params()
    in_order = [params[key] for key in sorted(params)]
    trainer = gs.SVRGTrainer(in_order, optimizer_of("adam"))
    with pytest.raises(ValueError, match="belongs to the parameters"):
        gs.SVRGTrainer(in_order[::-1], trainer.optimizer)
    with pytest.raises(ValueError, match="belongs to the parameters"):
        gs.SVRGTrainer(in_order[:1], trainer.optimizer)


def test_a_new_trainer_after_which_the_old_one_goes_on():
    net = network(0)
    old = gs.SVRGTrainer(net.collect_params(), optimizer_of("sgd"))
    gs.SVRGTrainer(net.collect_params(), old.optimizer)
    step(net, old)


SCHEDULES = {
    "factor": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1),
    "steps": lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4], 0.5, base_lr=0.1),
    "poly": lambda: mx.lr_scheduler.PolyScheduler(9, base_lr=0.1),
    "cosine": lambda: mx.lr_scheduler.CosineScheduler(9, base_lr=0.1),
}


def steps_of_two(first, schedules, is_at_once):
    """Train two networks, the second one twice as far as the first; return their weights."""
    nets = [network(0), network(1)]
    trainers = []
    for net, kind, schedule in zip(nets, [first, gs.SVRGTrainer], schedules, strict=True):
        trainers.append(kind(net.collect_params(), "sgd", {"lr_scheduler": schedule}))
        for _ in range(0 if is_at_once else 5):
            step(net, trainers[-1])
    for _ in range(5 * is_at_once):
        for index in (1, 0, 1):
            step(nets[index], trainers[index])
    return [array for net in nets for array in problems.weights_of(net)]


def apart_and_together(make, is_at_once, trainer=gs.SVRGTrainer):
    """Return the weights with a schedule for each, and with one for both."""
    one = make()
    return [steps_of_two(trainer, each, is_at_once) for each in ([make(), make()], [one, one])]


AT_ONCE = pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "in turn"])


@AT_ONCE
@pytest.mark.parametrize("name", ["factor", "steps"])
def test_a_schedule_of_two_optimizers(name, is_at_once):
    kind = type(SCHEDULES[name]()).__name__
    message = f"this {kind} belongs to an optimizer of other parameters already, .* a new {kind}"
    with pytest.raises(ValueError, match=message):
        apart_and_together(SCHEDULES[name], is_at_once)
    if is_at_once:  # so that it is refused
        assert not problems.same(*apart_and_together(SCHEDULES[name], True, gluon.Trainer))


@pytest.mark.parametrize("name", ["poly", "cosine"])
def test_a_schedule_without_a_count_of_two_optimizers(name):
    """One after the other the rates are right; past its end, they are the other's."""
    assert problems.same(*apart_and_together(SCHEDULES[name], False))
    kind = type(SCHEDULES[name]()).__name__
    message = rf"this {kind} is at its end after 9 updates, .* is 0\.0.*, not 0: make a new {kind}"
    with pytest.raises(RuntimeError, match=message):
        apart_and_together(SCHEDULES[name], True)
    assert not problems.same(*apart_and_together(SCHEDULES[name], True, gluon.Trainer))


class Halves(mx.lr_scheduler.LRScheduler):
    """A schedule of the user's own, a function of the number of updates."""

    def __call__(self, num_update):
        return 0.1 * 0.5**num_update


@AT_ONCE
def test_a_schedule_of_ones_own_of_two_optimizers(is_at_once):
    assert problems.same(*apart_and_together(Halves, is_at_once))


@pytest.mark.parametrize("name", ["factor", "steps"])
def test_a_schedule_that_a_plain_trainer_has_used(name):
    one = SCHEDULES[name]()
    with pytest.raises(ValueError, match="has counted the updates of another optimizer, to 4"):
        steps_of_two(gluon.Trainer, [one, one], False)


def test_a_schedule_whose_count_is_something_else():
    """As GluonCV's LRSequential has the number of all updates."""

    class Sequential(mx.lr_scheduler.LRScheduler):
        count = 40

        def __call__(self, num_update):
            return 0.1

    net = network(0)
    step(net, gs.SVRGTrainer(net.collect_params(), "sgd", {"lr_scheduler": Sequential()}))


def test_a_function_is_no_ones():
    def schedule(count):
        return 0.1 / count

    def own(count):
        return 0.1 / count

    apart, together = (
        steps_of_two(gs.SVRGTrainer, each, True) for each in ([schedule, own], [schedule] * 2)
    )
    assert problems.same(apart, together)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_a_trainer_that_is_made_again(name):
    """Before any step, and with its optimizer after steps."""
    schedule, net = SCHEDULES[name](), network(0)
    for _ in range(2):
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    for _ in range(2):
        for _ in range(5):
            step(net, trainer)
        trainer = gs.SVRGTrainer(net.collect_params(), trainer.optimizer)


@pytest.mark.parametrize("rate", ["0.1", None, float("nan"), float("inf"), True])
def test_a_learning_rate_that_is_no_number(rate):
    trainer = gs.SVRGTrainer(network(0).collect_params(), "sgd", {"learning_rate": 0.5})
    with pytest.raises((TypeError, ValueError), match=r"lr must be a (finite )?number, got"):
        trainer.set_learning_rate(rate)
    assert trainer.learning_rate == 0.5


def test_what_two_trainers_may_share():
    """A network, its parts, data, a loss and an initializer have no owner."""
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=4), nn.Dense(1, in_units=3))
    net.initialize()
    body, head = (
        gs.SVRGTrainer(part.collect_params(), "adam", {"learning_rate": rate})
        for part, rate in zip(net, (0.1, 0.01), strict=True)
    )
    whole = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    data, loss = gs.data.ArrayLoader(X, Y, batch_size=5), gluon.loss.L2Loss()
    for batch, label in data:
        with autograd.record():
            value = loss(net(batch), label)
        value.backward()
        body.step(5)
        head.step(5)
    for _ in range(2):
        gs.Estimator(net, loss, trainer=whole).fit(data, data, epochs=1, verbose=0)
