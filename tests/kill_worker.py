"""Trains a small net of convolutions, with checkpoints, and writes what became of it.

It kills itself where it is told.

    kill_worker.py CONFIG(json) FOLDER OUT.npz [KIND NUMBER]

KIND is a function of the package, by the names below; the process ends at the NUMBER-th call, by a
SIGKILL, before the call does anything.
"""

import json
import os
import signal
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.arrays.encoding import from_bytes
from gluon_svrg.checkpoint import network_state, storage
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from mxnet.gluon import nn

# Where the process may end: in the full pass and in each batch's gradient at the snapshot, when a
# snapshot is taken, in each batch, and at each step of a checkpoint's writing and removal.
POINTS = {
    "gradient at the snapshot": (gs.Snapshot, "_gradient"),
    "snapshot": (gs.Snapshot, "take"),
    "batch": (gs.BatchProcessor, "fit_batch"),
    "optimizer": (mx.optimizer.Updater, "__call__"),
    "capture": (network_state, "distinct_replicas"),
    "file": (storage, "write_through"),
    "flush": (os, "fsync"),
    "rename": (Path, "rename"),
    "removal": (storage.shutil, "rmtree"),
    "restore": (network_state, "write_replicas"),
}


class Calls:
    """Counts the calls of every point; ends the process at one of them."""

    def __init__(self, kind=None, number=0):
        self.counts = dict.fromkeys(POINTS, 0)
        self.kind, self.number = kind, number
        for name, (owner, attribute) in POINTS.items():
            setattr(owner, attribute, self._counted(name, getattr(owner, attribute)))

    def _counted(self, name, function):
        def counted(*args, **kwargs):
            self.counts[name] += 1
            if name == self.kind and self.counts[name] == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return counted


def make_net(contexts):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(64, 3, padding=1, activation="relu"), nn.BatchNorm())
        net.add(nn.GlobalAvgPool2D(), nn.Dropout(0.3), nn.Dense(3))
    net.initialize(ctx=contexts)
    net.hybridize()
    return net


def run(config, folder):
    contexts = [mx.cpu(i) for i in range(config["contexts"])]
    gs.seed_everything(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3, 8, 8)).astype("float32")
    y = rng.integers(0, 3, 60).astype("float32")
    net = make_net(contexts)
    parameters = {"learning_rate": 0.05, "wd": 1e-3}
    if config["optimizer"] != "adam":
        parameters["momentum"] = 0.9
    trainer = gs.SVRGTrainer(
        net.collect_params(),
        config["optimizer"],
        parameters,
        update_on_kvstore=config.get("update_on_kvstore"),
    )
    estimator = gs.Estimator(
        net,
        mx.gluon.loss.SoftmaxCELoss(),
        train_metrics=[mx.metric.Accuracy(), mx.metric.Loss("loss"), mx.metric.CrossEntropy()]
        if config.get("everything")
        else [mx.metric.Accuracy(), mx.metric.Loss("loss")],
        trainer=trainer,
        context=contexts,
    )
    if config.get("data") == "DataLoader":
        dataset = mx.gluon.data.ArrayDataset(x, y)
        data = mx.gluon.data.DataLoader(dataset, batch_size=8, shuffle=True)
    else:
        data = gs.data.ArrayLoader(x, y, batch_size=8, shuffle=True)
    handlers = [gs.CheckpointHandler(folder, every_n_batches=3, keep_last=2)]
    if config["table"] is not None:
        handlers.append(gs.SVRGHandler(update_freq=2, gradient_table=config["table"]))
    if config.get("everything"):
        handlers += [
            gs.GradientUpdateHandler(accumulate=2, clip_norm=0.5),
            gs.EMAHandler(keep=True),
            gs.NaNGuardHandler(),
        ]
    result = estimator.fit(
        data, [(x[:20], y[:20])], epochs=5, event_handlers=handlers, resume="auto"
    )
    arrays = {
        f"{name} {i}": array.asnumpy()
        for name, param in net.collect_params().items()
        for i, array in enumerate(param.list_data())
    }
    states, state_arrays = from_bytes(trainer_states(trainer).to_bytes())
    history = [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]
    told = json.dumps([states, history, result.stop_reason.value, result.epochs_run])
    return arrays | {f"state {name}": a for name, a in state_arrays.items()}, told


def main(config, folder, out, kind=None, number=0):
    calls = Calls(kind, int(number))
    print("begun", flush=True)
    arrays, told = run(json.loads(config), folder)
    np.savez(out, told=told, counts=json.dumps(calls.counts), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
