"""Softmax regression to the last bit: SVRG beside SGD, with the same number of gradients.

    python recipes/softmax_regression.py
    python recipes/softmax_regression.py --data fashion-mnist --batch-size 128 --epochs 15
    python recipes/softmax_regression.py --lr auto
    python -m gluon_svrg.launch -n 2 recipes/softmax_regression.py

The objective is the mean cross-entropy plus L2/2 times the squared weights (not the biases). It is
strongly convex, so its optimum is known from a second-order solver, and every run can be judged by
how far above the optimum it is. All runs may compute the same number of gradients of a sample: an
epoch of SGD costs one a sample, an epoch of SVRG two, as it keeps those at the snapshot from the
full pass. The step is one that was tried out; ``--lr auto`` shows beside it a step that needs no
trying out: it falls from the one that ``gluon_svrg.find_learning_rate`` suggests.

Writes into ``runs/softmax_regression``: ``curves.png``, ``metrics.csv``, and the network that SVRG
trained as ``model-symbol.json`` and ``model-0000.params``. That model is then imported again and
classifies the held-out images.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# A step is too small to be shared among threads. MXNet reads this once, when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import interruption
import gluon_svrg as gs
import matplotlib
from interruption import Interrupted, raise_if_interrupted

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mxnet as mx
import numpy as np
from gluon_svrg.data import ArrayLoader, load_fashion_mnist
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY
from gluon_svrg.events import EpochEnd, TrainBegin
from gluon_svrg.reporting.curves import use_colours
from mxnet import gluon
from one_voice import is_first_worker
from option_types import POSITIVE, integer, positive_or_auto, show_defaults
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

use_colours()

BY_HAND = 4.0
"""The constant step of SVRG and SGD, tried out on digits."""

TRIAL_BATCHES = 50
"""The length of a short training that looks for a step."""


class Data(NamedTuple):
    """Rows of float64 features and their classes."""

    x: np.ndarray
    y: np.ndarray
    x_held_out: np.ndarray
    y_held_out: np.ndarray


class Run(NamedTuple):
    """One trained network and the points of its curve."""

    name: str
    net: gluon.Block
    rows: list[dict[str, Any]]


def load(name: str, directory: str) -> Data:
    """Return the data, its rows scaled so that the training rows have a mean norm of 1."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(x))
        x, y, held_out = x[order], y[order], 297
        data = Data(x[held_out:], y[held_out:], x[:held_out], y[:held_out])
    else:
        (x, y), (x_test, y_test) = load_fashion_mnist(directory)
        data = Data(x.reshape(len(x), -1), y, x_test.reshape(len(x_test), -1), y_test)
    scale = np.linalg.norm(data.x.astype("float64"), axis=1).mean()
    return data._replace(x=data.x / scale, x_held_out=data.x_held_out / scale)


