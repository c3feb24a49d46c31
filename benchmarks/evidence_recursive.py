"""Recursive variance reduction on networks: each method with as many gradient evaluations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import mean, stdev

import evidence_common as common
import evidence_grid as grid
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import recursive_methods as methods
import report
from matplotlib.figure import Figure
from mxnet import gluon

PART = "recursive"
PAGE = "evidence_recursive.md"
SAMPLES, HELD_OUT = 12_800, 5_000
BUDGET = 4 * SAMPLES
# After which share of the budget the held-out images are looked at.
POINTS = (0.25, 0.5, 0.75, 1.0)
# The first three learning rates; where the best of a grid is at its edge, the grid grows.
RATES = {
    "mlp": {
        "nag": 0.1, "sgd": 0.3, "adamw-999": 0.01, "adamw": 0.01, "qhadamw": 0.01, "mars": 0.01,
        "exact-mars": 0.005, "storm": 0.3, "storm-adamw": 0.005, "sarah": 0.1, "page": 0.1,
    },
    "resnet20": {
        "nag": 0.1, "adamw": 0.005, "qhadamw": 0.005, "mars": 0.01, "exact-mars": 0.01,
        "storm": 0.3, "sarah": 0.1, "page": 0.1,
    },
}  # fmt: skip
SEEDS = {"mlp": 5, "resnet20": 3}
TOP = 1.5
"""The greatest loss in the picture: SARAH's begins at hundreds."""
NAMES = {"mlp": "MLP 784-256-128-10 (dropout 0.2)", "resnet20": "ResNet-20"}
# What a method has to be better than; and what is no candidate.
CONTROLS = ("nag", "adamw", "qhadamw")
ARE_CONTROLS = (*CONTROLS, "sgd", "adamw-999")
LESS = 0.9


def held_out_loss(result: common.Row) -> float | None:
    return result["points"][-1]["held_out_loss"]


def job_of(model: str, method: str, share: float = 1.0) -> common.Row:
    """Return what the jobs of a method have in common; `share` is that of the budget."""
    return {"model": model, "method": method, "share": share}


def jobs() -> Iterator[common.Row]:
    for model, rates in RATES.items():
        for method, centre in rates.items():
            yield from grid.jobs(PART, job_of(model, method), centre, SEEDS[model], held_out_loss)
        yield from _second_question(model)


def _second_question(model: str) -> Iterator[common.Row]:
    """Yield the runs with less of the budget, of the methods that are better with all of it."""
    for method in RATES[model]:
        results = common.Results(PART)
        is_known = all(results.of(**job_of(model, name)) for name in (*CONTROLS, method))
        if is_known and is_better(results, model, method):
            rate = grid.best_rate(results, job_of(model, method), held_out_loss)
            for seed in range(SEEDS[model]):
                yield {**job_of(model, method, LESS), "seed": seed, "rate": rate}


def runs_of(results: common.Results, model: str, method: str) -> list[common.Row]:
    return grid.runs(results, job_of(model, method), held_out_loss)


def splits() -> tuple[common.Split, common.Split, common.Split]:
    """Return what is trained on, what rates are chosen by, and the test set."""
    (images, labels), test = common.fashion_mnist()
    end = SAMPLES + HELD_OUT
    return (
        (images[:SAMPLES], labels[:SAMPLES]),
        (images[SAMPLES:end], labels[SAMPLES:end]),
        test,
    )


def make_net(model: str) -> gluon.HybridBlock:
    net = common.make_net(model)
    if model == "resnet20":
        gs.tune_for_cpu(net)
    return net


def work(job: common.Row) -> common.Row:
    """Train until the budget is used up; what diverges has None for its losses."""
    train, held_out, test = splits()
    gs.seed_everything(job["seed"])
    net = make_net(job["model"])
    method = methods.METHODS[job["method"]](methods.Setup(net, train, job["seed"]))
    points: list[common.Row] = []
    begin, watched = time.perf_counter(), 0.0
    budget = job["share"] * BUDGET
    for batch in method.batches():
        done = method.done(budget)
        while done >= POINTS[len(points)] - 1e-9:
            mx.nd.waitall()
            before = time.perf_counter()
            points.append({"evaluations": method.evaluations, **figures(net, held_out)})
            watched += time.perf_counter() - before
            if len(points) == len(POINTS):
                break
        if len(points) == len(POINTS) or (points[-1:] and points[-1]["held_out_loss"] is None):
            break
        try:
            method.step(batch, job["rate"] * methods.schedule(done))
        except FloatingPointError:  # told by the full gradient
            break
    mx.nd.waitall()
    seconds = time.perf_counter() - begin - watched
    some = train[0][:HELD_OUT], train[1][:HELD_OUT]
    ends = dict(zip(("training_loss", "training_accuracy"), _evaluated(net, some), strict=True))
    ends |= dict(zip(("test_loss", "test_accuracy"), _evaluated(net, test), strict=True))
    while len(points) < len(POINTS):
        points.append({"evaluations": budget, "held_out_loss": None, "held_out_accuracy": None})
    return {"points": points, "steps": method.number, "seconds": seconds, **ends}


