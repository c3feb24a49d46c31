"""After the trial steps a run is the run without them, bit for bit."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.arrays.encoding import from_bytes
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.rng import draw_random_numbers
from gluon_svrg.tuning import dry_run
from gluon_svrg.tuning.dry_run import rolled_back
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO, weights_of

OPTIMIZERS = {
    "sgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "adam": {},
    "adamw": {},
    "mars": {},
    "lars": {"momentum": 0.9},
    "signum": {},
    "rmsprop": {"centered": True},
    "adagrad": {},
    "adadelta": {},
    "nadam": {},
    "ftrl": {},
    "ftml": {},
    "dcasgd": {},  # with a momentum MXNet asks for the truth of an array
    "sgld": {},
    "lamb": {},
}


def make_data(kind="ArrayLoader"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1, 6, 6)).astype("float32")
    y = rng.integers(0, 3, 40).astype("float32")
    if kind == "ArrayLoader":
        transform = gs.data.transforms.RandomFlipLeftRight()
        return gs.data.ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1, transform=transform)
    if kind == "NDArrayIter":
        return mx.io.NDArrayIter(x, y, 8, shuffle=True)
    if kind == "list":
        return [(mx.nd.array(x[i : i + 8]), mx.nd.array(y[i : i + 8])) for i in range(0, 40, 8)]
    dataset = gluon.data.ArrayDataset(x, y).transform_first(augment)
    if kind == "DataLoader":
        return gluon.data.DataLoader(dataset, 8, shuffle=True)
    assert kind == "DataLoader, rollover"
    return gluon.data.DataLoader(dataset, 12, shuffle=True, last_batch="rollover")


def augment(image):
    """Draws from all three generators."""
    noise = mx.nd.random.normal(shape=(1,)).asscalar() + np.random.normal() + random.random()
    return (image + 0.01 * noise).astype("float32")


def make_estimator(
    optimizer="sgd", contexts=ONE, hybridize=None, deferred=True, update_on_kvstore=None
):
    gs.seed_everything(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, activation="relu", in_channels=0 if deferred else 1))
        net.add(nn.BatchNorm(in_channels=0 if deferred else 4), nn.Dropout(0.5))
        net.add(nn.Dense(3, in_units=0 if deferred else 64))
    net.initialize(mx.init.Xavier(), ctx=list(contexts))
    if hybridize is not None:
        net.hybridize(**hybridize)
    arguments = {"learning_rate": 0.01, **OPTIMIZERS[optimizer]}
    trainer = gs.SVRGTrainer(
        net.collect_params(), optimizer, arguments, update_on_kvstore=update_on_kvstore
    )
    return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)


def everything(estimator):
    """All that a run is: weights on each device, states, figures, and the next random numbers."""
    meta, arrays = from_bytes(trainer_states(estimator.trainer).to_bytes())
    params = estimator.net.collect_params().values()
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in estimator.history]
    numbers = [draw_random_numbers(estimator.context), np.random.rand(3), random.random()]
    return {
        "weights": [w.asnumpy() for param in params for w in param.list_data()],
        "meta": meta,
        "arrays": arrays,
        "history": rows,
        "numbers": numbers,
    }


def assert_same(ours, theirs):
    np.testing.assert_equal(ours, theirs)


def steps(dry_run):
    """Seven steps that change everything, with a large rate."""
    for batch in dry_run.batches(7):
        loss = dry_run.backward(batch)
        dry_run.step(loss)
    mx.nd.random.normal(shape=(3,))
    np.random.rand(5)
    random.random()
    return "done"


def tried(estimator, data, event_handlers=None):
    rate = estimator.trainer.learning_rate
    estimator.trainer.set_learning_rate(0.5)
    weights = everything_that_is_set(estimator)
    result = rolled_back(estimator, data, event_handlers, 0, steps)
    assert result == "done"
    np.testing.assert_equal(weights, everything_that_is_set(estimator))
    estimator.trainer.set_learning_rate(rate)


def everything_that_is_set(estimator):
    params = estimator.net.collect_params().values()
    return [
        [param.shape, param._deferred_init != (), str(param.grad_req)]
        + [w.asnumpy() for w in (param._data or [])]
        for param in params
    ]


def outcome(is_tried, kind="ArrayLoader", **arguments):
    estimator, data = make_estimator(**arguments), make_data(kind)
    if is_tried:
        tried(estimator, data)
    estimator.fit(data, epochs=2, verbose=0)
    return everything(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("deferred", [True, False])
def test_every_optimizer_goes_on_as_without(optimizer, contexts, deferred):
    arguments = {"optimizer": optimizer, "contexts": contexts, "deferred": deferred}
    assert_same(outcome(True, **arguments), outcome(False, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    "hybridize",
    [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}],
    ids=["plain", "static_alloc", "static_shape"],
)
@pytest.mark.parametrize("deferred", [True, False])
def test_hybridized_networks(hybridize, deferred, mode):
    arguments = {"hybridize": hybridize, "deferred": deferred}
    kind = "ArrayLoader"
    assert_same(outcome(True, kind, **arguments), outcome(False, kind, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize("update_on_kvstore", [True, False])
def test_with_and_without_updates_on_the_kvstore(update_on_kvstore):
    arguments = {"contexts": TWO, "update_on_kvstore": update_on_kvstore}
    assert_same(outcome(True, **arguments), outcome(False, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["list", "DataLoader", "DataLoader, rollover", "NDArrayIter", "ArrayLoader"]
)
def test_every_kind_of_data_goes_on_as_without(kind):
    """After an epoch: some samples are carried over, and arrays are shuffled."""

    def run(is_tried):
        estimator, data = make_estimator(), make_data(kind)
        estimator.fit(data, epochs=1, verbose=0)
        if is_tried:
            tried(estimator, data)
        estimator.fit(data, epochs=3, initial_epoch=1, verbose=0)
        return everything(estimator)

    assert_same(run(True), run(False))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lars", "nadam"])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    "hybridize", [None, {"static_alloc": True, "static_shape": True}], ids=["by name", "static"]
)
def test_in_the_middle_of_a_training(optimizer, contexts, hybridize):
    """The same graphs, momentum and counts continue."""

    def run(is_tried):
        data = make_data()
        estimator = make_estimator(optimizer, contexts, hybridize)
        estimator.fit(data, epochs=1, verbose=0)
        graph = estimator.net._cached_op
        if is_tried:
            tried(estimator, data)
        assert estimator.net._cached_op is graph
        estimator.fit(data, epochs=2, initial_epoch=1, verbose=0)
        return everything(estimator)

    assert_same(run(True), run(False))


def sparse_outcome(is_tried, optimizer, contexts):
    gs.seed_everything(1)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (40, 3)).astype("float32")
    y = rng.integers(0, 3, 40).astype("float32")
    data = gs.data.ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1)
    net = nn.HybridSequential()
    net.add(nn.Embedding(20, 4, sparse_grad=True), nn.Dense(3, in_units=12))
    net.initialize(mx.init.Xavier(), ctx=list(contexts))
    estimator = runs.estimator_of(net, optimizer=optimizer)
    if is_tried:
        tried(estimator, data)
    estimator.fit(data, epochs=2, verbose=0)
    return everything(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_row_sparse_gradients(optimizer, contexts):
    ours, theirs = (sparse_outcome(is_tried, optimizer, contexts) for is_tried in (True, False))
    for outcome in (ours, theirs):  # names of parameters differ from network to network
        outcome["meta"].pop("params")
    assert_same(ours, theirs)


class OwnGenerators:
    """Batches from generators and from a position of its own."""

    def __init__(self):
        self._rng = np.random.default_rng(5)
        self._old = np.random.RandomState(5)
        self._python = random.Random(5)
        self._order = list(range(6))
        self._passes = 0

    def __iter__(self):
        self._passes += 1
        self._python.shuffle(self._order)
        for index in self._order:
            x = self._rng.normal(size=(8, 1, 6, 6)) + index + self._passes
            x += self._old.normal()
            yield mx.nd.array(x), mx.nd.array(self._rng.integers(0, 3, 8))


@pytest.mark.slow
def test_generators_and_places_of_the_datas_own():
    def run(is_tried):
        estimator, data = make_estimator(), OwnGenerators()
        if is_tried:
            tried(estimator, data)
        estimator.fit(data, epochs=2, verbose=0)
        return everything(estimator), data._passes

    assert_same(run(True), run(False))


@pytest.mark.full
def test_the_generators_of_a_data_loaders_worker():
    """One worker, so that its draws repeat; it forks after the seed."""

    def run(is_tried):
        estimator = make_estimator()
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(24, 1, 6, 6)).astype("float32"), rng.integers(0, 3, 24)
        dataset = gluon.data.ArrayDataset(x, y.astype("float32")).transform_first(augment)
        data = gluon.data.DataLoader(dataset, 8, shuffle=True, num_workers=1)
        if is_tried:
            tried(estimator, data)
        estimator.fit(data, epochs=2, verbose=0)
        return everything(estimator)

    assert_same(run(True), run(False))


def test_gradients_that_accumulate_by_hand():
    estimator, data = make_estimator(deferred=False), make_data("list")
    params = [p for p in estimator.net.collect_params().values() if p.grad_req == "write"]
    for param in params:
        param.grad_req = "add"
    with autograd.record():
        loss = estimator.loss(estimator.net(data[0][0]), data[0][1])
    loss.backward()
    before = [param.grad().asnumpy() for param in params]
    tried(estimator, data)
    assert any(gradient.any() for gradient in before)
    np.testing.assert_equal(before, [param.grad().asnumpy() for param in params])
    assert all(param.data()._fresh_grad for param in params)


def test_a_step_handler_of_the_users_is_as_before():
    handler = gs.GradientUpdateHandler(accumulate=2, clip_norm=0.1)
    before = dict(vars(handler))

    def run(is_tried):
        estimator, data = make_estimator(), make_data()
        if is_tried:
            tried(estimator, data, [handler])
            assert vars(handler) == before
        estimator.fit(data, epochs=1, verbose=0, event_handlers=[handler])
        return everything(estimator)

    assert_same(run(True), run(False))


class Counting(gs.BatchProcessor):
    """Carries a state that it changes in place, and counts in an attribute."""

    def __init__(self):
        self.state = mx.nd.zeros(3)
        self.epochs = self.calls = 0

    def begin_epoch(self, estimator):
        self.epochs += 1

    def fit_batch(self, estimator, train_batch, batch_axis=0):
        self.calls += 1
        self.state += self.calls
        return super().fit_batch(estimator, train_batch, batch_axis)

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def test_what_a_batch_processor_carries():
    estimator, data = make_estimator(), make_data()
    estimator.batch_processor = Counting()
    estimator.fit(data, epochs=1, verbose=0)
    before = (1, 5, [15.0] * 3)
    seen = []

    def counted(dry_run):
        steps(dry_run)
        processor = estimator.batch_processor
        seen.append((processor.epochs, processor.calls))

    rolled_back(estimator, data, None, 0, counted)
    processor = estimator.batch_processor
    assert seen == [(3, 12)]
    assert (processor.epochs, processor.calls, processor.state.asnumpy().tolist()) == before


def test_everything_is_put_back_after_an_exception():
    def run(is_tried):
        estimator, data = make_estimator(), make_data()

        def failing(dry_run):
            steps(dry_run)
            raise RuntimeError("in the middle")

        if is_tried:
            with pytest.raises(RuntimeError, match="in the middle"):
                rolled_back(estimator, data, None, 0, failing)
        estimator.fit(data, epochs=1, verbose=0)
        return everything(estimator)

    assert_same(run(True), run(False))


@pytest.fixture
def _python_handles_sigint():
    """In a process that a shell has put into the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_python_handles_sigint")
