"""What the workers of the tests of the loop do: see tests/cluster.py."""

import os
import signal
from contextlib import contextmanager

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import events, workers
from gluon_svrg.workers import process

FEATURES, CLASSES = 6, 3


def arrays(samples=42, dtype="float64"):
    rng = np.random.RandomState(3)
    data = rng.normal(size=(samples, FEATURES)).astype(dtype)
    label = rng.randint(CLASSES, size=samples).astype(dtype)
    return mx.nd.array(data, dtype=dtype), mx.nd.array(label, dtype=dtype)


def loader(samples=42, batch_size=8, **arguments):
    return gs.data.ArrayLoader(*arrays(samples), batch_size=batch_size, **arguments)


def dense_net(units=CLASSES, dtype="float64"):
    mx.random.seed(5)
    net = mx.gluon.nn.Dense(units, in_units=FEATURES)
    net.initialize(mx.init.Normal(0.5))
    net.cast(dtype)
    return net


def waiting_net():
    """Its weights are drawn by the first batch that it sees."""
    mx.random.seed(5)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, activation="tanh"), mx.gluon.nn.Dense(CLASSES))
    net.cast("float64")
    net.initialize(mx.init.Normal(0.5))
    return net


def estimator_for(net=None, metrics=None, loss=None, rate=0.2, optimizer="sgd", **arguments):
    net = net or dense_net()
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, {"learning_rate": rate})
    loss = loss or mx.gluon.loss.SoftmaxCrossEntropyLoss()
    return gs.Estimator(net, loss, train_metrics=metrics, trainer=trainer, **arguments)


def figures_of(history):
    measured = gs.reporting.history.MEASURED
    return [{name: v for name, v in row.items() if name not in measured} for row in history]


def result_of(estimator, result):
    position = estimator.position
    return {
        "history": figures_of(result.history),
        "weights": [p.data().asnumpy().tolist() for p in estimator.net.collect_params().values()],
        "reason": result.stop_reason.name,
        "epochs_run": result.epochs_run,
        "position": position.state_dict(),
    }


def fitted(handlers=(), train=None, val=None, made=None, **arguments):
    """Fit; return what must be equal on all workers, and equal to one process."""
    estimator = estimator_for(**(made or {}))
    train = loader(shuffle=True, seed=1) if train is None else train
    arguments = {"epochs": 3, "verbose": 0} | arguments
    result = estimator.fit(train, val, event_handlers=list(handlers), **arguments)
    return result_of(estimator, result)


@contextmanager
def connected_anew():
    """Let the workers of this process be new ones: an error is the end of them."""
    from mpi4py import MPI

    process.current()
    fresh = workers.MPIWorkers(MPI.COMM_WORLD)
    process._workers.append(fresh)
    try:
        yield fresh
    finally:
        process._workers.pop()


def errors_of(*cases):
    """Return what each case raises here, as type and message."""
    raised = []
    for case in cases:
        with connected_anew() as fresh:
            try:
                case(fresh)
                raised.append(None)
            except Exception as error:
                raised.append([type(error).__name__, str(error)])
    return raised


class At(events.BatchBegin, events.BatchEnd, events.EpochEnd, events.SafePoint):
    """Calls a function at one event, on one worker only: whose answer is the handler's."""

    priority = -2500.0

    def __init__(self, event, batch, rank, function):
        self.event, self.batch, self.rank, self.function = event, batch, rank, function

    def _heard(self, event, estimator):
        is_there = (event, estimator.position.batch) == (self.event, self.batch)
        is_here = (
            self.rank in (estimator.workers.rank, None) or not estimator.workers.is_distributed
        )
        return self.function(estimator) if is_there and is_here else None

    def batch_begin(self, estimator, *args, **kwargs):
        return self._heard("batch_begin", estimator)

    def batch_end(self, estimator, *args, **kwargs):
        return self._heard("batch_end", estimator)

    def epoch_end(self, estimator, *args, **kwargs):
        return self._heard("epoch_end", estimator)

    def safe_point(self, estimator, *args, **kwargs):
        return self._heard("safe_point", estimator)


class Processor(gs.BatchProcessor):
    """Does something at one of its passes, on one worker only."""

    def __init__(self, kind, number, rank, function):
        super().__init__()
        self.kind, self.rank, self.function = kind, rank, function
        self.left = number

    def _passed(self, kind, estimator):
        if kind == self.kind:
            self.left -= 1
            is_here = estimator.workers.rank == self.rank or not estimator.workers.is_distributed
            if self.left == 0 and is_here:
                self.function(estimator)

    def fit_batch(self, estimator, batch, batch_axis=0):
        parts = super().fit_batch(estimator, batch, batch_axis)
        self._passed("fit", estimator)
        return parts

    def evaluate_batch(self, estimator, batch, batch_axis=0):
        self._passed("evaluate", estimator)
        return super().evaluate_batch(estimator, batch, batch_axis)


def interrupt(_=None):
    os.kill(os.getpid(), signal.SIGINT)


def terminate(_=None):
    os.kill(os.getpid(), signal.SIGTERM)


def make_nan(estimator):
    for param in estimator.net.collect_params().values():
        if param.grad_req != "null":
            param.grad()[:] = np.nan


def stop_by_time(rank):
    # Of two limits the earlier counts.
    return [gs.TimeLimitHandler(1000), At("batch_begin", 7, rank, lambda e: e.stop_after(0))]