def figures(net: gluon.Block, split: common.Split) -> common.Row:
    loss, accuracy = _evaluated(net, split)
    return {"held_out_loss": loss, "held_out_accuracy": accuracy}


def _evaluated(net: gluon.Block, split: common.Split) -> tuple[float | None, float | None]:
    loss, accuracy = common.loss_and_accuracy(net, split)
    return (loss, accuracy) if math.isfinite(loss) else (None, None)


def section(results: common.Results) -> str:
    return "\n\n".join(_table(results, model) for model in RATES if results.of(model=model))


def _table(results: common.Results, model: str) -> str:
    rows = []
    for method in RATES[model]:
        found = grid.tried(results, job_of(model, method), held_out_loss)
        if not found:
            continue
        runs = runs_of(results, model, method)
        kind = methods.METHODS[method]
        ends = [run["points"][-1] for run in runs]
        rows.append(
            (
                kind.title,
                kind.cost,
                f"{round(mean(run['steps'] for run in runs))} x {kind.batch_size}",
                grid.cell(found),
                str(len(runs)),
                _spread([run["training_loss"] for run in runs], 3),
                _spread([end["held_out_loss"] for end in ends], 4),
                _spread([end["held_out_accuracy"] for end in ends], 2, 100),
                _spread([run["test_accuracy"] for run in runs], 2, 100),
                verdict(results, model, method),
                f"{mean(run['seconds'] for run in runs):.0f}",
            )
        )
    header = [
        NAMES[model],
        "gradients a step",
        "steps x batch",
        "learning rate (others tried)",
        "seeds",
        "training loss",
        "held-out loss",
        "held-out accuracy, %",
        "test accuracy, %",
        "pays",
        "seconds",
    ]
    return report.markdown_table(header, rows)


def _spread(values: list[float | None], digits: int, scale: float = 1.0) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"diverged in {len(values) - len(known)} of {len(values)}"
    return common.spread(known, digits, scale)


def verdict(results: common.Results, model: str, method: str) -> str:
    """Return whether the method pays, by the rule of the page."""
    if method in ARE_CONTROLS:
        return "control"
    if not all(results.of(**job_of(model, control)) for control in CONTROLS):
        return ""
    return "yes" if any(_answers(results, model, method, with_less=True)) else "no"


def is_better(results: common.Results, model: str, method: str) -> bool:
    """Return whether it is better with the whole budget."""
    return method not in ARE_CONTROLS and any(_answers(results, model, method, with_less=False))


def _answers(
    results: common.Results, model: str, method: str, *, with_less: bool
) -> Iterator[bool]:
    """Yield whether it pays by held-out loss, and by accuracy."""
    for name, sign in (("held_out_loss", -1), ("held_out_accuracy", 1)):
        own = _ends(runs_of(results, model, method), name)
        controls = [_ends(runs_of(results, model, control), name) for control in CONTROLS]
        if None in own or any(None in values for values in controls):
            yield False
            continue
        best = max(controls, key=lambda values: sign * mean(values))
        deviations = [stdev(v) ** 2 / len(v) if len(v) > 1 else math.inf for v in (own, best)]
        is_far = sign * (mean(own) - mean(best)) > 2 * math.sqrt(sum(deviations))
        less = _ends(results.of(**job_of(model, method, LESS)), name) if with_less else []
        is_enough = None not in less and (not less or sign * (mean(less) - mean(best)) >= 0)
        yield is_far and is_enough


def _ends(runs: list[common.Row], name: str) -> list[float]:
    return [run["points"][-1][name] for run in runs]


def draw(results: common.Results) -> None:
    """Draw the held-out loss by gradient evaluations; dashed: the recursive methods."""
    models = [model for model in RATES if results.of(model=model)]
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    colors = {method: f"C{number}" for number, method in enumerate(RATES["mlp"])}
    lines = {}
    for number, model in enumerate(models, 1):
        axes = figure.add_subplot(1, len(models), number)
        for method, color in colors.items():
            if not results.of(**job_of(model, method)):
                continue
            runs = runs_of(results, model, method)
            x = np.mean([[p["evaluations"] for p in run["points"]] for run in runs], axis=0)
            y = np.array([[p["held_out_loss"] for p in run["points"]] for run in runs], "float64")
            kind = methods.METHODS[method]
            style = "--x" if issubclass(kind, methods.Recursive) else "-o"
            (line,) = axes.plot(x, y.mean(axis=0), style, color=color, markersize=4)
            axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=color, alpha=0.12, linewidth=0)
            lines.setdefault(kind.title.replace("`", ""), line)
        axes.set(title=NAMES[model], xlabel="gradient evaluations", yscale="log")
        for of_axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            of_axis("{x:.2g}")
        axes.grid(alpha=0.3, which="both")
        axes.set_ylim(top=min(axes.get_ylim()[1], TOP))
    figure.axes[0].set_ylabel("held-out loss")
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=3, fontsize="small"
    )
    figure.savefig(common.IMAGES / "evidence_recursive.png", dpi=130)
