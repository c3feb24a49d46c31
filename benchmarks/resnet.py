"""Time SVRG epochs of a CIFAR ResNet-20: ours, MXNet's SVRGModule, and PyTorch's.

Every contestant lives in a process of its own, which waits for its turn; the rounds are
interleaved. Run it by ``make bench-resnet``, which puts the tables into docs/benchmarks/resnet.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import report

# This module is imported where MXNet, or gluon_svrg, must not be: each worker imports its own.

BATCH_SIZE = 128
IMAGE = (3, 32, 32)
CLASSES = 10
MODEL = "cifar_resnet20_v1"
PARAMETERS = 272_474
OPTIMIZER = {"learning_rate": 1e-3, "momentum": 0.9}

HERE = Path(__file__).resolve().parent
SGD = "gluon-svrg: plain SGD"
TABLE = "**gluon-svrg**: SVRG, table"
TABLE_2 = "gluon-svrg: SVRG, table, update_freq=2"
NO_TABLE = "gluon-svrg: SVRG, no table"
MODULE = "MXNet SVRGModule, as it comes"
MODULE_ALL = "MXNet SVRGModule, all cores"
TORCH = "PyTorch: SVRG"
TORCH_COMPILE = "PyTorch: SVRG, torch.compile"
TORCH_SGD = "PyTorch: plain SGD"
# The arguments of SVRGHandler; None: without one.
OURS: dict[str, dict[str, Any] | None] = {
    TABLE: {"gradient_table": True},
    NO_TABLE: {"gradient_table": False},
    TABLE_2: {"gradient_table": True, "update_freq": 2},
    SGD: None,
}
TORCH_MODES = {TORCH: "svrg", TORCH_COMPILE: "svrg-compile", TORCH_SGD: "sgd"}
# The least work there is: gradients a sample and epoch of SVRG, and a tenth of one for the rest.
BOUNDS = {TABLE: 2.1, TABLE_2: 1.6, NO_TABLE: 3.1}
# Okabe and Ito's colours, which the colour-blind tell apart.
COLORS = {"gluon-svrg": "#0072B2", "MXNet": "#E69F00", "PyTorch": "#009E73"}


class Contestant(NamedTuple):
    """The command of a worker; `threads` as OMP_NUM_THREADS, where that is to be set."""

    command: list[str]
    threads: int | None = None
    environ: dict[str, str] | None = None


class Worker:
    """A process that runs an epoch whenever it is told to, and sleeps otherwise."""

    def __init__(self, contestant: Contestant) -> None:
        environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        if contestant.threads is not None:
            environ["OMP_NUM_THREADS"] = str(contestant.threads)
        environ |= contestant.environ or {}
        self._process = subprocess.Popen(
            contestant.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        # Whatever libraries print when they are imported comes before.
        self.is_ready = any(line == "ready\n" for line in self._process.stdout)

    def epoch(self, order: str = "go") -> float:
        """Return the seconds of one epoch: of the only one there is, or of the one ordered."""
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(epoch: Callable[[], float]) -> None:
    """Run one epoch to warm up, then one for each line that comes in; print its seconds."""
    answers, sys.stdout = sys.stdout, sys.stderr
    epoch()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(epoch()), file=answers, flush=True)


def timed(
    run: Callable[[], object], wait: Callable[[], None] = lambda: None, epochs: int = 1
) -> Callable[[], float]:
    """Return a call that runs `run` and returns the seconds an epoch until `wait` returns."""

    def call() -> float:
        wait()
        begin = time.perf_counter()
        run()
        wait()
        return (time.perf_counter() - begin) / epochs

    return call


def cores() -> int:
    return len(os.sched_getaffinity(0))


def our_batches(count: int, batch_size: int = BATCH_SIZE) -> list[tuple]:
    """Return random images with random labels, the same ones each time."""
    import gluon_svrg as gs
    import mxnet as mx

    gs.seed_everything(0)
    return [
        (
            mx.nd.random.normal(shape=(batch_size, *IMAGE)),
            mx.nd.random.randint(0, CLASSES, (batch_size,)).astype("float32"),
        )
        for _ in range(count)
    ]


def our_estimator(model: str = MODEL) -> Any:
    """Return an Estimator of a hybridized network of gluoncv, which logs nothing."""
    import gluon_svrg as gs
    import mxnet as mx
    from gluoncv.model_zoo import get_model

    net = get_model(model, classes=CLASSES)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", OPTIMIZER)
    estimator = gs.Estimator(net, loss, train_metrics=mx.metric.Accuracy(), trainer=trainer)
    estimator.logger.handlers.clear()
    return estimator


def serve_ours(name: str, batches: int) -> None:
    import gluon_svrg as gs
    import mxnet as mx

    data = our_batches(batches)
    estimator = our_estimator()
    settings = OURS[name]
    handlers = [] if settings is None else [gs.SVRGHandler(**settings, progress_bar=False)]
    epochs = (settings or {}).get("update_freq", 1)

    def fit() -> None:
        estimator.fit(data, epochs=epochs, event_handlers=handlers)

    serve(timed(fit, mx.nd.waitall, epochs))


def contestants(batches: int, torch_python: str | None) -> dict[str, Contestant]:
    """Return what to run; PyTorch's are left out where there is no interpreter with it."""
    size = ["--batches", str(batches)]
    module = [sys.executable, str(HERE / "resnet_svrgmodule.py"), *size]
    result = {
        name: Contestant([sys.executable, __file__, "--worker", name, *size]) for name in OURS
    }
    result[MODULE] = Contestant(module)
    result[MODULE_ALL] = Contestant(module, cores())
    if torch_python is not None:
        script = [torch_python, str(HERE / "resnet_torch.py"), *size]
        for name, mode in TORCH_MODES.items():
            result[name] = Contestant([*script, "--mode", mode])
    return result