class Objective:
    """The objective in NumPy, for the optimum and for the curves.

    MXNet's optimizers take the weight decay as float32, whatever the weights are: so does this.
    Parameters are flat: weights (classes x features), then biases.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, l2: float) -> None:
        self.x = x
        self.one_hot = np.eye(int(y.max()) + 1)[y.astype(int)]
        self.l2 = float(np.float32(l2))
        self.shape = (self.one_hot.shape[1], x.shape[1])

    def _unpack(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        split = self.shape[0] * self.shape[1]
        return flat[:split].reshape(self.shape), flat[split:]

    def _gradient_of(self, error: np.ndarray, weight: np.ndarray) -> np.ndarray:
        by_weight = error.T @ self.x / len(self.x) + self.l2 * weight
        return np.concatenate([by_weight.ravel(), error.mean(axis=0)])

    def _probabilities(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = self._unpack(flat)
        scores = self.x @ weight.T + bias
        scores -= scores.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return scores - log_sums, np.exp(scores - log_sums)

    def value(self, flat: np.ndarray) -> float:
        """Return the objective."""
        log_probabilities, _ = self._probabilities(flat)
        weight, _ = self._unpack(flat)
        cross_entropy = -(log_probabilities * self.one_hot).sum(axis=1).mean()
        return float(cross_entropy + self.l2 / 2 * (weight**2).sum())

    def gradient(self, flat: np.ndarray) -> np.ndarray:
        """Return its gradient."""
        _, probabilities = self._probabilities(flat)
        return self._gradient_of(probabilities - self.one_hot, self._unpack(flat)[0])

    def hessian_times(self, flat: np.ndarray) -> LinearOperator:
        """Return its second derivative at `flat`, as an operator."""
        _, p = self._probabilities(flat)

        def times(direction: np.ndarray) -> np.ndarray:
            weight, bias = self._unpack(direction.ravel())
            change = self.x @ weight.T + bias
            change = p * (change - (p * change).sum(axis=1, keepdims=True))
            return self._gradient_of(change, weight)

        return LinearOperator((flat.size, flat.size), matvec=times)

    def optimum(self) -> tuple[float, float]:
        """Return the least value, and the largest entry of the gradient there.

        L-BFGS brings it near; Newton steps, solved by conjugate gradients, to rounding.
        """
        start = np.zeros(self.shape[0] * self.shape[1] + self.shape[0])
        flat = minimize(self.value, start, jac=self.gradient, method="L-BFGS-B").x
        for _ in range(20):
            gradient = self.gradient(flat)
            if np.abs(gradient).max() < 1e-14:
                break
            flat -= cg(self.hessian_times(flat), gradient, rtol=1e-6, maxiter=1000)[0]
        return self.value(flat), float(np.abs(self.gradient(flat)).max())


class InverseTime(mx.lr_scheduler.LRScheduler):
    """The step of Robbins and Monro: base / (1 + steps / half_life)."""

    def __init__(self, base_lr: float, half_life: float) -> None:
        super().__init__(base_lr)
        self._half_life = half_life

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of a step."""
        return self.base_lr / (1 + num_update / self._half_life)


class Judge:
    """Tells how far above the optimum a network is, and how well it does on held-out rows."""

    def __init__(self, data: Data, objective: Objective) -> None:
        self.data = data
        self._objective = objective
        self.optimum, self.gradient_at_optimum = objective.optimum()

    def __call__(self, net: gluon.nn.Dense) -> tuple[float, float]:
        """Return (value above the optimum, held-out accuracy)."""
        weight, bias = net.weight.data().asnumpy(), net.bias.data().asnumpy()
        value = self._objective.value(np.concatenate([weight.ravel(), bias]))
        predicted = (self.data.x_held_out @ weight.T + bias).argmax(axis=1)
        return value - self.optimum, float((predicted == self.data.y_held_out).mean())


