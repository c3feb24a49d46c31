"""SGD, SVRG, alpha-SVRG and the estimated coefficient: what each buys."""

from __future__ import annotations

import time
from typing import Any

import evidence_common as common
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluon_svrg.events import BatchBegin, EpochBegin, EpochEnd
from matplotlib.figure import Figure
from mxnet import gluon

PART = "coefficients"
METHODS = {
    "SGD": None,
    "SVRG": {"coefficient": 1.0},
    "alpha-SVRG, 0.75 to 0": {"coefficient": gs.linear_decay(0.75)},
    "auto, a parameter": {"coefficient": "auto"},
    "auto, the network": {"coefficient": gs.OptimalCoefficient("network")},
}
# Learning rate, epochs and training samples.
MODELS = {"softmax": (0.02, 8, 60_000), "mlp": (0.1, 6, 60_000)}
NAMES = {"softmax": "softmax regression", "mlp": "MLP"}


class Clock(EpochBegin, BatchBegin, EpochEnd):
    """After each epoch: the loss on the training set and the accuracy on the test set."""

    priority = 2000

    def __init__(self, train: common.Split, test: common.Split, counters: list[Any]) -> None:
        self._train, self._test, self._counters = train, test, counters
        self._seconds = 0.0
        self.rows: list[common.Row] = []
        self._begin = time.perf_counter()

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if not estimator.position.batch:  # before the first step; layers without shape may be there
            self._note(estimator, initialised=False)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        mx.nd.waitall()
        self._note(estimator)

    def _note(self, estimator: Any, initialised: bool = True) -> None:
        self._seconds += time.perf_counter() - self._begin
        loss, _ = common.loss_and_accuracy(estimator.net, self._train)
        is_last = estimator.position.epoch + 1 == estimator.max_epoch
        _, accuracy = common.loss_and_accuracy(estimator.net, self._test) if is_last else (0, None)
        own = (estimator.position.epoch + initialised) * len(self._train[1])
        self.rows.append(
            {
                "loss": loss,
                "accuracy": accuracy,
                "seconds": self._seconds if initialised else 0.0,
                "evaluations": own + sum(c.gradient_evaluations for c in self._counters)
                if initialised
                else 0,
            }
        )
        self._begin = time.perf_counter()


def work(job: common.Row) -> common.Row:
    rate, epochs, samples = MODELS[job["model"]]
    gs.seed_everything(job["seed"])
    train, test = common.fashion_mnist(samples=samples)
    net = common.make_net(job["model"])
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": rate})
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), mx.metric.Loss("loss"), trainer=trainer
    )
    settings = METHODS[job["method"]]
    handlers: list[Any] = [] if settings is None else [gs.SVRGHandler(**settings)]
    clock = Clock(train, test, list(handlers))
    data = common.loader_of(train, common.BATCH_SIZE, seed=job["seed"])
    estimator.fit(data, epochs=epochs, event_handlers=[*handlers, clock])
    return {"rows": clock.rows}


def jobs() -> list[common.Row]:
    return list(common.product(model=list(MODELS), seed=[0, 1, 2], method=list(METHODS)))


def at_equal_evaluations(rows: list[common.Row], evaluations: float) -> float:
    """Return the loss at that many gradients; between two epochs, by its logarithm."""
    x = [row["evaluations"] for row in rows]
    return float(np.exp(np.interp(evaluations, x, np.log([row["loss"] for row in rows]))))


def draw(results: common.Results) -> None:
    figure = Figure(figsize=(11, 2.9 * len(MODELS)), layout="constrained")
    for number, model in enumerate(MODELS):
        samples = MODELS[model][2]
        for column, (key, label, divisor) in enumerate(
            [("evaluations", "gradient evaluations / samples", samples), ("seconds", "seconds", 1)]
        ):
            axes = figure.add_subplot(len(MODELS), 2, 2 * number + column + 1)
            for color, method in enumerate(METHODS):
                runs = [result["rows"] for result in results.of(model=model, method=method)]
                if not runs:
                    continue
                losses = np.array([[row["loss"] for row in rows] for rows in runs])
                x = np.median([[row[key] / divisor for row in rows] for rows in runs], axis=0)
                axes.plot(x, losses.mean(0), label=method, color=f"C{color}", linewidth=1.3)
                axes.fill_between(
                    x, losses.min(0), losses.max(0), color=f"C{color}", alpha=0.15, linewidth=0
                )
            axes.set(xlabel=label, ylabel="training loss", yscale="log", title=NAMES[model])
            axes.grid(alpha=0.3, which="both")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(common.IMAGES / "evidence_coefficients.png", dpi=120)


def section(results: common.Results) -> str:
    rows = []
    for model, (_, epochs, samples) in MODELS.items():
        for method in METHODS:
            runs = results.of(model=model, method=method)
            if not runs:
                continue
            last = [run["rows"][-1] for run in runs]
            equal = [at_equal_evaluations(run["rows"], epochs * samples) for run in runs]
            rows.append(
                (
                    NAMES[model],
                    method,
                    common.spread([row["loss"] for row in last], 4),
                    common.spread([row["accuracy"] for row in last], 2, 100),
                    f"{np.mean([row['evaluations'] for row in last]) / samples:.1f}",
                    f"{np.median([row['seconds'] for row in last]):.0f}",
                    common.spread(equal, 4),
                )
            )
    header = [
        "network",
        "method",
        "training loss",
        "test accuracy, %",
        "gradients / samples",
        "seconds",
        "loss at SGD's number of gradients",
    ]
    return report.markdown_table(header, rows)
