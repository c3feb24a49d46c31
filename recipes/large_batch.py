"""LARS against SGD over batch sizes, each at the best of five learning rates or more.

    python recipes/large_batch.py                                # Fashion-MNIST, 120 runs
    OMP_NUM_THREADS=1 python recipes/large_batch.py --only sgd   # in two processes at once,
    OMP_NUM_THREADS=1 python recipes/large_batch.py --only lars  # which share --out
    python recipes/large_batch.py --data digits --batch-size 32 128 --seeds 2 --out runs/small
    python recipes/large_batch.py --model cifar_resnet20_v1 --epochs 3 --batch-size 2048 --seeds 1

All runs take the same number of epochs, so a large batch takes few steps. Both optimizers have
momentum 0.9, no weight decay on BatchNorm and biases, a warm-up over a fifth of the run, and then
the learning rate falls as the square of what is left (You et al. 2017). The grid of learning rates
is around one for each optimizer and batch size, by factors of 2. A tenth of the training set is
kept out of training: the learning rate whose mean accuracy on it is best is chosen, and the test
accuracy told. Where the best is at the edge of the grid, the grid grows beyond it, by --more-rates
at most. The net ``lenet`` is LeNet with BatchNorm, and strides in the place of pooling: 5
epochs of it take 15 s on one core.

The result of each run is a line of ``runs.jsonl``, written as it ends: a sweep that was killed goes
on where it was, and processes that were given different parts can share it. Writes ``report.html``,
``large_batch.png``, ``table.md`` and ``table.csv`` of all lines with the same settings, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import interruption
import cifar_data
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import run_report
from interruption import EXIT_CODE
from cifar_resnet import cifar_net
from gluon_svrg.data import ArrayLoader
from gluon_svrg.optimizer import exclude_from_decay
from matplotlib.figure import Figure
from mxnet import gluon
from mxnet.gluon import nn
from option_types import integer, number, show_defaults

OPTIMIZERS = ("sgd", "lars")
# The learning rate in the middle of the grid at a batch of 128, and the power of the batch size by
# which it grows. The linear rule of Goyal et al. (2017), 1, is for batches far smaller than these.
CENTRES = {"sgd": (0.1, 0.5), "lars": (8.0, 1 / 6)}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# What has to be the same for two lines to be of one sweep.
SETTINGS = ("data", "model", "epochs", "wd", "samples")

Result = dict[str, Any]


def learning_rates(optimizer: str, batch_size: int) -> list[float]:
    """Return the grid, five learning rates, rounded so that they are keys."""
    centre, power = CENTRES[optimizer]
    return [float(f"{centre * factor * (batch_size / 128) ** power:.3g}") for factor in FACTORS]


def make_net(options: argparse.Namespace, batch_size: int) -> gluon.HybridBlock:
    """Return the net; its running statistics forget as many samples whatever the batch size."""
    momentum = 0.9 ** (batch_size / 128)
    if options.model != "lenet":
        return cifar_net(options.model, norm_kwargs={"momentum": momentum})
    net = nn.HybridSequential()
    for layer in (nn.Conv2D(8, 5, 2, 2), nn.Conv2D(16, 5, 2, 2), nn.Dense(64)):
        net.add(layer, nn.BatchNorm(momentum=momentum), nn.Activation("relu"))
    net.add(nn.Dense(10))
    return net


def normalised(data: cifar_data.Data) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return training, validation and test set as float32; batches of them are kept."""
    shape = (1, -1, 1, 1)
    means, stds = (np.array(x, "float32").reshape(shape) * 255 for x in (data.mean, data.std))
    order = np.random.default_rng(0).permutation(len(data.train[0]))
    held_out = len(order) // 10
    train = [part[order] for part in data.train]
    parts = [[x[held_out:] for x in train], [x[:held_out] for x in train], data.test]
    for images, labels in parts:
        yield (images.astype("float32") - means) / stds, labels.astype("float32")


