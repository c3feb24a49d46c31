"""Time SVRG and other libraries' solvers on softmax regression, to 1e-8 above the optimum.

Fashion-MNIST, 60,000 x 784, rows scaled to a mean norm of 1; the mean cross-entropy plus L2/2 times
the squared weights (not the biases). Every solver runs in a process of its own; the rounds are
interleaved. Run it by ``make bench-convex``, which puts the tables into docs/benchmarks/convex.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contest
import convex_peers
import numpy as np
import report
from contest import Entrant, Result, Rules, frontier
from convex_peers import PEERS, Point, Problem, emit

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "runs" / "bench"
PIXELS = CACHE / "fashion-mnist.npz"
L2S = (1e-3, 1e-4, 1e-5)
TARGET = 1e-8
OURS = "gluon-svrg"

# Found by a simulation of the same steps in NumPy, the best by the passes over the data and the
# steps to the target, of: batches of 512, 1024 and 2048; momentum 0.9 to 0.985; learning rates 4,
# 6, 8, 9.5 and 12 (from about 9.5 on it diverges); a snapshot every 1, 2, 3 and 4 epochs; with and
# without an epoch of plain momentum before the first. One thread (OMP_NUM_THREADS): products with
# a matrix of only ten columns are slower with two.
OUR_SETTINGS = {
    1e-3: {"batch_size": 1024, "lr": 4.0, "momentum": 0.9, "update_freq": 1, "threads": 1},
    1e-4: {"batch_size": 1024, "lr": 8.0, "momentum": 0.95, "update_freq": 1, "threads": 1},
    1e-5: {"batch_size": 1024, "lr": 8.0, "momentum": 0.98, "update_freq": 2, "threads": 1},
}
# Okabe and Ito's colours, which the colour-blind tell apart.
LOOKS = {
    OURS: ("#000000", "-", "o"),
    "sklearn-lbfgs": ("#0072B2", "-", "s"),
    "sklearn-saga": ("#0072B2", "--", "^"),
    "sklearn-sag": ("#0072B2", ":", "v"),
    "sklearn-newton-cg": ("#0072B2", "-.", "D"),
    "cyanure-svrg": ("#D55E00", "-", "s"),
    "cyanure-acc-svrg": ("#D55E00", "--", "^"),
    "cyanure-qning-svrg": ("#D55E00", ":", "v"),
    "nemos-svrg": ("#009E73", "-", "s"),
    "nemos-lbfgs": ("#009E73", "--", "^"),
    "torch-lbfgs": ("#CC79A7", "-", "s"),
    "scipy-lbfgs": ("#E69F00", "-", "D"),
}


def our_estimator(features: int, l2: float, settings: dict[str, Any]) -> Any:
    """Return an Estimator of softmax regression at zero, which logs nothing."""
    import gluon_svrg as gs
    import mxnet as mx
    from mxnet import gluon

    net = gluon.nn.Dense(convex_peers.CLASSES, in_units=features)
    net.initialize(mx.init.Zero())
    net.hybridize(static_alloc=True, static_shape=True)
    net.bias.wd_mult = 0
    rates = {"learning_rate": settings["lr"], "momentum": settings["momentum"]}
    trainer = gs.SVRGTrainer(net.collect_params(), "nag", {**rates, "wd": l2})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), mx.metric.Loss(), trainer=trainer)
    estimator.logger.handlers.clear()
    return estimator


def train_ours(problem: Problem, settings: dict[str, Any], target: float, cap: int) -> None:
    """Train from zero to the target; print the point of each epoch."""
    import gluon_svrg as gs
    import mxnet as mx
    from gluon_svrg.data import ArrayLoader
    from gluon_svrg.events import EpochEnd, TrainBegin

    class Clock(TrainBegin, EpochEnd):
        """Reads the clock after each epoch, and judges the weights while it stands still."""

        def __init__(self) -> None:
            self.epochs = 0
            self.seconds = 0.0
            self.resumed = 0.0

        def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            mx.nd.waitall()
            self.resumed = time.perf_counter()

        def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
            mx.nd.waitall()
            self.seconds += time.perf_counter() - self.resumed
            self.epochs += 1
            net = estimator.net
            gap = problem.gap(net.weight.data().asnumpy(), net.bias.data().asnumpy())
            emit(Point(self.epochs, self.seconds, gap)._asdict())
            self.resumed = time.perf_counter()
            return gap <= target or self.seconds > cap

    def fit(data: Any, *handlers: Any) -> None:
        estimator = our_estimator(problem.x.shape[1], problem.l2, settings)
        svrg = gs.SVRGHandler(update_freq=settings["update_freq"], gradient_table="auto")
        epochs = 1000 if handlers else 1
        estimator.fit(data, epochs=epochs, event_handlers=[svrg, *handlers])

    arrays = problem.x.astype("float32"), problem.y.astype("float32")
    size = settings["batch_size"]
    fit(ArrayLoader(*(array[: 2 * size] for array in arrays), batch_size=size))  # warms up
    data = ArrayLoader(*arrays, batch_size=size, shuffle=True, seed=0)
    for _ in data:  # the batches are made when they are first asked for
        pass
    fit(data, Clock())


def run_ours(options: argparse.Namespace) -> None:
    """Run in a process of its own, with the peers' protocol."""
    problem = convex_peers.load(options.problem, options.l2, options.optimum)
    settings = {**OUR_SETTINGS[options.l2], **options.settings}
    version = importlib.metadata.version(OURS)
    emit({"version": version, "settings": f"{convex_peers.describe(settings)}, dtype float32"})
    train_ours(problem, settings, options.target, options.cap)


