"""Linear regression: MXNet's own example of SVRG, here in Gluon, beside SGD.

    python recipes/linear_regression.py
    python recipes/linear_regression.py --data generated
    python -m gluon_svrg.launch -n 2 recipes/linear_regression.py --data generated

MXNet's example trains on YearPredictionMSD (463,715 songs of 90 features), which has to be
downloaded. ``--data diabetes`` is real and comes with scikit-learn; ``--data generated`` has as
many features as YearPredictionMSD, and with ``--samples 463715`` as many samples. The least squares
solution tells how far above the optimum a run is.

Epochs, batch size and step are by default those that suit the data set. A run that has diverged is
told, and the exit code is 1 then.

Writes ``curves.png`` and ``metrics.csv`` into ``runs/linear_regression``.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from typing import Any

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
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import EpochEnd, TrainBegin
from gluon_svrg.reporting.curves import use_colours
from mxnet import gluon
from one_voice import is_first_worker
from option_types import POSITIVE, integer, show_defaults

use_colours()

# What suits a data set: 10 samples a batch would take hours for the generated ones, and diverge.
DEFAULTS: dict[str, dict[str, Any]] = {
    "diabetes": {"epochs": 60, "batch_size": 10, "lr": 0.2},
    "generated": {"epochs": 5, "batch_size": 1000, "lr": 0.2},
}


def load(name: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features and targets, float64."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
    else:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((samples, 90)) * np.geomspace(1, 0.1, 90)
        y = x @ rng.standard_normal(90) + rng.standard_normal(samples)
    order = np.random.default_rng(1).permutation(len(x))
    x, y = x[order], y[order]
    return (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()


def half_mean_square(x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: float) -> float:
    """Return the objective, as gluon.loss.L2Loss defines it."""
    return float(((x @ weight + bias - y) ** 2).mean() / 2)


class InverseTime(mx.lr_scheduler.LRScheduler):
    """The step of Robbins and Monro: base / (1 + steps / half_life)."""

    def __init__(self, base_lr: float, half_life: float) -> None:
        super().__init__(base_lr)
        self._half_life = half_life

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of a step."""
        return self.base_lr / (1 + num_update / self._half_life)


class Curve(TrainBegin, EpochEnd):
    """After each epoch, writes down how far above the optimum the weights are."""

    def __init__(
        self, run: str, x: np.ndarray, y: np.ndarray, optimum: float, svrg: gs.SVRGHandler | None
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._run = run
        self._x, self._y = x, y
        self._svrg = svrg
        self._optimum = optimum

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write down the start."""
        self._write(estimator.net, 0)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write down the epoch."""
        self._write(estimator.net, len(self.rows))

    def _write(self, net: gluon.nn.Dense, epoch: int) -> None:
        weight, bias = net.weight.data().asnumpy()[0], net.bias.data().asscalar()
        extra = self._svrg.gradient_evaluations if self._svrg else 0
        self.rows.append(
            {
                "run": self._run,
                "epoch": epoch,
                "gradient_evaluations_per_sample": epoch + extra / len(self._x),
                "above_optimum": half_mean_square(self._x, self._y, weight, bias) - self._optimum,
            }
        )


def train(
    run: str,
    x: np.ndarray,
    y: np.ndarray,
    optimum: float,
    options: argparse.Namespace,
    epochs: int,
    svrg: gs.SVRGHandler | None = None,
    half_life: float | None = None,
) -> list[dict[str, Any]]:
    """Train from zero; return the points of the curve."""
    print(f"{run}: {epochs} epochs ...", flush=True)
    batches = ArrayLoader(x, y, batch_size=options.batch_size, shuffle=True, seed=0)
    net = gluon.nn.Dense(1, in_units=x.shape[1])
    net.cast("float64")
    net.initialize(mx.init.Zero())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": options.lr})
    if half_life is not None:
        trainer.optimizer.lr_scheduler = InverseTime(options.lr, half_life * len(batches))
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), mx.metric.MSE(), trainer=trainer)
    curve = Curve(run, x, y, optimum, svrg)
    handlers = [curve, gs.SignalHandler()] + ([svrg] if svrg else [])
    # The curve prints what there is to say.
    result = estimator.fit(batches, epochs=epochs, event_handlers=handlers, verbose=0)
    raise_if_interrupted(result, curve.rows)
    return curve.rows


