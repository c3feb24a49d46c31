"""How far from the full gradient a method's direction is, along one path of training."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import evidence_common as common
import evidence_recursive
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import recursive_methods as methods
import report
from gluon_svrg.svrg import BatchGradient, GradientMoments, Snapshot
from matplotlib.figure import Figure
from mxnet.ndarray import NDArray

PART = "direction"
PAGE = "evidence_recursive.md"
# Steps of the path, and after which of them the full gradient is computed.
STEPS = {"mlp": 400, "resnet20": 200}
POINTS = {
    "mlp": (10, 40, 100, 150, 200, 250, 300, 350, 390, 400),
    "resnet20": (40, 100, 150, 195),
}
IN_TABLE = {"mlp": (40, 100, 200, 300, 390), "resnet20": (40, 100, 150, 195)}
SEEDS = {"mlp": (0, 1, 2, 3, 4), "resnet20": (0, 1)}
# On how many batches the change of the gradient in a step is measured.
CHANGE_BATCHES = 16
LEARNING_RATE = 0.1
Gradients = dict[str, NDArray]


class Average:
    """A moving average of g + change (g - what it was): the momentum of Adam, and of MARS.

    Its bias is corrected as Adam's is.
    """

    def __init__(self, beta: float, change: float = 0.0, is_exact: bool = True) -> None:
        self._beta, self._change, self._is_exact = beta, change, is_exact
        self._weight = 0.0
        self._sum: Gradients = {}

    def add(self, here: Gradients, before: Gradients, last: Gradients) -> None:
        share, past = 1 - self._beta, before if self._is_exact else last
        terms = [(share * (1 + self._change), here), (-share * self._change, past)]
        self._sum = mixed(*terms, *([(self._beta, self._sum)] if self._sum else []))
        self._weight = self._beta * self._weight + share

    def direction(self) -> Gradients:
        return mixed((1 / self._weight, self._sum))


class Storm:
    """d = g + (1 - a) (d - p)."""

    def __init__(self, a: float) -> None:
        self._share = 1 - a
        self._value: Gradients = {}

    def add(self, here: Gradients, before: Gradients, _: Gradients) -> None:
        value = self._value or before
        self._value = mixed((1, here), (self._share, value), (-self._share, before))

    def direction(self) -> Gradients:
        return self._value


def mixed(*terms: tuple[float, Gradients]) -> Gradients:
    """Return a linear combination."""
    return {
        name: sum((share * gradient[name] for share, gradient in terms[1:]), terms[0][0] * array)
        for name, array in terms[0][1].items()
    }


CHANGE = methods.GAMMA * methods.BETAS["beta1"] / (1 - methods.BETAS["beta1"])
ESTIMATORS: dict[str, Callable[[], Average | Storm]] = {
    "one batch": lambda: Average(0.0),
    "average 0.9": lambda: Average(0.9),
    "average 0.95": lambda: Average(0.95),
    "STORM 0.1": lambda: Storm(0.1),
    "STORM 0.3": lambda: Storm(0.3),
    "STORM 0.5": lambda: Storm(0.5),
    "exact MARS": lambda: Average(0.95, CHANGE),
    "gs.MARS": lambda: Average(0.95, CHANGE, is_exact=False),
}


def jobs() -> list[common.Row]:
    return [{"model": model, "seed": seed} for model, seeds in SEEDS.items() for seed in seeds]


def work(job: common.Row) -> common.Row:
    """Follow NAG 0.9; the path has the schedule and the data of the methods' runs."""
    train, _, _ = evidence_recursive.splits()
    gs.seed_everything(job["seed"])
    net = evidence_recursive.make_net(job["model"])
    path = Path(methods.Setup(net, train, job["seed"]), STEPS[job["model"]])
    rows = []
    for number in range(1, STEPS[job["model"]] + 1):
        path.step()
        if number in POINTS[job["model"]]:
            rows.append({"step": number, **path.errors()})
    return {"rows": rows}