def entrant(name: str, l2: float, optimum: float, rules: Rules, python: str) -> Entrant:
    """Return what runs one contestant."""
    script = [python, str(ROOT / "benchmarks" / "convex_peers.py"), name]
    threads = None
    if name == OURS:
        script = [sys.executable, str(Path(__file__).resolve()), "--ours"]
        threads = OUR_SETTINGS[l2]["threads"]
    command = [*script, repr(l2), "--problem", str(PIXELS), "--optimum", repr(optimum)]
    # Of ours, each epoch is a point: there is no budget to search.
    return lambda budget: contest.run_process(
        command, rules, threads, None if name == OURS else budget
    )


def prepare(l2s: tuple[float, ...]) -> dict[float, float]:
    """Write the pixels for all processes; return the optima, from the cache where it has them."""
    from gluon_svrg.data import load_fashion_mnist

    (pixels, y), _ = load_fashion_mnist()
    if not PIXELS.exists():
        convex_peers.save(PIXELS, pixels, y)
    return {l2: optimum_of(l2) for l2 in l2s}


def optimum_of(l2: float) -> float:
    """Return the optimum by the recipe's second-order solver, which may take minutes."""
    path = CACHE / f"convex-optimum-{l2:g}.json"
    if not path.exists():
        sys.path.insert(0, str(ROOT / "recipes"))
        recipe = importlib.import_module("softmax_regression")
        problem = convex_peers.load(PIXELS, l2, 0.0)
        objective = recipe.Objective(problem.x, problem.y, l2)
        check_same_objective(problem, objective)
        value, gradient = objective.optimum()
        path.write_text(json.dumps({"value": value, "gradient": gradient}), encoding="utf-8")
    return float(json.loads(path.read_text(encoding="utf-8"))["value"])


def check_same_objective(problem: Problem, objective: Any) -> None:
    weight = np.random.default_rng(0).normal(size=objective.shape)
    bias = np.arange(len(weight), dtype="float64")
    ours, recipes = problem.gap(weight, bias), objective.value(np.append(weight.ravel(), bias))
    if abs(ours - recipes) > 1e-12 * recipes:
        raise AssertionError(f"two objectives: {ours!r} and the recipe's {recipes!r}")


def measure(
    names: list[str], optima: dict[float, float], rounds: int, cap: int, python: str
) -> dict[float, dict[str, Result]]:
    """Run all contestants; return their results by L2 and name."""
    rules = Rules(TARGET, cap, "bench-convex")
    entrants = {
        (l2, name): entrant(name, l2, optimum, rules, python)
        for l2, optimum in optima.items()
        for name in names
    }
    results = contest.measure(entrants, rounds)
    return {l2: {name: results[l2, name] for name in names} for l2 in optima}


def title_of(name: str) -> str:
    return "**ours**" if name == OURS else PEERS[name].title


def row(name: str, result: Result, ours: float | None) -> tuple[str, ...]:
    first, seconds, _ = result
    head = title_of(name), first.version, first.settings
    if not seconds:
        return *head, first.failure, ""
    middle = report.median(seconds)
    times = f"{middle / ours:.1f}" if ours else ""
    return *head, f"{middle:.2f} ({report.spread(seconds, digits=2)})", times


