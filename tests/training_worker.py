"""Trains a small net as every worker of a job does, and writes what became of it.

    training_worker.py FOLDER [OPTION ...]

SVRG with a table, LARS, dropout, BatchNorm; a checkpoint every few batches; an evaluation at each
epoch's end. Each worker writes a digest of its weights, states and history into FOLDER, and prints
in which phase it is, so that a test can kill it there: the last line is ``done``.
"""

import argparse
import hashlib
import json
import os
import resource
import signal
import time
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.arrays.encoding import from_bytes
from gluon_svrg.checkpoint import storage
from gluon_svrg.evaluation.phase import EvaluationPhase
from gluon_svrg.events import BatchEnd, EpochBegin
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.svrg.full_pass import FullPass
from mxnet.gluon import nn


class Slowly(EpochBegin, BatchEnd):
    """Waits after each batch, so that there is time to be killed in; may fail on its own."""

    def __init__(self, seconds, fail_at):
        self.seconds = seconds
        self.fail_at = fail_at

    def epoch_begin(self, estimator, *args, **kwargs):
        print("phase step", flush=True)

    def batch_end(self, estimator, *args, **kwargs):
        time.sleep(self.seconds)
        if self.fail_at and estimator.position.batch + 1 == self.fail_at:
            raise ValueError("on one worker alone")


class SayWhen:
    """Prints the phase before each call of some functions of the package."""

    def __init__(self, **functions):
        for phase, (owner, name) in functions.items():
            setattr(owner, name, self._said(phase, getattr(owner, name)))

    def _said(self, phase, function):
        def said(*args, **kwargs):
            print("phase", phase, flush=True)
            try:
                return function(*args, **kwargs)
            finally:
                print("phase step", flush=True)

        return said


def make_net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(16, activation="tanh"), nn.BatchNorm(), nn.Dropout(0.3), nn.Dense(3))
    net.initialize()
    net.hybridize()
    return net


def digest_of(net, trainer, history):
    """Return a digest of all that one run's end must have in common with another's."""
    digest = hashlib.sha256()
    for name, parameter in sorted(net.collect_params().items()):
        digest.update(name.encode() + parameter.data().asnumpy().tobytes())
    plain, arrays = from_bytes(trainer_states(trainer).to_bytes())
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in history]
    digest.update(json.dumps([plain, rows], sort_keys=True).encode())
    return digest.hexdigest()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--slowly", type=float, default=0.05)
    parser.add_argument("--full-disk", type=int, default=-1, help="worker that can write nothing")
    parser.add_argument("--fail", type=int, nargs=2, default=(-1, 0), help="worker, batch")
    return parser.parse_args()


def main():
    options = parse()
    print("phase start", flush=True)
    rank, attempt = workers.current().rank, int(os.environ["GLUON_SVRG_ATTEMPT"])
    SayWhen(
        full_pass=(FullPass, "run"),
        checkpoint=(storage, "write"),
        evaluation=(EvaluationPhase, "compute"),
    )
    gs.seed_everything(3)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 6)).astype("float32"), rng.integers(0, 3, 90).astype("float32")
    net = make_net()
    settings = {"learning_rate": 0.05, "wd": 1e-3, "momentum": 0.9}
    trainer = gs.SVRGTrainer(net.collect_params(), "lars", settings)
    metrics = [mx.metric.Accuracy(), mx.metric.Loss("loss")]
    estimator = gs.Estimator(
        net, mx.gluon.loss.SoftmaxCELoss(), train_metrics=metrics, trainer=trainer
    )
    fail_at = options.fail[1] if options.fail[0] == rank and attempt == 0 else 0
    if options.full_disk == rank:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    result = estimator.fit(
        gs.data.ArrayLoader(x, y, batch_size=8, shuffle=True),
        gs.data.ArrayLoader(x[:30], y[:30], batch_size=7),
        epochs=options.epochs,
        event_handlers=[
            gs.CheckpointHandler(options.folder / "checkpoints", every_n_batches=3, keep_last=2),
            gs.SVRGHandler(update_freq=2, gradient_table=True),
            Slowly(options.slowly, fail_at),
        ],
        resume="auto",
    )
    if options.full_disk == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    print("phase end", flush=True)
    told = {"digest": digest_of(net, trainer, result.history), "batch": estimator.position.batch}
    told |= {"reason": result.stop_reason.value, "size": workers.current().size}
    (options.folder / f"worker-{rank}.json").write_text(json.dumps(told))
    print("done", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