class Path:
    """Training that every estimator watches."""

    def __init__(self, setup: methods.Setup, steps: int) -> None:
        self._setup = setup
        self._method = methods.NAG(self._setup)
        self._steps = steps
        self._batches = self._method.batches()
        self._backward = common.backward_of(setup.net)
        self._estimators = {name: make() for name, make in ESTIMATORS.items()}
        self._here: Snapshot | None = None
        self._last: Gradients = {}

    def step(self) -> None:
        """Let the estimators see the batch's gradients, then take the step."""
        batch = next(self._batches)
        net, number = self._setup.net, self._method.number
        if self._here is None:
            net(batch[0][:1])  # the shapes
            self._here, self._before = Snapshot(net), Snapshot(net)
            self._before.take()
        self._here.take()
        here, before = (
            _copied(self._gradient(snapshot, batch, number))
            for snapshot in (self._here, self._before)
        )
        for estimator in self._estimators.values():
            estimator.add(here, before, self._last or here)
        self._last = here
        # The full gradient, and the steps between, are at the weights before this step.
        self._before, self._here = self._here, self._before
        self._method.step(batch, LEARNING_RATE * methods.schedule(number / self._steps))

    def _gradient(self, snapshot: Snapshot, batch: methods.Batch, seed: int) -> BatchGradient:
        mx.random.seed(seed)
        return snapshot.gradient(self._backward, batch)

    def errors(self) -> common.Row:
        """Return squared errors, in units of the variance of one batch's gradient.

        With the change of the gradient since the step before, Var(g - p) / Var(g).
        """
        batches = list(self._setup.loader_of(self._setup.train, self._method.batch_size))
        # Since the swap: the weights of the last gradients, and those before them.
        here, before = self._before, self._here
        gradients = []
        moments = GradientMoments()
        for index, batch in enumerate(batches):
            gradient = self._gradient(here, batch, 10**6 + index)
            gradients.append(_vector(_copied(gradient)))
            if index % max(1, len(batches) // CHANGE_BATCHES) == 0:
                moments.add(
                    self._gradient(here, batch, 10**6 + index),
                    self._gradient(before, batch, 10**6 + index),
                )
        full = np.mean(gradients, axis=0)
        variance = np.sum(np.var(gradients, axis=0)) * len(batches) / (len(batches) - 1)
        found = {"change": moments.ratio(), "gradient": float(full @ full / variance)}
        for name, estimator in self._estimators.items():
            error = _vector(estimator.direction()) - full
            found[name] = float(error @ error / variance)
        return found


def _copied(gradient: BatchGradient) -> Gradients:
    """Return the mean over the batch, as arrays of their own."""
    return {name: sums[0] / gradient.samples[0] for name, sums in gradient.sums.items()}


def _vector(gradients: Gradients) -> np.ndarray:
    parts = [array.asnumpy().ravel() for array in gradients.values()]
    return np.concatenate(parts).astype("float64")


def _found(results: common.Results, model: str, step: int, name: str) -> list[float]:
    return [
        row[name]
        for result in results.of(model=model)
        for row in result["rows"]
        if row["step"] == step
    ]


def section(results: common.Results) -> str:
    rows = []
    for model, steps in IN_TABLE.items():
        for step in steps:
            if _found(results, model, step, "change"):
                cells = [mean(_found(results, model, step, n)) for n in ("change", *ESTIMATORS)]
                rows.append((model, step, *(f"{cell:.2g}" for cell in cells)))
    return report.markdown_table(["network", "step", "Var(g - p) / Var(g)", *ESTIMATORS], rows)


def draw(results: common.Results) -> None:
    """Draw the errors by step."""
    models = [model for model in STEPS if results.of(model=model)]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for number, model in enumerate(models, 1):
        axes = figure.add_subplot(1, len(models), number)
        for color, name in enumerate(ESTIMATORS):
            y = [mean(_found(results, model, step, name)) for step in POINTS[model]]
            style = "--o" if name.startswith("STORM") else ":s" if name == "gs.MARS" else "-o"
            axes.plot(POINTS[model], y, style, color=f"C{color}", ms=3.5, label=name)
        title = evidence_recursive.NAMES[model]
        axes.set(title=title, xlabel="step", yscale="log")
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel("squared error / variance of a batch")
    figure.axes[0].legend(fontsize="x-small", ncols=2)
    figure.savefig(common.IMAGES / "evidence_direction.png", dpi=130)
