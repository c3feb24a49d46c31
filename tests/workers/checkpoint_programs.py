"""What the workers of test_checkpoints.py do: see tests/cluster.py."""

import hashlib
import itertools
import logging
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from cluster import answer
from gluon_svrg import workers
from gluon_svrg.checkpoint import storage
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import BatchEnd, GradientReady, SafePoint, Stateful
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from mxnet import gluon
from mxnet.gluon import nn

SAMPLES, BATCH_SIZE, EPOCHS = 14, 4, 3  # 4 batches an epoch, the last of 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SAMPLES, 6))
Y = RNG.integers(0, 3, SAMPLES).astype("float64")

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "lars": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
}


def estimator_of(optimizer="sgd", noisy=True, contexts=1, seed=0):
    """A network in float64, with all that draws and keeps statistics if it is `noisy`."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6, activation="tanh"))
        if noisy:
            net.add(nn.BatchNorm(in_channels=5), nn.Dropout(0.3))
        net.add(nn.Dense(3, in_units=5))
    net.cast("float64")
    gs.seed_everything(seed)
    contexts = [mx.cpu(i) for i in range(contexts)]
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, OPTIMIZERS[optimizer])
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer, context=contexts
    )
    estimator.logger = logging.getLogger("test_checkpoints")
    estimator.logger.propagate = False
    return estimator


def data(shuffle=True):
    return ArrayLoader(X, Y, batch_size=BATCH_SIZE, shuffle=shuffle, seed=5)


def everything(folder):
    """Return handlers of every kind that keeps a state."""
    return [
        gs.SVRGHandler(update_freq=2, coefficient="auto", max_variance_ratio=50.0),
        gs.VarianceHandler(at=(25, 100), batches=2),
        gs.GradientUpdateHandler(accumulate=2, clip_norm=5.0),
        gs.EMAHandler(),
        gs.NaNGuardHandler("roll_back"),
        gs.EarlyStoppingHandler("validation loss", patience=9, restore_best=True),
        gs.PlateauHandler("validation loss", hyperparameter="wd", patience=5),
        gs.CheckpointHandler(folder, 1, 3, "validation loss", keep_last=2, keep_best=2),
    ]


def handlers(folder, table=True, accumulate=2, every=3, svrg=True, make=None, **arguments):
    if make == "everything":
        return everything(folder)
    own = [gs.SVRGHandler(update_freq=2, gradient_table=table)] if svrg else []
    return [
        *own,
        gs.GradientUpdateHandler(accumulate=accumulate),
        gs.EMAHandler(0.9),
        gs.CheckpointHandler(folder, None, every, keep_last=None, **arguments),
    ]


class StopAt(BatchEnd):
    """Stops the run at the batch of this number, on one worker only."""

    def __init__(self, batch, rank):
        self.batch, self.rank = batch, rank

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch and estimator.workers.rank == self.rank:
            estimator.stop()


class EndAfter(SafePoint):
    """Ends the process, as a machine would, right after the checkpoint of this batch."""

    priority = float("inf")

    def __init__(self, batch, result):
        self.batch, self.result = batch, result

    def safe_point(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.batch:
            answer(self.result)
            estimator.workers.barrier("the crash")
            os.kill(os.getpid(), signal.SIGKILL)


class Spoil(GradientReady):
    """Makes a gradient NaN at one batch, the first time, on one worker."""

    priority = gs.events.Order.GUARD - 1

    def __init__(self, batch, rank):
        self.batch, self.rank, self.is_done = batch, rank, False

    def gradient_ready(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.batch and not self.is_done:
            self.is_done = True
            if estimator.workers.rank == self.rank:
                param = next(iter(estimator.net.collect_params().values()))
                param.grad()[:] = float("nan")


class SpoilStatistics(BatchEnd):
    """Makes a running mean NaN on one worker from one batch on, until the next."""

    priority = gs.events.Order.MONITOR

    def __init__(self, batch, rank):
        self.batch, self.rank, self.saved = batch, rank, None

    def batch_end(self, estimator, *args, **kwargs):
        mean = estimator.net[1].running_mean.data()
        done = estimator.position.batch + 1
        if estimator.workers.rank == self.rank and done == self.batch:
            self.saved = mean.copy()
            mean[:] = float("nan")
        elif self.saved is not None:
            self.saved.copyto(mean)
            self.saved = None


class CountedCheckpoints(gs.CheckpointHandler):
    """Notes how many gathers each checkpoint takes, and which is the best one after it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.counts, self.bests = [], []

    def safe_point(self, estimator, *args, **kwargs):
        labels, gather = [], estimator.workers.all_gather_bytes
        estimator.workers.all_gather_bytes = lambda data, label: (
            labels.append(label) or gather(data, label)
        )
        try:
            super().safe_point(estimator, *args, **kwargs)
        finally:
            del estimator.workers.all_gather_bytes
        if labels:
            self.counts.append(len(labels))
            self.bests.append(self.best.name if self.best else None)