class Curve(TrainBegin, EpochEnd):
    """After each epoch, writes down how far above the optimum the weights are."""

    def __init__(
        self, run: str, judge: Judge, svrg: gs.SVRGHandler | None, evaluations: int
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._run = run
        self._judge = judge
        self._svrg = svrg
        self._evaluations = evaluations  # before the run
        self._seconds = 0.0
        self._resumed = 0.0

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write down the start."""
        self._write(estimator.net, 0)
        self._resumed = time.perf_counter()

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write down the epoch; the clock stands still meanwhile."""
        self._seconds += time.perf_counter() - self._resumed
        self._write(estimator.net, len(self.rows))
        self._resumed = time.perf_counter()

    def _write(self, net: gluon.nn.Dense, epoch: int) -> None:
        samples = len(self._judge.data.x)
        evaluations = self._evaluations + epoch * samples
        evaluations += self._svrg.gradient_evaluations if self._svrg else 0
        above, accuracy = self._judge(net)
        self.rows.append(
            {
                "run": self._run,
                "epoch": epoch,
                "gradient_evaluations_per_sample": evaluations / samples,
                "seconds": self._seconds,
                "above_optimum": above,
                "held_out_accuracy": accuracy,
            }
        )


def train(
    run: str,
    judge: Judge,
    *,
    batch_size: int,
    epochs: int,
    l2: float,
    lr: float | str | InverseTime,
    svrg: gs.SVRGHandler | None = None,
) -> Run:
    """Train from zero, with SVRG if its handler is given; find the step first if `lr` is 'auto'."""
    data = judge.data
    batches = ArrayLoader(
        data.x, data.y.astype("float64"), batch_size=batch_size, shuffle=True, seed=0
    )
    net = gluon.nn.Dense(int(data.y.max()) + 1, in_units=data.x.shape[1])
    net.cast("float64")
    net.initialize(mx.init.Zero())
    net.hybridize(static_alloc=True, static_shape=True)
    net.bias.wd_mult = 0
    rate: dict[str, Any] = {"lr_scheduler": lr} if isinstance(lr, InverseTime) else {}
    if isinstance(lr, float):
        rate = {"learning_rate": lr}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"wd": l2, **rate})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer)
    handlers: list[Any] = [svrg] if svrg else []
    evaluations = 0
    if lr == "auto":
        found = gs.find_learning_rate(estimator, batches, trial_batches=TRIAL_BATCHES)
        steps = len(found.losses) + TRIAL_BATCHES * len(found.trials)
        evaluations = steps * batch_size
        if found.suggestion is None:
            raise SystemExit("--lr auto: the loss falls with no learning rate, give a number")
        schedule = gs.schedules.cosine(found.suggestion)
        handlers.append(gs.ScheduleHandler("learning_rate", schedule))
        print(f"the automatic step falls from {found.suggestion:.3g}, found by {steps} steps")
    curve = Curve(run, judge, svrg, evaluations)
    # The table at the end says it all.
    handlers = [curve, *handlers, gs.SignalHandler()]
    result = estimator.fit(batches, epochs=epochs, event_handlers=handlers, verbose=0)
    trained = Run(run, net, curve.rows)
    raise_if_interrupted(result, trained)
    return trained


def write_csv(path: Path, runs: list[Run]) -> None:
    """Write every row of every run."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(runs[0].rows[0]))
        writer.writeheader()
        for run in runs:
            writer.writerows(run.rows)


def plot(path: Path, runs: list[Run], title: str) -> None:
    """Draw the distance to the optimum, against gradients and against seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    horizontal = {
        "gradient_evaluations_per_sample": "gradient evaluations per sample",
        "seconds": "seconds of training",
    }
    for axis, (key, label) in zip(axes, horizontal.items(), strict=True):
        for run in runs:
            # The last bit is about 1e-16; a value below it is rounding, and has no logarithm.
            above = [max(row["above_optimum"], 1e-17) for row in run.rows]
            axis.semilogy([row[key] for row in run.rows], above, label=run.name, linewidth=1.8)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("objective above the optimum")
    axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def print_table(runs: list[Run]) -> None:
    """Print where each run ended."""
    print(
        f"{'run':24} {'gradients/sample':>16} {'seconds':>8} {'above optimum':>14} {'held out':>9}"
    )
    for run in runs:
        last = run.rows[-1]
        print(
            f"{run.name:24} {last['gradient_evaluations_per_sample']:16.0f} "
            f"{last['seconds']:8.1f} {last['above_optimum']:14.1e} "
            f"{last['held_out_accuracy']:9.1%}"
        )