def stopped_and_resumed(folder, number, every_n_batches):
    """Return a run that a signal stops in an evaluation, how it ends when resumed, and undisturbed.

    The signal comes at one worker.
    """

    def fit(name, function):
        return fitted(
            [
                gs.ValidationHandler(loader(40, 8), every_n_batches=every_n_batches),
                gs.EMAHandler(0.5),
                gs.SVRGHandler(),
                gs.SignalHandler(),
                gs.CheckpointHandler(f"{folder}/{name}"),
            ],
            made={"batch_processor": Processor("evaluate", number, 1, function), "metrics": "acc"},
            resume="auto",
        )

    return {
        **fit("stopped", interrupt),
        "resumed": fit("stopped", id),
        "undisturbed": fit("whole", id),
    }


def with_mxnets_validation(every_n_batches):
    """Return a run that MXNet's own ValidationHandler evaluates."""
    estimator = estimator_for(metrics="acc")
    handler = mx.gluon.contrib.estimator.ValidationHandler(
        loader(20, 8), estimator.evaluate, epoch_period=1, batch_period=every_n_batches
    )
    result = estimator.fit(loader(), epochs=3, event_handlers=[handler], verbose=0)
    return result_of(estimator, result)


def cases():
    """Return runs by name: each a function of the folder for its checkpoints, and the rank."""

    def signals(*given, made=None, val=None, **arguments):
        return lambda _: fitted(
            [gs.SignalHandler(), *(make() for make in given)],
            made=made and made(),
            val=val,
            **arguments,
        )

    def by_processor(kind, number, rank, function):
        return lambda: {
            "batch_processor": Processor(kind, number, rank, function),
            "metrics": "acc",
        }

    def rolled_back(action):
        def run(folder):
            return fitted(
                [
                    gs.CheckpointHandler(folder, every_n_batches=4, every_n_epochs=None)
                    if action == "roll_back"
                    else At("safe_point", -1, 0, id),
                    gs.NaNGuardHandler(action, every_n_batches=2),
                ],
                made=by_processor("fit", 9, 1, make_nan)(),
            )

        return run

    def stop_by_function(event):
        own = workers.current()
        is_here = own.rank == 1 or not own.is_distributed
        return gs.on(
            event, lambda e: e.stop() if is_here and e.position.batch == 8 else None, priority=-2500
        )

    val = loader(20, 8)
    return {
        "plain": lambda _: fitted(val=val, made={"metrics": "acc"}),
        "batches": lambda _: fitted(epochs=None, batches=9),
        "svrg": lambda _: fitted([gs.SVRGHandler()], val=val),
        "few rows": lambda _: fitted(
            [gs.SVRGHandler()], train=loader(17, 4, shuffle=True, seed=2), val=loader(9, 4)
        ),
        "shapes unknown": lambda _: fitted(made={"net": waiting_net()}),
        "shapes unknown, svrg": lambda _: fitted([gs.SVRGHandler()], made={"net": waiting_net()}),
        "shapes unknown, checkpoints": lambda folder: fitted(
            [gs.CheckpointHandler(folder)], made={"net": waiting_net()}
        ),
        "shapes unknown, both": lambda folder: fitted(
            [gs.SVRGHandler(), gs.CheckpointHandler(folder)], made={"net": waiting_net()}
        ),
        "early stopping": lambda _: fitted(
            [gs.EarlyStoppingHandler("training loss", patience=1, min_delta=0.1)], epochs=9
        ),
        "signal in a step": signals(lambda: At("batch_begin", 8, 1, interrupt)),
        "signal at different moments": signals(
            lambda: At("batch_begin", 11, 0, terminate), lambda: At("batch_end", 9, 1, terminate)
        ),
        "signal in a full pass": signals(
            lambda: gs.SVRGHandler(gradient_table=False),
            made=by_processor("fit", 22, 1, interrupt),
        ),
        "signal in an evaluation": signals(
            made=by_processor("evaluate", 3, 1, interrupt), val=loader(40, 8)
        ),
        "signal in an evaluation, resumed": lambda folder: stopped_and_resumed(folder, 8, None),
        "signal in an evaluation after a batch, resumed": lambda folder: stopped_and_resumed(
            folder, 13, 4
        ),
        "evaluations of averages": lambda _: fitted(
            [
                gs.EMAHandler(0.5),
                gs.GradientUpdateHandler(accumulate=4),
                gs.ValidationHandler(val, every_n_batches=4),
                gs.ValidationHandler(loader(9, 4), every_n_epochs=2, name="test"),
            ],
            made={"metrics": "acc"},
        ),
        "MXNet's evaluations": lambda _: with_mxnets_validation(4),
        "time limit": lambda _: fitted(stop_by_time(1)),
        "true at batch end": lambda _: fitted([At("batch_end", 8, 1, lambda _: True)]),
        "true at epoch end": lambda _: fitted([At("epoch_end", 12, 1, lambda _: True)]),
        "stop in a batch": lambda _: fitted([At("batch_begin", 8, 1, lambda e: e.stop())]),
        "stop at a safe point": lambda _: fitted([At("safe_point", 8, 1, lambda e: e.stop())]),
        "stop in a batch, by a function": lambda _: fitted([stop_by_function("batch_begin")]),
        "stop at a safe point, by a function": lambda _: fitted([stop_by_function("safe_point")]),
        "NaN, roll back": rolled_back("roll_back"),
        "NaN, stop": rolled_back("stop"),
    }


def runs(folder):
    """Run all cases together, and then alone."""
    rank = workers.current().rank
    together, alone = {}, {}
    for number, (name, run) in enumerate(cases().items()):
        print(name, flush=True)
        together[name] = run(f"{folder}/together{number}")
    with workers.single_process():
        for number, (name, run) in enumerate(cases().items()):
            alone[name] = run(f"{folder}/alone{rank}_{number}")
    return [together, alone]