def measure(to_run: dict[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each epoch, by name, of the workers that came up."""
    with ExitStack() as stack:
        workers = {}
        for name, contestant in to_run.items():
            worker = Worker(contestant)
            stack.callback(worker.close)
            if worker.is_ready:
                workers[name] = worker.epoch
        return report.interleaved(workers, rounds, warm_up=0)


def torch_version(python: str) -> str | None:
    """Return the version of the PyTorch that this interpreter has, or None."""
    call = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    return call.stdout.strip() if call.returncode == 0 else None


def speeds_table(seconds: dict[str, list[float]], samples: int, missing: dict[str, str]) -> str:
    def times(name: str, other: str) -> str:
        if "SGD" in name or other not in seconds:
            return ""
        return f"{report.median(seconds[other]) / report.median(seconds[name]):.2f}"

    rows: list[tuple[str, ...]] = []
    for name in sorted(seconds, key=lambda name: report.median(seconds[name])):
        speeds = [samples / value for value in seconds[name]]
        middle, quartiles = f"{report.median(speeds):,.0f}", report.spread(speeds, digits=0)
        rows.append((name, middle, quartiles, times(name, MODULE), times(name, TORCH)))
    rows += [(name, why, "", "", "") for name, why in missing.items()]
    header = ["contestant", "samples/s", "25 % to 75 %", "times SVRGModule", "times PyTorch SVRG"]
    return report.markdown_table(header, rows)


def cost_table(seconds: dict[str, list[float]]) -> str:
    rows = []
    for name, bound in BOUNDS.items():
        ratios = [svrg / sgd for svrg, sgd in zip(seconds[name], seconds[SGD], strict=True)]
        rows.append((name, f"{report.median(ratios):.2f}", report.spread(ratios, digits=2), bound))
    header = ["epoch of", "times an epoch of plain SGD", "25 % to 75 % of the rounds", "bound"]
    return report.markdown_table(header, rows)


def plot(path: Path, seconds: dict[str, list[float]], samples: int) -> None:
    """Draw a bar of samples a second for each contestant, with its quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(seconds, key=lambda name: -report.median(seconds[name]))
    figure, axis = plt.subplots(figsize=(9, 1 + 0.42 * len(names)), layout="constrained")
    for name in names:
        speeds = [samples / value for value in seconds[name]]
        color = next(color for maker, color in COLORS.items() if maker in name)
        label = name.replace("*", "")
        low, middle, high = statistics.quantiles(speeds, n=4) if len(speeds) > 1 else speeds * 3
        axis.barh(
            label,
            middle,
            xerr=[[middle - low], [high - middle]],
            color=color,
            hatch="//" if "SGD" in name else None,
            edgecolor="white",
            ecolor="black",
        )
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axis.annotate(f"{middle:,.0f}", (high, label), **place)
    axis.set_xlabel("samples a second, ResNet-20, batches of 128 (hatched: no SVRG)")
    axis.margins(x=0.1)
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def section(
    seconds: dict[str, list[float]],
    options: argparse.Namespace,
    missing: dict[str, str],
    version: str | None,
    picture: Path | None,
) -> str:
    samples = BATCH_SIZE * options.batches
    image = f"\n\n![Samples a second](../images/{picture.name})" if picture else ""
    packages = ("mxnet", "numpy", "gluoncv")
    torch = f"PyTorch {version}: " if version else "PyTorch: "
    return f"""\
Samples of an epoch by its seconds, the full pass and the copy of the weights included:
`{MODEL}` ({PARAMETERS:,} parameters), float32, {options.batches} batches of
{BATCH_SIZE} random images of 3 x 32 x 32, a snapshot every epoch unless said otherwise, SGD with
momentum 0.9. Medians of {options.rounds} interleaved rounds, after an epoch to warm up, each
contestant in a process of its own. SVRGModule takes half of the cores as it comes; it keeps no
metric, ours keeps the accuracy. {torch}channels_last, all cores, a second model with a copy of the
weights, both gradients in train mode, the correction by `torch._foreach`, fused SGD; it keeps no
metric. Times: how many times as fast. {report.provenance("bench-resnet", packages)}

{speeds_table(seconds, samples, missing)}{image}

What SVRG costs, from the same rounds: its epoch by one of plain SGD, in `gluon_svrg.Estimator`
both. The bound is the gradients it computes a sample, and a tenth of one.

{cost_table(seconds)}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=7)
    command.add_argument("--batches", type=int, default=8, help="batches an epoch")
    command.add_argument("--quick", action="store_true", help="two batches, two rounds")
    command.add_argument("--worker", choices=list(OURS), help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.quick:
        options.batches, options.rounds = 2, 2
    return options


def main() -> None:
    options = parse()
    if options.worker:
        serve_ours(options.worker, options.batches)
        return
    version = torch_version(options.peers_python)
    to_run = contestants(options.batches, options.peers_python if version else None)
    seconds = measure(to_run, options.rounds)
    missing = {name: "did not run" for name in to_run if name not in seconds}
    if version is None:
        missing |= dict.fromkeys(TORCH_MODES, "not installed: `make bench-resnet`")
    picture = None
    if options.out is not None:
        picture = options.out.parents[1] / "images" / "bench_resnet.png"
        plot(picture, seconds, BATCH_SIZE * options.batches)
    text = section(seconds, options, missing, version, picture)
    report.publish("bench-resnet", text, options.out)


if __name__ == "__main__":
    main()