class Share(Stateful):
    """Has another state on each worker."""

    state_key = "share"

    def __init__(self):
        self.loaded = None

    def state_dict(self, estimator):
        return {"rank": estimator.workers.rank, "array": np.arange(estimator.workers.rank + 1.0)}

    def load_state_dict(self, estimator, state):
        self.loaded = [state["rank"], len(state["array"])]


def fit(estimator, given, epochs=EPOCHS, **arguments):
    return estimator.fit(
        data(), data(shuffle=False), epochs=epochs, event_handlers=given, verbose=0, **arguments
    )


def digest(arrays):
    content = hashlib.sha256()
    for array in arrays:
        content.update(array.tobytes())
    return content.hexdigest()[:16]


def outcome(estimator):
    """All that a run ends with, on this worker: bits of weights and statistics, states, history."""
    params = estimator.net.collect_params().values()
    rows = [{k: v for k, v in r.items() if k not in MEASURED} for r in estimator.history]
    return {
        "weights": digest(a.asnumpy() for p in params for a in p.list_data()),
        "states": hashlib.sha256(trainer_states(estimator.trainer).to_bytes()).hexdigest()[:16],
        "history": [repr(row) for row in rows],
        "numpy": digest([np.random.get_state()[1]]),
        "next": mx.nd.random.uniform(shape=(3,)).asnumpy().tolist(),
    }


def weights_of(estimator):
    return [
        a.asnumpy().tolist() for p in estimator.net.collect_params().values() for a in [p.data()]
    ]


@contextmanager
def messages_of(estimator):
    """Collect what the run's logger says, from INFO on."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(f"{record.levelname}: {record.getMessage()}")
    estimator.logger.addHandler(handler)
    estimator.logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        estimator.logger.removeHandler(handler)


def at_home(base):
    """Give each worker a folder of its own to be in, so that paths mean something else on each."""
    home = Path(base) / f"home-{workers.current().rank}"
    home.mkdir(exist_ok=True)
    os.chdir(home)


CASES = {
    "sgd, table": {},
    "lars, no table, 2 contexts": {"optimizer": "lars", "table": False, "contexts": 2},
    "adam, no SVRG": {"optimizer": "adam", "svrg": False, "accumulate": 1},
    "every handler with a state": {"make": "everything"},
}


def made(case):
    """Return an estimator, and the arguments of the handlers."""
    own = dict(CASES[case])
    return estimator_of(**{n: own.pop(n) for n in ("optimizer", "contexts") if n in own}), own


def undisturbed(case, folder):
    estimator, own = made(case)
    fit(estimator, handlers(folder, **own))
    return outcome(estimator)


def stopped_and_resumed(case, folder, batch, rank):
    """Stop by one worker, and go on with another network, after other random numbers."""
    estimator, own = made(case)
    share = Share()
    result = fit(estimator, [*handlers(folder, **own), StopAt(batch, rank), share])
    stopped_at = estimator.position.batch
    estimator, own = made(case)
    mx.random.seed(77 + workers.current().rank)
    np.random.seed(78)
    fit(estimator, [*handlers(folder, **own), share], resume="auto")
    return [result.stop_reason.name, stopped_at, share.loaded, outcome(estimator)]


def exactness(cases, batch):
    size = workers.current().size
    return {
        case: {
            "whole": undisturbed(case, f"whole-{number}-of-{size}"),
            "again": stopped_and_resumed(case, f"again-{number}-of-{size}", batch, size - 1),
        }
        for number, case in enumerate(cases)
    }


# --- What the workers of a cluster are told to do ------------------------------------------------


def three(base):
    """As exact as can be; and the first part of a run that goes on with fewer workers."""
    at_home(base)
    result = exactness(["sgd, table"], batch=7)
    smooth = estimator_of(noisy=False)
    fit(smooth, [*handlers("fewer"), StopAt(5, rank=1)])
    return result


def two_that_crash(base):
    """As exact as can be; and a run that ends right after a checkpoint."""
    at_home(base)
    result = exactness(CASES, batch=7)
    estimator, own = made("sgd, table")
    fit(estimator, [*handlers("crash", **own), EndAfter(6, result)])


def two_that_go_on(base):
    """What is resumed from what others have written; and what can go wrong."""
    at_home(base)
    return {
        "crash": _after_a_crash(),
        "fewer": _with_fewer_workers(),
        "one": _from_one_process(),
        "full disk": _full_disk(),
        "gathers": _gathers(),
        "damaged": _damaged(),
        "roll back": _roll_back(),
        "a NaN": _nan_in_the_weights(),
        "there already": _there_already(),
    }


def _after_a_crash():
    estimator, own = made("sgd, table")
    fit(estimator, handlers("crash", **own), resume="auto")
    return outcome(estimator)


def _with_fewer_workers():
    """Go on with a run of three: up to its tenth batch, after a worker's share of a step."""
    estimator = estimator_of(noisy=False, seed=9)
    with messages_of(estimator) as messages:
        fit(estimator, [*handlers("fewer"), StopAt(10, rank=1)], resume="auto")
    return [messages, weights_of(estimator)]


