"""Do several workers compute what one process does? Each trains in one way and in the other."""

import hashlib
import itertools
import random
from typing import NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg._mxnet.array_mode import to_active_mode
from gluon_svrg._mxnet.block import mark_fresh
from gluon_svrg.arrays.batch import Batch, is_empty
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.batch.backward import backward_of
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
from gluon_svrg.run import Run, RunState
from gluon_svrg.svrg import Interval, OptimalCoefficient

OPTIMIZERS = {
    "sgd": ("sgd", {"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01}),
    "lars": ("lars", {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}),
    "signum": ("signum", {"learning_rate": 0.01, "momentum": 0.9, "wd_lh": 0.01}),
    "adam": ("adam", {"learning_rate": 0.05}),
}
METHODS = {
    # coefficient, gradient table; None: the plain optimizer
    "plain": None,
    "svrg": (1.0, False),
    "table": (1.0, True),
    "alpha": (0.7, True),
    "auto": ("auto", True),
    "auto without table": ("auto", False),
}


class Kind(NamedTuple):
    """How the rows are shared out, and what is done with their gradients."""

    rows: int = 22
    batch_size: int = 8  # the last batch has 6
    contexts: int = 1
    arguments: tuple = ()
    dtype: str = "float64"


KINDS = {
    "smaller last batch": Kind(),
    "a last batch of one row": Kind(rows=15, batch_size=7),
    "fewer rows than workers": Kind(rows=5, batch_size=2),
    "batches of one row": Kind(rows=3, batch_size=1),
    "accumulate": Kind(rows=22, batch_size=5, arguments=(("accumulate", 2),)),
    "clip_norm": Kind(arguments=(("clip_norm", 0.05),)),
    "clip_value": Kind(arguments=(("clip_value", 0.01),)),
    "two contexts": Kind(rows=15, batch_size=7, contexts=2),
    "float32": Kind(dtype="float32"),
}


def all_cases():
    """Return each optimizer with each method, and the kinds with the methods and optimizers.

    In an order by chance, which is always the same: a part of them has some of everything.
    """
    cases = [(o, m, "smaller last batch") for o, m in itertools.product(OPTIMIZERS, METHODS)]
    cases += [("sgd", m, k) for m, k in itertools.product(METHODS, KINDS)]
    cases += [(o, "table", k) for o, k in itertools.product(OPTIMIZERS, KINDS)]
    ways = itertools.cycle([train_by_fit, train_by_hand])
    ordered = [(way, *case) for way, case in zip(ways, dict.fromkeys(cases), strict=False)]
    random.Random(0).shuffle(ordered)
    return ordered


def some(part="0", of="1"):
    """Return what is wrong in a part of all cases: each with how far it is from one process.

    Each case is trained by `fit` or by a loop by hand.
    """
    return compare(all_cases()[int(part) :: int(of)])


def some_in_numpy_mode():
    """Return what is wrong in MXNet's NumPy mode, in cases that are trained by `fit`."""
    mx.npx.set_np()
    cases = [("sgd", method, "smaller last batch") for method in METHODS]
    cases += [(optimizer, "table", "two contexts") for optimizer in OPTIMIZERS]
    cases += [("sgd", "table", kind) for kind in ("fewer rows than workers", "accumulate")]
    return compare([(train_by_fit, *case) for case in cases])


def compare(cases):
    """Train each case over the workers, and one of them also alone."""
    own = workers.current()
    wrong = []
    for number, (train, *case) in enumerate(cases):
        weights = train(*case)
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        if len(set(own.all_gather_object(digest, "digest of a case"))) > 1:
            wrong.append([train.__name__, *case, "the workers differ from each other"])
        if number % own.size != own.rank:
            continue
        with workers.single_process():
            expected = train(*case)
        largest = np.abs(expected).max()
        difference = np.inf
        if weights.shape == expected.shape:
            difference = np.abs(weights - expected).max() / largest
        if not difference <= (1e-5 if KINDS[case[2]].dtype == "float32" else 1e-10):
            wrong.append([train.__name__, *case, float(difference)])
        moved = np.abs(expected[-1] - expected[0]).max()
        if not moved > 1e-3 * largest:
            wrong.append([train.__name__, *case, f"the weights have moved by {moved} only"])
    return {
        "number": len(cases),
        "wrong": list(itertools.chain(*own.all_gather_object(wrong, "end"))),
    }


def train_by_fit(optimizer, method, kind):
    """Return the weights after each batch of `fit`, by handlers that see whole batches."""
    method, kind = METHODS[method], KINDS[kind]
    run = Hand(optimizer, method, kind)
    data, label = (array.astype(kind.dtype) for array in samples(kind))
    handlers = [GradientUpdateHandler(**dict(kind.arguments)), Recorder()]
    if method:
        coefficient, table = method
        handlers.append(
            gs.SVRGHandler(coefficient=coefficient, gradient_table=table, start_epoch=1)
        )
    estimator = gs.Estimator(
        run.net, run.loss, trainer=run.trainer, context=run.context, cpu_tuning=False
    )
    loader = gs.data.ArrayLoader(data, label, batch_size=kind.batch_size, shuffle=True, seed=3)
    estimator.fit(loader, epochs=3, event_handlers=handlers, verbose=0)
    return np.array(handlers[1].weights)


class Recorder(gs.events.BatchEnd, gs.events.EpochEnd):
    """Keeps the weights after each step."""

    priority = 5000.0

    def __init__(self):
        self.weights = []

    def batch_end(self, estimator, *args, **kwargs):
        self.weights.append(weights_of(estimator.net))

    def epoch_end(self, estimator, *args, **kwargs):
        self.weights.append(weights_of(estimator.net))


def train_by_hand(optimizer, method, kind):
    """Return the weights after each step of a loop by hand: a row each."""
    method, kind = METHODS[method], KINDS[kind]
    data, label = samples(kind)
    run = Hand(optimizer, method, kind)
    batches = run.own_parts(data, label, kind)
    coefficient = OptimalCoefficient() if method and method[0] == "auto" else method and method[0]
    backward = run.backward()
    interval = Interval(
        run.net,
        backward,
        gradient_table=bool(method and method[1]),
        loss_scaler=run.trainer,
        workers=run.workers,
        progress_bar=False,
    )
    step = GradientUpdateHandler(**dict(kind.arguments))
    step.train_begin(run)
    weights = []
    for epoch in range(3):
        if method and epoch:  # the first epoch is a warm start
            run.trainer.set_control_variate(interval.begin(batches), coefficient)
        for index, batch in enumerate(batches):
            if method and epoch:
                interval.before(batch, index)
            loss = backward(batch)
            if method and epoch:
                run.trainer.correct(interval.gradient(batch, index))
            step.batch_end(run, loss=loss)
            weights.append(weights_of(run.net))
        step.steps_due(run)
        weights.append(weights_of(run.net))
        interval.check()
    if method:
        passes = 2 * len(data) * (1 if method[1] else 2)
        assert interval.gradient_evaluations == passes, interval.gradient_evaluations
    step.train_end(run)
    return np.array(weights)


class Hand(Run):
    """What the parts of this package ask of a run."""

    state = RunState()

    def __init__(self, optimizer, method, kind):
        # An estimated coefficient is one of a whole batch: that of one process with one context.
        is_whole = bool(method) and method[0] == "auto" and not workers.current().is_distributed
        self.context = [mx.cpu(i) for i in range(1 if is_whole else kind.contexts)]
        self.net = network(kind.dtype, self.context)
        name, arguments = OPTIMIZERS[optimizer]
        self.trainer = gs.SVRGTrainer(self.net.collect_params(), name, dict(arguments))
        self.workers = self.trainer.workers
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.batch_processor = BatchProcessor()
        self.trainer.synchronize(self.net)

    def own_parts(self, data, label, kind):
        """Return the rows of each batch that are this worker's, if there are any."""
        batches = []
        for index, begin in enumerate(range(0, len(data), kind.batch_size)):
            rows = min(kind.batch_size, len(data) - begin)
            first, last = (
                begin + rank * rows // self.workers.size
                for rank in (self.workers.rank, self.workers.rank + 1)
            )
            arrays = () if first == last else (data[first:last], label[first:last])
            batches.append(Batch(tuple(map(mx.nd.array, arrays)), index))
            for array in tree_leaves(batches[-1]):
                assert array.size
        return [Batch(tuple(a.astype(kind.dtype) for a in batch), batch.index) for batch in batches]

    def backward(self):
        """Return the pass of a batch, also of one without a row here."""
        passed = backward_of(self)

        def run(batch):
            if not is_empty(batch):
                return passed(batch)
            for param in self.net.collect_params().values():
                for array, grad in zip(param.list_data(), param.list_grad(), strict=True):
                    if param.grad_req == "write":
                        grad[:] = 0
                    mark_fresh(array, True)
            return []

        return run


def samples(kind):
    """Return the rows of data and label."""
    generator = np.random.default_rng(1)
    return (
        generator.standard_normal((kind.rows, 4)).astype("float32"),
        generator.integers(0, 3, kind.rows).astype("float32"),
    )


def network(dtype, contexts):
    """Return a network whose weights differ from worker to worker until they are synchronized."""
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Dense(5, activation="tanh", in_units=4),
            mx.gluon.nn.Dense(3, in_units=5),
        )
    net.initialize(ctx=contexts)
    net.cast(dtype)
    rank = workers.current().rank
    for number, param in enumerate(net.collect_params().values()):
        values = np.random.default_rng([rank, number]).standard_normal(param.shape)
        param.set_data(to_active_mode(mx.nd.array(values.astype("float32"), dtype=dtype)))
    net.hybridize()
    return net


def weights_of(net):
    """Return all weights, of all contexts, in one row."""
    params = net.collect_params().values()
    first = [param.list_data()[0].asnumpy().ravel() for param in params]
    for param in params:
        for data in param.list_data()[1:]:
            np.testing.assert_array_equal(data.asnumpy(), param.list_data()[0].asnumpy())
    return np.concatenate(first)