def train_one(
    options: argparse.Namespace,
    splits: list[tuple[np.ndarray, np.ndarray]],
    optimizer: str,
    batch_size: int,
    lr: float,
    seed: int,
) -> Result:
    """Train once; return the accuracies."""
    gs.seed_everything(seed)
    train, validation, test = splits
    batches = ArrayLoader(*train, batch_size=batch_size, shuffle=True, seed=seed)
    net = make_net(options, batch_size)
    net.initialize(mx.init.Xavier(magnitude=2))
    net.hybridize(static_alloc=True)
    exempt = exclude_from_decay(net)
    parameters = {"learning_rate": lr, "momentum": 0.9, "wd": options.wd}
    if optimizer == "lars":
        parameters["exempt"] = exempt
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, parameters)
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), mx.metric.Loss("loss"), mx.metric.Accuracy(),
        trainer=trainer,
    )  # fmt: skip
    schedule = gs.schedules.warm_up(gs.schedules.poly(lr), 0.2, lr / 100)
    begin = time.perf_counter()
    fitted = estimator.fit(
        batches,
        epochs=options.epochs,
        event_handlers=[
            gs.ScheduleHandler("learning_rate", schedule),
            gs.NaNGuardHandler("stop"),
        ],
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    is_finite = fitted.stop_reason is not gs.StopReason.NOT_FINITE
    return {
        "optimizer": optimizer,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        **{name: vars(options)[name] for name in SETTINGS},
        # A net of NaN calls everything class 0: it has learned nothing.
        "validation_accuracy": _accuracy(estimator, validation) if is_finite else 0.1,
        "test_accuracy": _accuracy(estimator, test) if is_finite else 0.1,
        "training_loss": float(fitted.history[-1]["training loss"]) if is_finite else None,
        "stop_reason": fitted.stop_reason.value,
        "steps": len(batches) * options.epochs,
        "seconds": round(seconds, 2),
    }


def _accuracy(estimator: gs.Estimator, split: tuple[np.ndarray, np.ndarray]) -> float:
    values = estimator.evaluate(ArrayLoader(*split, batch_size=1000))
    return float(values["validation accuracy"])


def read_results(path: Path, options: argparse.Namespace) -> list[Result]:
    """Return the results of these settings, each run once; a line cut by a crash does not count."""
    results: dict[tuple, Result] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            continue
        if all(result.get(name) == vars(options)[name] for name in SETTINGS):
            results[_key(result)] = result
    return list(results.values())


def _key(result: Result) -> tuple:
    return result["optimizer"], result["batch_size"], result["lr"], result["seed"]


def append(path: Path, result: Result) -> None:
    """Append a line in one write, so that the lines of several processes do not mix."""
    line = json.dumps(result) + "\n"
    content = path.read_bytes() if path.is_file() else b""
    if content and not content.endswith(b"\n"):
        line = "\n" + line  # after a line that a crash has cut
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def curve(results: list[Result], optimizer: str, batch_size: int) -> dict[float, list[Result]]:
    """Return the results of one optimizer at one batch size by learning rate, increasing."""
    mine = [r for r in results if (r["optimizer"], r["batch_size"]) == (optimizer, batch_size)]
    rates = sorted({result["lr"] for result in mine})
    return {lr: [result for result in mine if result["lr"] == lr] for lr in rates}


def best_rows(results: list[Result]) -> list[dict[str, Any]]:
    """Return the table: each optimizer at each batch size, at its best learning rate."""
    rows = []
    sizes = sorted({result["batch_size"] for result in results})
    for batch_size, optimizer in itertools.product(sizes, OPTIMIZERS):
        by_rate = curve(results, optimizer, batch_size)
        if not by_rate:
            continue
        best = max(by_rate, key=lambda lr: mean(r["validation_accuracy"] for r in by_rate[lr]))
        runs = by_rate[best]
        tests = [run["test_accuracy"] for run in runs]
        rows.append(
            {
                "optimizer": optimizer,
                "batch size": batch_size,
                "steps": runs[0]["steps"],
                "best learning rate": best,
                "of": len(by_rate),
                # Where it is the least or the greatest of the grid, a better one may be outside.
                "at the edge": "yes" if best in (min(by_rate), max(by_rate)) else "no",
                "seeds": len(runs),
                "validation accuracy": mean(run["validation_accuracy"] for run in runs),
                "test accuracy": mean(tests),
                "spread": stdev(tests) if len(tests) > 1 else None,
                "seconds a run": mean(run["seconds"] for run in runs),
            }
        )
    return rows


def draw(results: list[Result], rows: list[dict[str, Any]], title: str) -> Figure:
    """Return the picture: accuracy by batch size, and by learning rate in a panel a batch size."""
    sizes = sorted({row["batch size"] for row in rows})
    columns = min(4, len(sizes))
    lines = math.ceil(len(sizes) / columns)
    figure = Figure(figsize=(12, 4.2 + 2.6 * lines), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(1 + lines, columns, height_ratios=[1.6, *[1] * lines])
    top = figure.add_subplot(grid[0, :])
    panels = [figure.add_subplot(grid[1 + i // columns, i % columns]) for i in range(len(sizes))]
    for colour, optimizer in zip(("C0", "C1"), OPTIMIZERS, strict=True):
        mine = [row for row in rows if row["optimizer"] == optimizer]
        top.errorbar(
            [row["batch size"] for row in mine],
            [row["test accuracy"] for row in mine],
            [row["spread"] or 0 for row in mine],
            label=optimizer.upper(), color=colour, marker="o", capsize=3,
        )  # fmt: skip
        for panel, size in zip(panels, sizes, strict=True):
            for lr, runs in curve(results, optimizer, size).items():
                points = [run["validation_accuracy"] for run in runs]
                panel.plot([lr] * len(points), points, ".", color=colour, alpha=0.5)
            means = {
                lr: mean(run["validation_accuracy"] for run in runs)
                for lr, runs in curve(results, optimizer, size).items()
            }
            panel.plot(list(means), list(means.values()), color=colour)
    top.set_xscale("log", base=2)
    top.set_xticks(sizes, [f"{size:,}" for size in sizes])
    top.set(xlabel="batch size", ylabel="test accuracy at the best learning rate")
    top.legend()
    for panel, size in zip(panels, sizes, strict=True):
        panel.set_xscale("log")
        panel.set(title=f"batch {size:,}", xlabel="learning rate", ylabel="validation accuracy")
    for axis in (top, *panels):
        axis.grid(alpha=0.3)
    return figure


def write_report(
    options: argparse.Namespace, results: list[Result], arguments: Sequence[str] | None
) -> None:
    """Write tables, picture and page of the results until now."""
    rows = best_rows(results)
    sorted_results: list[Result] = sorted(results, key=_key)
    table = run_report.markdown(rows)
    run_report.write_text(options.out / "table.md", table)
    run_report.write_csv(options.out / "table.csv", rows)
    picture = options.out / "large_batch.png"
    title = f"LARS against SGD: {options.model}, {options.data}, {options.epochs} epochs"
    run_report.write_figure(picture, draw(results, rows, title))
    run_report.write_html(
        options.out / "report.html",
        title,
        run_report.launch_line(__file__, arguments),
        {
            "At the best learning rate (mean and standard deviation over seeds)": rows,
            "All runs": sorted_results,
        },
        [picture],
        vars(options),
    )
    print(f"\n{table}\nSee {options.out}: report.html, large_batch.png, table.md, table.csv")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=cifar_data.NAMES, default="fashion-mnist")
    parser.add_argument("--data-dir", help="folder of the data set's files")
    parser.add_argument("--download", action="store_true", help="let MXNet download CIFAR-10")
    parser.add_argument("--samples", type=integer(10), default=512, help="of the synthetic data")
    parser.add_argument("--model", default="lenet", help="lenet, or a CIFAR net of gluoncv")
    parser.add_argument("--epochs", type=integer(1), default=5)
    parser.add_argument("--wd", type=number(0), default=1e-4)
    parser.add_argument("--batch-size", type=integer(1), nargs="+", default=[128, 512, 2048, 8192])
    parser.add_argument("--only", choices=OPTIMIZERS, help="one optimizer only")
    parser.add_argument(
        "--more-rates", type=integer(0), default=2, help="learning rates beyond the grid's edge"
    )
    parser.add_argument("--seeds", type=integer(1), default=3, help="seeds 0, 1, ...")
    parser.add_argument("--out", type=Path, default=Path("runs/large_batch"))
    return show_defaults(parser).parse_args(arguments)


def runs_left(options: argparse.Namespace, results: list[Result]) -> list[tuple]:
    """Return the runs that have no result yet: the grid's, and then those beyond its edges."""
    done = {_key(result) for result in results}
    optimizers = [options.only] if options.only else OPTIMIZERS
    combinations = list(itertools.product(options.batch_size, optimizers))
    grids = {both: learning_rates(both[1], both[0]) for both in combinations}
    for (batch_size, optimizer), grid in grids.items():
        by_rate = curve(results, optimizer, batch_size)
        while len(grid) < len(FACTORS) + options.more_rates:
            own = itertools.product([optimizer], [batch_size], grid, range(options.seeds))
            if not done.issuperset(own):
                break  # a resumed search must extend the grid as an uninterrupted one does
            scores = {lr: mean(r["validation_accuracy"] for r in by_rate[lr]) for lr in grid}
            best = max(grid, key=lambda lr: scores[lr])
            if best not in (grid[0], grid[-1]):
                break
            beyond = best * 2 if best == grid[-1] else best / 2
            grid.append(float(f"{beyond:.3g}"))
            grid.sort()
    return [
        (optimizer, batch_size, lr, seed)
        for seed, (batch_size, optimizer) in itertools.product(range(options.seeds), combinations)
        for lr in grids[batch_size, optimizer]
        if (optimizer, batch_size, lr, seed) not in done
    ]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run what is not done yet; return the rows of the table."""
    options = parse(arguments)
    if options.model != "lenet":
        cifar_net(options.model)  # one that is not there is said at once
    splits = list(normalised(cifar_data.load(options)))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "runs.jsonl"
    try:
        train_what_is_left(options, splits, path)
    except KeyboardInterrupt:
        if results := read_results(path, options):
            write_report(options, results, arguments)
        print(f"interrupted: {path} has {len(results)} runs, the same command continues from there")
        raise SystemExit(EXIT_CODE) from None
    results = read_results(path, options)
    write_report(options, results, arguments)
    return best_rows(results)


def train_what_is_left(options: argparse.Namespace, splits: list[Any], path: Path) -> None:
    """Train until no run is left; write a line of each as it ends."""
    while left := runs_left(options, read_results(path, options)):
        print(f"{len(left)} runs to do")
        for count, run in enumerate(left, 1):
            result = train_one(options, splits, *run)
            append(path, result)
            optimizer, batch_size, lr, seed = run
            print(
                f"{count}/{len(left)}: {optimizer}, batch {batch_size}, learning rate {lr:g}, seed "
                f"{seed}: validation {result['validation_accuracy']:.2%}, test "
                f"{result['test_accuracy']:.2%} ({result['seconds']:.1f} s)",
                flush=True,
            )


if __name__ == "__main__":
    interruption.run(main)