def diverged(runs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return the runs that end farther from the optimum than they began, or nowhere."""
    return [rows for rows in runs if not rows[-1]["above_optimum"] <= rows[0]["above_optimum"]]


def plot(path: Path, runs: list[list[dict[str, Any]]], title: str) -> None:
    """Draw the distance to the optimum against gradient evaluations."""
    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for rows in runs:
        above = [max(row["above_optimum"], 1e-17) for row in rows]
        passes = [row["gradient_evaluations_per_sample"] for row in rows]
        axis.semilogy(passes, above, label=rows[0]["run"], linewidth=1.8)
    axis.set_xlabel("gradient evaluations per sample")
    axis.set_ylabel("objective above the optimum")
    axis.set_title(title)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> list[list[dict[str, Any]]]:
    """Run the recipe; return the curves of SVRG, SGD and SGD with a decayed step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["diabetes", "generated"], default="diabetes")
    parser.add_argument("--samples", type=integer(1), default=50_000, help="of the generated data")
    for name, of_type, meaning in (
        ("epochs", integer(1), "epochs of SVRG"),
        ("batch_size", integer(1), "samples of a batch"),
        ("lr", POSITIVE, "the step"),
    ):
        values = ", ".join(f"{data}: {values[name]}" for data, values in DEFAULTS.items())
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=of_type, help=f"{meaning} (default: {values})"
        )
    # On diabetes with 30 epochs: 0.1, 0.3 and 10 are worse, 3 is as good.
    parser.add_argument("--half-life", type=POSITIVE, default=1.0, help="of the decay, in epochs")
    parser.add_argument("--update-freq", type=integer(1), default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/linear_regression"))
    options = show_defaults(parser).parse_args(arguments)
    for name, value in DEFAULTS[options.data].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    gs.seed_everything(0)
    is_first = is_first_worker()
    x, y = load(options.data, options.samples)
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{options.data}: {len(x)} samples of {x.shape[1]} features", flush=True)
    optimum = half_mean_square(x, y, np.linalg.lstsq(x, y, rcond=None)[0], 0.0)
    handler = gs.SVRGHandler(update_freq=options.update_freq)
    runs, is_interrupted = [], False
    try:
        runs.append(train("SVRG", x, y, optimum, options, options.epochs, handler))
        # The same number of gradients for all.
        epochs = round(runs[0][-1]["gradient_evaluations_per_sample"])
        runs.append(train("SGD", x, y, optimum, options, epochs))
        half_life = options.half_life
        decayed = train("SGD, decayed step", x, y, optimum, options, epochs, half_life=half_life)
        runs.append(decayed)
    except Interrupted as interrupted:
        runs.append(interrupted.run)
        is_interrupted = True
    if is_first:
        report(runs, options)
    if is_interrupted:
        interruption.leave()
    return runs


def report(runs: list[list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Print and write where the runs ended."""
    print(f"{'run':18} {'gradients/sample':>16} {'above optimum':>14}")
    for rows in runs:
        last = rows[-1]
        print(
            f"{last['run']:18} {last['gradient_evaluations_per_sample']:16.0f} "
            f"{last['above_optimum']:14.1e}"
        )
    with (options.out / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(runs[0][0]))
        writer.writeheader()
        for rows in runs:
            writer.writerows(rows)
    plot(
        options.out / "curves.png",
        runs,
        f"Linear regression, {options.data}, step {options.lr:g}, batch {options.batch_size}",
    )
    for rows in diverged(runs):
        print(
            f"{rows[0]['run']} has diverged: use a smaller --lr than {options.lr:g}, or a larger "
            f"--batch-size than {options.batch_size}"
        )
    print(f"See {options.out}/curves.png and {options.out}/metrics.csv")


if __name__ == "__main__":
    sys.exit(1 if diverged(interruption.run(main)) else 0)