def _from_one_process():
    first = workers.current()
    if first.is_first:
        with workers.single_process():
            estimator = estimator_of(noisy=False)
            fit(estimator, [*handlers("one"), StopAt(5, rank=0)])
    first.barrier("one process")
    estimator = estimator_of(noisy=False, seed=9)
    with messages_of(estimator) as messages:
        fit(estimator, handlers("one"), resume="auto")
    return [messages, weights_of(estimator)]


def _full_disk():
    estimator, own = made("sgd, table")
    write = storage.write

    def full(folder, key, *arguments):
        assert workers.current().is_first
        if key.batch < 9:
            raise OSError(28, "No space left on device")
        return write(folder, key, *arguments)

    storage.write = full
    try:
        with messages_of(estimator) as messages:
            fit(estimator, handlers("full", **own))
    finally:
        storage.write = write
    there = sorted(os.listdir("full")) if os.path.exists("full") else []
    return [messages, there, outcome(estimator)]


def _gathers():
    """What each checkpoint takes, of which worker 0 cannot write the fourth and the last."""
    write, writes = storage.write, itertools.count(1)

    def failing(*arguments):
        if next(writes) in (4, 7):
            raise OSError(28, "No space left on device")
        return write(*arguments)

    estimator = estimator_of()
    own = CountedCheckpoints("gathers", 1, 3, "training loss", keep_last=1)
    storage.write = failing
    try:
        with messages_of(estimator) as messages:
            fit(estimator, [*everything("unused")[:-1], own])
    finally:
        storage.write = write
    there = sorted(os.listdir("gathers")) if os.path.exists("gathers") else []
    return [own.counts, own.bests, own.best.name, there, messages]


def _damaged():
    if workers.current().is_first:
        Path("again-0-of-2/epoch-3-batch-12/worker-1.npz").write_bytes(b"torn")
    estimator, own = made("sgd, table")
    with messages_of(estimator) as messages:
        fit(estimator, handlers("again-0-of-2", **own), resume="auto")
    return [messages, outcome(estimator)]


def _roll_back():
    outcomes = []
    for rank in (0, 1):
        estimator, own = made("sgd, table")
        guard = gs.NaNGuardHandler("roll_back", every_n_batches=1, factor=0.5)
        with messages_of(estimator) as messages:
            fit(estimator, [*handlers(f"roll-back-{rank}", **own), Spoil(7, rank), guard])
        outcomes.append([messages, outcome(estimator)])
    return outcomes


def _nan_in_the_weights():
    """The weights are NaN on one worker only, when a checkpoint is to be written."""
    estimator, own = made("adam, no SVRG")
    with messages_of(estimator) as messages:
        fit(estimator, [*handlers("nan", **own), SpoilStatistics(6, rank=1)])
    there = sorted(os.listdir("nan")) if os.path.exists("nan") else []
    return [messages, there]


def _there_already():
    estimator, own = made("sgd, table")
    estimator.workers.abort = lambda reason: None  # which would end the processes with a failure
    try:
        fit(estimator, handlers("crash", **own))
    except FileExistsError as error:
        return str(error)
    return None