def table(results: dict[str, Result]) -> str:
    seconds = results[OURS].seconds
    ours = report.median(seconds) if seconds else None
    ranks = {name: report.median(r.seconds) if r.seconds else 1e9 for name, r in results.items()}
    rows = [row(name, results[name], ours) for name in sorted(results, key=ranks.__getitem__)]
    header = ["solver", "version", "settings", "seconds to 1e-8 (25 % to 75 %)", "times ours"]
    return report.markdown_table(header, rows)


def section(
    results: dict[float, dict[str, Result]], rounds: int, cap: int, picture: Path | None
) -> str:
    tables = "\n\n".join(f"## L2 {l2:g}\n\n{table(of_l2)}" for l2, of_l2 in results.items())
    image = f"\n\n![Gap against seconds](../images/{picture.name})" if picture else ""
    return f"""\
Seconds until the objective is 1e-8 above its optimum: Fashion-MNIST, 60,000 x 784, rows scaled to a
mean norm of 1, mean cross-entropy plus L2/2 times the squared weights; the biases are free. Each
solver in a process of its own, all cores unless its settings say otherwise, the data in memory in
its own type before the clock starts, after a short fit to warm up; {rounds} interleaved rounds. Of
ours, whole epochs are timed, with the Estimator's loop around them. Peers without a callback: the
time of the fit alone whose `max_iter` is the least that reaches the target (searched to 4 %), as if
they had known it beforehand. "> {cap}": one fit took longer than {cap} seconds. All judged in
float64 by one function. {report.provenance("bench-convex")}

{tables}{image}"""


def plot(path: Path, results: dict[float, dict[str, Result]]) -> None:
    """Draw the gap against seconds of the first round, a panel an L2."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(1 + 4.4 * len(results), 5.6), sharey=True, squeeze=False
    )
    for axis, (l2, of_l2) in zip(axes[0], results.items(), strict=True):
        for name, result in of_l2.items():
            color, line, marker = LOOKS[name]
            # A gap below is rounding of the judge; it has no place in a logarithm.
            points = [p for p in frontier(result.first.points) if p.gap > 0]
            axis.loglog(
                [point.seconds for point in points],
                [max(point.gap, 1e-12) for point in points],
                color=color,
                linestyle=line,
                marker=marker,
                markersize=5,
                linewidth=2.6 if name == OURS else 1.5,
                label=title_of(name).strip("*"),
                zorder=3 if name == OURS else 2,
            )
        axis.axhline(TARGET, color="gray", linewidth=1)
        axis.set(title=f"L2 = {l2:g}", xlabel="seconds", ylim=(1e-11, 3))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("objective above the optimum")
    handles = {label: line for axis in axes[0] for line, label in lines_of(axis)}
    columns = 4 if len(results) > 1 else 2
    figure.legend(handles.values(), handles, loc="lower center", ncols=columns, frameon=False)
    rows = -(-len(handles) // columns)
    figure.tight_layout(rect=(0, 0.02 + 0.045 * rows, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def lines_of(axis: Any) -> Iterator[tuple[Any, str]]:
    return zip(*axis.get_legend_handles_labels(), strict=True)


def parse() -> argparse.Namespace:
    if "--ours" in sys.argv[1:2]:
        command = argparse.ArgumentParser()
        command.add_argument("--ours", action="store_true")
        convex_peers.add_arguments(command)
        return command.parse_args()
    command = report.parser(__doc__, rounds=2)
    command.add_argument("--cap", type=int, default=30, help="seconds that a fit may take")
    command.add_argument("--l2", type=float, nargs="+", default=L2S[:2], choices=L2S)
    command.add_argument(
        "--only", nargs="+", choices=list(PEERS), default=list(PEERS), help="the peers to run"
    )
    command.add_argument("--quick", action="store_true", help="one L2, one round, a cap of 3 s")
    options = command.parse_args()
    if options.quick:
        options.l2, options.rounds, options.cap = L2S[:1], 1, min(options.cap, 3)
    return options


def main() -> None:
    options = parse()
    if hasattr(options, "ours"):
        run_ours(options)
        return
    optima = prepare(tuple(options.l2))
    results = measure(
        [OURS, *options.only], optima, options.rounds, options.cap, options.peers_python
    )
    picture = None
    if options.out is not None:
        picture = options.out.parents[1] / "images" / "bench_convex.png"
        plot(picture, results)
    text = section(results, options.rounds, options.cap, picture)
    report.publish("bench-convex", text, options.out)


if __name__ == "__main__":
    main()
