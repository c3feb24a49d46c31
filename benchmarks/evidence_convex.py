"""The recursive methods, SVRG and its kin on a convex problem, by gradient evaluations."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import evidence_common as common
import evidence_grid as grid
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import recursive_methods as methods
import report
import scipy.optimize
from matplotlib.figure import Figure
from mxnet import gluon
from scipy.special import log_softmax, softmax

PART = "convex"
PAGE = "evidence_recursive.md"
BATCH_SIZE = common.BATCH_SIZE
SAMPLES, L2 = 156 * BATCH_SIZE, 1e-3
# The gradients of PASSES passes over the data; the gap to the optimum is shown after POINTS.
PASSES, POINTS = 24, (4, 8, 16, 24)
SEEDS = 3
CENTRE = 4.0  # of the grid of learning rates
FLOAT32 = 2e-9  # below this the weights' rounding decides


class Anchored(methods.Recursive):
    """Steps along g - g~ + mu with an anchor that stays."""

    def _anchored_step(self, batch: methods.Batch) -> None:
        losses = self._backward_as(batch)
        self.trainer.correct(self.snapshot.gradient(self._backward, batch))
        self.trainer.step(len(losses))
        self.evaluations += 2 * len(losses)

    def _everything(self) -> list[methods.Batch]:
        return list(self.setup.loader_of(self.setup.train, self.batch_size))


class SVRG(Anchored):
    """An anchor an epoch, with the table of its batches' gradients or without."""

    name, title, cost = "svrg", "SVRG", "2 + n/m"
    has_table = False

    def __init__(self, setup: methods.Setup) -> None:
        super().__init__(setup)
        self._interval = gs.svrg.Interval(
            self.net, self._backward, gradient_table=self.has_table, progress_bar=False
        )

    def batches(self) -> Iterator[Any]:
        """Yield numbers of batches, which are the same samples each time."""
        self._all = self._everything()
        random = np.random.default_rng(self.setup.seed)
        while True:
            yield from random.permutation(len(self._all)).tolist()

    def _step(self, number: Any) -> None:
        if self.number % len(self._all) == 0:
            self.trainer.set_control_variate(self._interval.begin(self._all))
            self.evaluations += len(self.setup.train[1])
        batch = self._all[number]
        losses = self._backward(batch)
        self.trainer.correct(self._interval.gradient(batch, number))
        self.trainer.step(len(losses))
        self.evaluations += (1 if self.has_table else 2) * len(losses)


class SVRGWithTable(SVRG):
    name, title, cost = "svrg-table", "SVRG with its table", "1 + n/m"
    has_table = True


class LooplessSVRG(Anchored):
    """A new anchor by a coin at each step (Kovalev et al. 2019)."""

    name, title = "l-svrg", "L-SVRG, p = b/n"

    def __init__(self, setup: methods.Setup) -> None:
        super().__init__(setup)
        self._random = np.random.default_rng(setup.seed)

    def _step(self, batch: methods.Batch) -> None:
        samples = len(self.setup.train[1])
        if not self.number or self._random.random() < self.batch_size / samples:
            self.evaluations += self._begin(self._everything(), 1.0)
        self._anchored_step(batch)


