"""Defazio and Bottou's figure in small: the variance ratio through an epoch, locked and not."""

from __future__ import annotations

from typing import Any

import evidence_common as common
import gluon_svrg as gs
import report
from gluon_svrg.events import BatchEnd, GradientReady
from gluon_svrg.svrg import GradientMoments, MaskLock, Snapshot
from matplotlib.figure import Figure
from mxnet import gluon

PART = "variance"
POINTS = (2, 5, 11, 33, 66, 100)
MODELS = ("softmax", "mlp", "lenet", "resnet20")
LEARNING_RATES = {"softmax": 0.002, "mlp": 0.02, "lenet": 0.02, "resnet20": 0.1}
EPOCHS = {"softmax": (0, 1, 4, 9), "mlp": (0, 1, 4, 9), "lenet": (0, 1, 2), "resnet20": (0, 1, 2)}
# On how many batches it is measured.
BATCHES = {"softmax": 32, "mlp": 32, "lenet": 12, "resnet20": 8}
NAMES = {
    "softmax": "softmax regression",
    "mlp": "MLP (dropout 0.2)",
    "lenet": "LeNet",
    "resnet20": "ResNet-20 (BatchNorm)",
}


class Measurement(GradientReady, BatchEnd):
    """Measures both ratios against the weights at the beginning of the epoch."""

    priority = 500

    def __init__(self, data: Any, epochs: tuple[int, ...], batches: int) -> None:
        self._data, self._epochs, self._batches = data, epochs, batches
        self._masks = MaskLock(seed=0)
        self.rows: list[common.Row] = []

    def gradient_ready(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if not estimator.position.batch:
            self._here, self._start = Snapshot(estimator.net), Snapshot(estimator.net)
        if not estimator.position.batch_in_epoch:
            self._start.take()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        length, done = len(self._data), estimator.position.batch_in_epoch + 1
        points = {max(1, round(point / 100 * length)): point for point in POINTS}
        if estimator.position.epoch in self._epochs and done in points:
            self._measure(estimator, points[done])

    def _measure(self, estimator: Any, point: float) -> None:
        backward = common.backward_of(estimator.net)
        locked, unlocked = GradientMoments(), GradientMoments()
        self._here.take()
        epoch = estimator.position.epoch
        step = max(1, len(self._data) // self._batches)
        for index in range(0, len(self._data) - 1, step)[: self._batches]:
            self._masks.lock(index)
            here = self._here.gradient(backward, self._batch(index, 2 * epoch))
            self._masks.lock(index)
            there = self._start.gradient(backward, self._batch(index, 2 * epoch))
            locked.add(here, there)
            # As where the pass has drawn its own augmentation and masks.
            self._masks.lock(index + 10**6)
            there = self._start.gradient(backward, self._batch(index, 2 * epoch + 1))
            unlocked.add(here, there)
        self._masks.release()
        self.rows.append(
            {
                "epoch": epoch,
                "point": point,
                "locked": locked.ratio(),
                "unlocked": unlocked.ratio(),
                "optimal": locked.optimal_coefficient(),
                "locked_at_optimal": locked.ratio(locked.optimal_coefficient()),
            }
        )

    def _batch(self, index: int, draw: int) -> Any:
        # The running iterator keeps the draw of its epoch.
        self._data.lock(draw)
        batch = self._data[index]
        self._data.unlock()
        return batch


def work(job: common.Row) -> common.Row:
    model = job["model"]
    gs.seed_everything(job["seed"])
    train, test = common.fashion_mnist(32 if model == "resnet20" else 28)
    data = common.loader_of(train, common.BATCH_SIZE, seed=job["seed"], augments=True)
    net = common.make_net(model)
    if model == "resnet20":
        gs.tune_for_cpu(net)
    settings = {"learning_rate": LEARNING_RATES[model], "momentum": 0.9, "wd": 1e-4}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", settings)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    measurement = Measurement(data, EPOCHS[model], BATCHES[model])
    estimator.fit(data, epochs=EPOCHS[model][-1] + 1, event_handlers=[measurement])
    return {"rows": measurement.rows, "test": common.loss_and_accuracy(net, test)}


def jobs() -> list[common.Row]:
    small = list(common.product(model=["softmax", "mlp"], seed=[0, 1, 2]))
    large = common.product(model=["lenet"], seed=[0, 1])
    return [*small, *large, *common.product(model=["resnet20"], seed=[0, 1, 2])]


def _values(
    results: common.Results, model: str, epoch: int, point: float, name: str
) -> list[float]:
    return [
        row[name]
        for result in results.of(model=model)
        for row in result["rows"]
        if row["epoch"] == epoch and row["point"] == point
    ]


def draw(results: common.Results) -> None:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for number, model in enumerate(MODELS, 1):
        axes = figure.add_subplot(1, 4, number)
        for color, epoch in enumerate(EPOCHS[model]):
            for name, style in (("locked", "-"), ("unlocked", ":")):
                values = [_values(results, model, epoch, p, name) for p in POINTS]
                x = [p for p, v in zip(POINTS, values, strict=True) if v]
                y = [v for v in values if v]
                if not y:
                    continue
                means = [sum(v) / len(v) for v in y]
                axes.plot(
                    x,
                    means,
                    style,
                    color=f"C{color}",
                    marker="o" if name == "locked" else "x",
                    markersize=3.5,
                    label=f"epoch {epoch}" if name == "locked" else None,
                )
                lows, highs = [min(v) for v in y], [max(v) for v in y]
                axes.fill_between(x, lows, highs, color=f"C{color}", alpha=0.12, linewidth=0)
        axes.axhline(1 / 3, color="black", linewidth=0.8, linestyle="--")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=NAMES[model], xlabel="% of the epoch done", yscale="log", ylim=(0.004, 60))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower right", ncols=2)
    figure.axes[0].set_ylabel("variance ratio")
    figure.savefig(common.IMAGES / "evidence_variance.png", dpi=130)


def section(results: common.Results) -> str:
    rows = []
    for model in MODELS:
        for epoch in EPOCHS[model]:
            cells = []
            for point in (2, 11, 33, 100):
                locked, unlocked = (
                    _values(results, model, epoch, point, name) for name in ("locked", "unlocked")
                )
                cells.append(f"{_mean(locked):.2g} / {_mean(unlocked):.2g}" if locked else "")
            optimal = _values(results, model, epoch, 100, "locked_at_optimal")
            cells.append(f"{_mean(optimal):.2g}" if optimal else "")
            rows.append((NAMES[model], epoch, *cells))
    header = ["network", "epoch", "2 %", "11 %", "33 %", "100 %", "100 %, best coefficient"]
    return report.markdown_table(header, rows)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