def export_and_classify(net: gluon.Block, directory: Path, data: Data) -> None:
    """Export the hybridized network, import it without its class, classify held-out images."""
    net.export(str(directory / "model"))
    with warnings.catch_warnings():
        # MXNet warns that it cannot infer the dtype of the input, which the parameters tell.
        warnings.filterwarnings("ignore", "Cannot decide type")
        model = gluon.SymbolBlock.imports(
            str(directory / "model-symbol.json"), ["data"], str(directory / "model-0000.params")
        )
    predicted = model(mx.nd.array(data.x_held_out, dtype="float64")).asnumpy().argmax(axis=1)
    print(f"\nThe model imported again from {directory} classifies held-out images:")
    print("  predicted", *predicted[:20])
    print("  true     ", *data.y_held_out[:20])
    print(f"  {(predicted == data.y_held_out).mean():.1%} of all {len(predicted)} are right")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; what depends on the data is filled in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits")
    parser.add_argument(
        "--data-dir", default=FASHION_MNIST_DIRECTORY, help="folder of Fashion-MNIST's IDX files"
    )
    parser.add_argument("--epochs", type=integer(1), default=50, help="epochs of SVRG")
    parser.add_argument("--batch-size", type=integer(1), default=16)
    parser.add_argument(
        "--lr",
        type=positive_or_auto,
        default=BY_HAND,
        help=f"learning rate of SVRG and SGD; auto: a suggested one, beside {BY_HAND:g}",
    )
    # On digits the best of a grid: steps 2, 4, ... 128 by half-lives of 1/16, 1/8, ... 4 epochs.
    parser.add_argument(
        "--decayed-lr", type=POSITIVE, default=16.0, help="first learning rate of decayed SGD"
    )
    parser.add_argument(
        "--half-life", type=POSITIVE, default=0.5, help="epochs after which --decayed-lr is halved"
    )
    parser.add_argument("--l2", type=POSITIVE, default=1e-3)
    parser.add_argument(
        "--update-freq", type=integer(1), default=1, help="epochs from snapshot to snapshot"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/softmax_regression"))
    return show_defaults(parser).parse_args(arguments)


def main(arguments: list[str] | None = None) -> list[Run]:
    """Run the recipe; return the runs."""
    options = parse(arguments)
    gs.seed_everything(0)
    is_first = is_first_worker()
    try:
        data = load(options.data, options.data_dir)
    except FileNotFoundError as error:
        raise SystemExit(f"--data {options.data}: {error} (with --data-dir)") from None
    options.out.mkdir(parents=True, exist_ok=True)
    samples, features = data.x.shape
    print(
        f"{options.data}: {samples} samples of {features} features, {int(data.y.max()) + 1} classes"
    )
    judge = Judge(data, Objective(data.x, data.y, options.l2))
    print(
        f"optimum {judge.optimum:.15f} by a second-order solver, "
        f"largest entry of its gradient {judge.gradient_at_optimum:.0e}"
    )
    common = {"judge": judge, "batch_size": options.batch_size, "l2": options.l2}
    runs: list[Run] = []
    is_interrupted = False
    try:
        runs.extend(trained(options, samples, common))
    except Interrupted as interrupted:
        runs.append(interrupted.run)
        is_interrupted = True
    if is_first:
        report(runs, options, data)
    if is_interrupted:
        interruption.leave()
    return runs


def trained(options: argparse.Namespace, samples: int, common: dict[str, Any]) -> Iterator[Run]:
    """Yield each run when it is trained."""
    if options.lr == "auto":
        svrg = gs.SVRGHandler(update_freq=options.update_freq)
        yield train("SVRG, automatic step", epochs=options.epochs, lr="auto", svrg=svrg, **common)
        options.lr = BY_HAND
    svrg = gs.SVRGHandler(update_freq=options.update_freq)
    name = f"step {options.lr:g}"
    first = train(f"SVRG, {name}", epochs=options.epochs, lr=options.lr, svrg=svrg, **common)
    yield first
    sgd_epochs = round(first.rows[-1]["gradient_evaluations_per_sample"])
    half_life = options.half_life * -(-samples // options.batch_size)
    decayed = InverseTime(options.decayed_lr, half_life)
    yield train(f"SGD, {name}", epochs=sgd_epochs, lr=options.lr, **common)
    yield train("SGD, decayed step", epochs=sgd_epochs, lr=decayed, **common)


def report(runs: list[Run], options: argparse.Namespace, data: Data) -> None:
    """Print and write where the runs ended, and the model of the first."""
    print_table(runs)
    write_csv(options.out / "metrics.csv", runs)
    title = f"Softmax regression, {options.data}, L2 {options.l2:g}, batch {options.batch_size}"
    plot(options.out / "curves.png", runs, title)
    export_and_classify(runs[0].net, options.out, data)
    print(f"\nSee {options.out}/curves.png and {options.out}/metrics.csv")


if __name__ == "__main__":
    interruption.run(main)