class SCSG(Anchored):
    """An anchor's gradient of B samples, for a geometric number of steps (Lei et al. 2017)."""

    name, title = "scsg", "SCSG, B = n/4"

    def __init__(self, setup: methods.Setup) -> None:
        super().__init__(setup)
        self._random = np.random.default_rng(setup.seed)
        self._large = self._batches(SAMPLES // 4, setup.seed + 1)
        self._left = 0

    def _step(self, batch: methods.Batch) -> None:
        if not self._left:
            self.evaluations += self._begin([next(self._large)], 1.0)
            self._left = self._random.geometric(self.batch_size / (SAMPLES // 4))
        self._left -= 1
        self._anchored_step(batch)


class ConvexPage(methods.Page):
    title = "PAGE, batches of 2025 and 45"
    batch_size = 45


class Cosine(methods.SGD):
    name, title = "sgd-cosine", "SGD, cosine to 0 over all passes"


class StormCosine(methods.StormTenth):
    name, title = "storm-10-cosine", "STORM, a = 0.1, cosine to 0 over all passes"


METHODS: dict[str, type[methods.Method]] = {
    method.name: method
    for method in (
        Cosine, SVRG, SVRGWithTable, LooplessSVRG, methods.Sarah, SCSG, ConvexPage,
        methods.StormTenth, methods.StormHundredth, StormCosine,
    )
}  # fmt: skip
FALLING = (Cosine.name, StormCosine.name)


@functools.cache
def problem() -> common.Split:
    """Return rows of length 1, the last column the constant, and labels."""
    (images, labels), _ = common.fashion_mnist(samples=SAMPLES)
    rows = images.reshape(len(images), -1).astype("float64") / 255
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype("float32"), labels


@functools.cache
def _exact_problem() -> common.Split:
    rows, labels = problem()
    return rows.astype("float64"), labels.astype(int)


def objective(weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the objective and its gradient, in float64; `weight` is flat."""
    rows, labels = _exact_problem()
    weight = weight.astype("float64").reshape(10, -1)
    scores = rows @ weight.T
    loss = -log_softmax(scores, axis=1)[np.arange(len(rows)), labels].mean()
    errors = softmax(scores, axis=1)
    errors[np.arange(len(rows)), labels] -= 1
    gradient = errors.T @ rows / len(rows) + L2 * weight
    return loss + L2 / 2 * np.sum(weight**2), gradient.ravel()


@functools.cache
def optimum() -> float:
    """Return the least objective, to 1e-11."""
    start = np.zeros(10 * problem()[0].shape[1])
    options = {"maxiter": 5000, "maxfun": 10**6, "ftol": 0.0, "gtol": 1e-9, "maxcor": 50}
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    # By strong convexity the objective is this near to the least one.
    bound = float(found.jac @ found.jac) / (2 * L2)
    if bound > 1e-11:
        raise RuntimeError(f"the optimum is known to {bound:.1e} only: {found.message}")
    return found.fun


def loader_of(split: common.Split, batch_size: int, seed: int | None = None) -> Any:
    return gs.data.ArrayLoader(*split, batch_size=batch_size, shuffle=seed is not None, seed=seed)


def work(job: common.Row) -> common.Row:
    """Train until the passes are used up; the gaps are None once it has diverged."""
    split = problem()
    gs.seed_everything(job["seed"])
    net = gluon.nn.Dense(10, use_bias=False, in_units=split[0].shape[1])
    net.initialize(mx.init.Zero())
    net.hybridize(static_alloc=True)
    setup = methods.Setup(net, split, job["seed"], loader_of, decay=L2)
    method = METHODS[job["method"]](setup)
    points: list[common.Row] = []
    end = PASSES * len(split[1])
    is_falling = job["method"] in FALLING
    for batch in method.batches():
        passes = method.evaluations / len(split[1])
        while len(points) < PASSES and passes >= len(points) + 1 - 1e-9:
            gap = objective(net.weight.data().asnumpy().ravel())[0] - optimum()
            points.append({"evaluations": method.evaluations, "gap": gap if gap < 1e3 else None})
        if len(points) == PASSES or (points and points[-1]["gap"] is None):
            break
        share = methods.schedule(method.evaluations / end) if is_falling else 1.0
        method.step(batch, job["rate"] * share)
    return {"points": points, "steps": method.number}


def gap_at(result: common.Row, passes: int) -> float | None:
    points: Sequence[common.Row] = result["points"]
    return points[passes - 1]["gap"] if len(points) >= passes else None


def last_gap(result: common.Row) -> float | None:
    """Return the logarithm of the gap at the end; of those that float32 ends, the early ones first.

    Where several learning rates end at what float32 can tell, a thousandth of the mean of the
    logarithms on the way decides.
    """
    gaps = [gap_at(result, passes) for passes in POINTS]
    if any(gap is None for gap in gaps):
        return None
    digits = [float(np.log10(max(gap or 0.0, FLOAT32))) for gap in gaps]
    return digits[-1] + 1e-3 * float(np.mean(digits))


def jobs() -> Iterator[common.Row]:
    for method in METHODS:
        yield from grid.jobs(PART, {"method": method}, CENTRE, SEEDS, last_gap)


def section(results: common.Results) -> str:
    rows = []
    for name, method in METHODS.items():
        found = grid.tried(results, {"method": name}, last_gap)
        if not found:
            continue
        runs = grid.runs(results, {"method": name}, last_gap)
        cells = [_gaps([gap_at(run, passes) for run in runs]) for passes in POINTS]
        rows.append((method.title, grid.cell(found), str(len(runs)), *cells))
    header = ["method", "learning rate (others tried)", "seeds"]
    header += [f"gap after {passes} passes" for passes in POINTS]
    return report.markdown_table(header, rows)


def _gaps(gaps: Sequence[float | None]) -> str:
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return "diverged"
    if max(known) < FLOAT32:
        return "< 2e-9"
    return f"{np.median(known):.1e} ({max(min(known), 0):.1e} to {max(known):.1e})"


def draw(results: common.Results) -> None:
    """Draw the gap to the optimum by passes."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for color, (name, method) in enumerate(METHODS.items()):
        if not results.of(method=name):
            continue
        runs = grid.runs(results, {"method": name}, last_gap)
        gaps = [[max(gap_at(run, p + 1) or 0.0, FLOAT32) for p in range(PASSES)] for run in runs]
        style = "-" if "svrg" in name or "sgd" in name else "--"
        line = np.median(gaps, axis=0)
        axes.plot(range(1, PASSES + 1), line, style, color=f"C{color}", label=method.title)
    axes.set(xlabel="gradient evaluations / samples", ylabel="objective - optimum", yscale="log")
    axes.set_title("Softmax regression on Fashion-MNIST, L2 1e-3")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(common.IMAGES / "evidence_convex.png", dpi=130)