def test_ctrl_c_ends_the_steps_and_puts_everything_back():
    def run(is_tried):
        estimator, data = make_estimator(), make_data()
        done = []

        def interrupted(dry_run):
            for batch in dry_run.batches(10_000):
                dry_run.step(dry_run.backward(batch))
                done.append(1)
                if len(done) == 2:
                    os.kill(os.getpid(), signal.SIGINT)

        if is_tried:
            with pytest.raises(KeyboardInterrupt):
                rolled_back(estimator, data, None, 0, interrupted)
            assert 2 <= len(done) < 10_000
        estimator.fit(data, epochs=1, verbose=0)
        return everything(estimator)

    assert_same(run(True), run(False))


class Slow(gs.BatchProcessor):
    """Presses Ctrl-C in a batch that takes longer than the user's patience; notes its ends."""

    def __init__(self, presses, number):
        self.presses = presses
        self.number = number
        self.ended = []

    def fit_batch(self, estimator, *args, **kwargs):
        outputs = super().fit_batch(estimator, *args, **kwargs)
        if len(self.ended) == self.number:
            for _ in range(self.presses):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
        self.ended.append(estimator)
        return outputs


@pytest.mark.slow
@pytest.mark.usefixtures("_python_handles_sigint")
@pytest.mark.parametrize("presses", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("find", [gs.find_learning_rate, gs.find_batch_size])
def test_no_step_is_taken_after_control_has_returned(find, number, presses):
    estimator, data = make_estimator(deferred=False), make_data()
    before, ended = weights_of(estimator.net), []
    estimator.batch_processor = Slow(presses, number)
    ended = estimator.batch_processor.ended
    with pytest.raises(KeyboardInterrupt):
        find(estimator, data)
    assert problems.same(weights_of(estimator.net), before)
    steps_then, thread = len(ended), dry_run._thread(process=os.getpid())
    assert thread._work_queue.empty()
    thread.submit(int).result()
    assert len(ended) == steps_then
    assert problems.same(weights_of(estimator.net), before)


def test_a_pool_that_starts_no_thread_is_not_waited_for():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        dry_run._wait_until_idle(pool)


def test_the_default_context_of_the_thread_that_calls():
    estimator, data = make_estimator(), make_data()
    with mx.cpu(1):
        rolled_back(estimator, data, None, 0, steps)
        assert mx.current_context() == mx.cpu(1)
    assert mx.current_context() == mx.cpu(0)


def test_the_steps_repeat():
    """They draw from generators that always begin alike."""

    def losses(dry_run):
        found = []
        for batch in dry_run.batches(7):
            loss = dry_run.backward(batch)
            found.append(loss[0].asnumpy())
            dry_run.step(loss)
        return found

    estimator, data = make_estimator(), make_data()
    first = rolled_back(estimator, data, None, 0, losses)
    assert len(first) == 7  # more than an epoch, which has five
    mx.random.seed(9)
    np.testing.assert_equal(first, rolled_back(estimator, data, None, 0, losses))


def test_weights_are_really_trained():
    estimator, data = make_estimator(deferred=False), make_data()
    before, seen = weights_of(estimator.net), []

    def watched(dry_run):
        steps(dry_run)
        seen.append(weights_of(estimator.net))

    rolled_back(estimator, data, None, 0, watched)
    assert not any(np.array_equal(a, b) for a, b in zip(before, seen[0], strict=True) if a.ndim > 1)


def test_all_calls_share_a_thread():
    """MXNet keeps memory for each thread that has drawn: one for each trial, that would add up."""
    estimator, data = make_estimator(), make_data("list")
    threads = {
        rolled_back(estimator, data, None, 0, lambda _: threading.current_thread())
        for _ in range(3)
    }
    assert len(threads) == 1
    assert threading.current_thread() not in threads


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_a_thread_of_its_own():
    dry_run._thread(process=os.getpid()).submit(int).result()
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(dry_run._thread(process=os.getpid()).submit(lambda: 7).result())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
