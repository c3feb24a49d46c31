"""Time this version of the package beside another: loop, ResNet-20, convex problem, checkpoints.

Each version runs in processes of its own, from its own checkout; they stay alive and take turns.
Run it by ``make bench-versions OTHER=path/to/the/other/checkout``, which puts the table into
docs/benchmarks/versions.md. What is timed uses only what both versions have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import report
import resnet

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

# Nothing here imports MXNet or gluon_svrg but the cases, in a worker: each has its own version.

ROOT = Path(__file__).resolve().parents[1]
BOUND = 1.03
L2 = 1e-3
CONVEX_EPOCHS = 4  # in one call of fit: what it takes to 1e-8
LINEAR_TOL = 1e-6  # the default
LINEAR = (
    "covtype",
    "patches",
    "tiny-l2",
    "imbalanced",
    "imbalanced-plain",
    "poisson",
    "breast-cancer",
    "wide",
    "covtype-7",
    "classes-100",
)
CHECKPOINTS = 5  # written in one call of fit
Case = Callable[[], float]


class Sizes(NamedTuple):
    """How much there is to do in one turn."""

    loop_batches: int = 200
    resnet_batches: int = 2
    resnet_batch_size: int = 128
    convex_rows: int = 60_000


class Pair(NamedTuple):
    """The seconds of a case, round by round."""

    now: list[float]
    other: list[float]

    def ratios(self) -> list[float]:
        return [now / other for now, other in zip(self.now, self.other, strict=True)]


# How each case's time is scaled, and its digits.
UNITS = {"us": (1e6, 0), "ms": (1e3, 1), "s": (1.0, 3)}


def loop_cases(sizes: Sizes) -> dict[str, Case]:
    """Return those of bench-loop that are of this package, and a bare loop that is not."""
    import loop
    import mxnet as mx

    batches = sizes.loop_batches
    runs = loop.contestants(batches)
    wanted = [loop.BARE, loop.OURS, loop.OURS_LIST, loop.OURS_DATA_LOADER, loop.OURS_NUMPY]
    names = {name: f"step, us: {name}".replace("*", "") for name in wanted}
    return {names[name]: resnet.timed(runs[name], mx.nd.waitall, epochs=batches) for name in wanted}


def resnet_cases(sizes: Sizes) -> dict[str, Case]:
    """Return the epochs of bench-resnet that are of this package."""
    import gluon_svrg as gs
    import mxnet as mx

    data = resnet.our_batches(sizes.resnet_batches, sizes.resnet_batch_size)
    cases = {}
    for name in (resnet.SGD, resnet.TABLE, resnet.NO_TABLE):
        settings = resnet.OURS[name]
        estimator = resnet.our_estimator()
        handlers = [] if settings is None else [gs.SVRGHandler(**settings, progress_bar=False)]

        def fit(estimator: Any = estimator, handlers: list = handlers) -> None:
            estimator.fit(data, epochs=1, event_handlers=handlers)

        title = name.replace("*", "").removeprefix("gluon-svrg: ")
        cases[f"epoch, s: ResNet-20, {title}"] = resnet.timed(fit, mx.nd.waitall)
    return cases


def convex_cases(sizes: Sizes) -> dict[str, Case]:
    """Return an epoch of bench-convex, on random rows of the same shape and norm."""
    import convex
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np

    settings = convex.OUR_SETTINGS[L2]
    random = np.random.default_rng(0)
    x = random.standard_normal((sizes.convex_rows, 784), "float32")
    x /= np.linalg.norm(x, axis=1).mean()
    y = random.integers(0, 10, len(x)).astype("float32")
    data = gs.data.ArrayLoader(x, y, batch_size=settings["batch_size"], shuffle=True, seed=0)
    estimator = convex.our_estimator(x.shape[1], L2, settings)
    svrg = gs.SVRGHandler(gradient_table=True, progress_bar=False)

    def fit() -> None:
        estimator.fit(data, epochs=CONVEX_EPOCHS, event_handlers=[svrg])

    name = "epoch, s: softmax regression, SVRG, table, one thread"
    return {name: resnet.timed(fit, mx.nd.waitall, CONVEX_EPOCHS)}


def linear_cases(is_this: bool) -> dict[str, Case]:
    """Return whole fits of bench-linear's problems with every default; ours are to be proven."""
    import linear_judge
    import linear_problems
    import numpy as np

    # These names exist in version 0.8, too.
    from gluon_svrg.linear import SVRGClassifier, SVRGRegressor

    def case(name: str) -> Case:
        problem = linear_problems.PROBLEMS[name]()
        zeros = np.zeros((problem.classes if problem.loss == "softmax" else 1, problem.x.shape[1]))
        start = linear_judge.objective(problem, zeros, np.zeros(len(zeros)))

        def fit() -> float:
            model: Any = SVRGRegressor(problem.loss, alpha=problem.strength, random_state=0)
            if problem.is_classification:
                model = SVRGClassifier(
                    C=problem.strength, class_weight=problem.class_weight, random_state=0
                )
            begin = time.perf_counter()
            model.fit(problem.x, problem.y, sample_weight=problem.sample_weight)
            seconds = time.perf_counter() - begin
            if is_this and not model.gap_ <= LINEAR_TOL * (start - model.objective_):
                raise RuntimeError(f"{name}: nothing is proven but {model.gap_:g}")
            return seconds

        return fit

    return {f"whole fit, s: {name}": case(name) for name in LINEAR}


def checkpoint_cases(folder: Path) -> dict[str, Case]:
    """Return a write and a read of bench-survival's larger checkpoint, ResNet-20's with SVRG."""
    import gluon_svrg as gs
    import mxnet as mx
    import survival

    data = resnet.our_batches(CHECKPOINTS + 1, 2)  # the size of a checkpoint is the same
    estimator = survival.new_estimator(survival.RESNET)
    numbers = itertools.count()

    def fit(*handlers: Any, **settings: Any) -> None:
        svrg = gs.SVRGHandler(gradient_table=False, progress_bar=False)
        handlers = (*handlers, svrg, survival.Silent())
        estimator.fit(data, batches=CHECKPOINTS, event_handlers=list(handlers), **settings)

    def write() -> float:
        timer = survival.CheckpointTimer(folder / str(next(numbers)), every=1)
        fit(timer)
        return sum(timer.seconds) / len(timer.seconds)

    write()
    # The run that it is of has ended there: nothing is left to do but to read it.
    read = resnet.timed(lambda: fit(resume=folder / "0"), mx.nd.waitall)
    return {"checkpoint, ms: write": write, "checkpoint, ms: read": read}


def loading_cases(folder: Path) -> dict[str, Case]:
    """Return the loading of a model and of a checkpoint of ResNet-50, 25.6 million weights."""
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np
    from mxnet import gluon

    net = gluon.model_zoo.vision.resnet50_v1()
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 64, 64)))  # the shapes
    sample = np.zeros((1, 3, 224, 224), "float32")
    gs.deploy.export(net, folder / "model", sample)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-3, "momentum": 0.9})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    estimator.logger.disabled = True
    data = [(np.zeros((1, 3, 64, 64), "float32"), np.zeros(1))]
    directory = folder / "checkpoints"
    estimator.fit(data, epochs=1, event_handlers=[gs.CheckpointHandler(directory)])

    def read() -> None:  # the run has ended there: nothing is left to do
        estimator.fit(data, epochs=1, resume=directory)

    return {
        "loading, ms: ResNet-50, model": resnet.timed(
            lambda: gs.deploy.Predictor(folder / "model"), mx.nd.waitall
        ),
        "loading, ms: ResNet-50, model, and its first answer": resnet.timed(
            lambda: gs.deploy.Predictor(folder / "model")(sample), mx.nd.waitall
        ),
        "loading, ms: ResNet-50, checkpoint": resnet.timed(read, mx.nd.waitall),
    }


def serving_cases(folder: Path) -> dict[str, Case]:
    """Return predictions by cifar_resnet20_v1, from NumPy arrays to NumPy arrays."""
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np
    from gluoncv.model_zoo import get_model

    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 32, 32)))  # the shapes
    gs.deploy.export(net, folder / "serving", np.zeros((1, 3, 32, 32), "float32"))
    predictor = gs.deploy.Predictor(folder / "serving")
    random = np.random.default_rng(0)

    def case(batch: int, calls: int) -> Case:
        x = random.normal(size=(batch, 3, 32, 32)).astype("float32")

        def predict() -> None:
            for _ in range(calls):
                predictor(x)

        return resnet.timed(predict, mx.nd.waitall)

    return {
        "serving, ms: 200 calls with one sample": case(1, 200),
        "serving, ms: 5 calls with 64 samples": case(64, 5),
    }


def cases_of(group: str, sizes: Sizes, folder: Path, is_this: bool) -> dict[str, Case]:
    if group == "linear":
        return linear_cases(is_this)
    if group == "convex":
        return convex_cases(sizes)
    if group == "loading":
        return loading_cases(folder)
    if group == "serving":
        return serving_cases(folder)
    return {**loop_cases(sizes), **resnet_cases(sizes), **checkpoint_cases(folder)}


# The cases that one process runs, and its environment. bench-convex has one thread; the others
# have those that the package asks for.
GROUPS: dict[str, dict[str, str]] = {
    "others": {},
    "loading": {},
    "serving": {},
    "linear": {},
    "convex": dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


def serve(group: str, sizes: Sizes, checkout: Path) -> None:
    """Print the names of the cases; then, for each name that comes in, run it, print its seconds.

    The order "names" comes first. All cases have run once before.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    import gluon_svrg

    if not Path(gluon_svrg.__file__).resolve().is_relative_to(checkout):
        raise ImportError(f"gluon_svrg is {gluon_svrg.__file__!r}, not the one of {checkout}")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        cases = cases_of(group, sizes, Path(folder), checkout == ROOT)
        for case in cases.values():
            case()
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            order = line.rstrip("\n")
            answer = list(cases) if order == "names" else cases[order]()
            print(json.dumps(answer), file=answers, flush=True)


def start(checkout: Path, group: str, sizes: Sizes) -> resnet.Worker:
    command = [sys.executable, str(Path(__file__).resolve()), str(checkout), "--worker", group]
    command += ["--sizes", *map(str, sizes)]
    environ = {"PYTHONPATH": str(checkout), **GROUPS[group]}
    worker = resnet.Worker(resnet.Contestant(command, environ=environ))
    if not worker.is_ready:
        raise RuntimeError(f"the process of {checkout} has ended: its message is above")
    return worker


class Ends(NamedTuple):
    """The two processes, of this version and of the other, that run the same cases."""

    now: resnet.Worker
    other: resnet.Worker

    def cases(self) -> list[str]:
        return self.now.epoch("names")

    def turn(self, case: str, other_first: bool) -> dict[str, float]:
        """Let each run the case once; return the seconds by "now" and "other"."""
        both = {
            name: lambda worker=worker: worker.epoch(case)
            for name, worker in self._asdict().items()
        }
        in_order = dict(reversed(both.items())) if other_first else both
        return {name: run[0] for name, run in report.interleaved(in_order, 1, warm_up=0).items()}


def turns_of(ends: list[Ends], rounds: int, first_round: int) -> Iterator[tuple[str, dict]]:
    """Yield a case's name and its seconds; the version that runs first alternates by round."""
    for number in range(first_round, first_round + rounds):
        for pair in ends:
            for case in pair.cases():
                yield case, pair.turn(case, other_first=number % 2 == 1)


def measure(
    checkouts: tuple[Path, Path], sizes: Sizes, rounds: int, launches: int, groups: list[str]
) -> dict[str, Pair]:
    """Return the seconds of each case; the processes are started `launches` times."""
    seconds: dict[str, Pair] = {}
    done = 0
    for launch in range(launches):
        with ExitStack() as stack:
            ends = []
            for group in groups:
                # The version that starts first alternates, too.
                order = (0, 1) if launch % 2 == 0 else (1, 0)
                workers = {place: start(checkouts[place], group, sizes) for place in order}
                for worker in workers.values():
                    stack.callback(worker.close)
                ends.append(Ends(workers[0], workers[1]))
            count = rounds * (launch + 1) // launches - done
            for case, turn in turns_of(ends, count, done):
                pair = seconds.setdefault(case, Pair([], []))
                pair.now.append(turn["now"])
                pair.other.append(turn["other"])
            done += count
        print(f"{done} of {rounds} rounds", file=sys.stderr, flush=True)
    return seconds


def version_of(checkout: Path) -> str:
    text = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


def row(case: str, pair: Pair) -> tuple[str, ...]:
    kind, _, title = case.partition(": ")
    what, unit = kind.split(", ")
    scale, digits = UNITS[unit]
    now, other = (f"{scale * report.median(values):,.{digits}f}" for values in pair)
    ratios = pair.ratios()
    ratio = f"{report.median(ratios):.3f} ({report.spread(ratios, digits=3)})"
    return f"{title} ({what}, {unit})", now, other, ratio


def section(
    seconds: dict[str, Pair], sizes: Sizes, options: argparse.Namespace, versions: tuple[str, str]
) -> str:
    now, other = versions
    if now == other:
        now = "this checkout"  # its changes are not released yet
    header = ["case", now, other, f"{now} / {other}, median (25 % to 75 %)"]
    packages = ("mxnet", "numpy", "gluoncv")
    return f"""\
What the other benchmarks time of this package, in both versions, each in processes of its own that
take turns: {options.rounds} rounds, first {now} then {other}, in the next round the other way
round; the processes were started {options.launches} times. The ratio is taken round by round; it is
to be at most {BOUND}. The bare loop calls nothing of this package: what its ratio is off 1 is the
error of all of them. Loop: {sizes.loop_batches} batches a round. ResNet-20:
{sizes.resnet_batches} batches of {sizes.resnet_batch_size}, an epoch a call of `fit`. Softmax
regression: {sizes.convex_rows:,} random rows of 784, {CONVEX_EPOCHS} epochs a call of `fit`, the
settings of bench-convex at L2 {L2:g}. Checkpoint: ResNet-20's with SVRG and no table, to and from
the disk. Loading: a model directory and a checkpoint of ResNet-50. Whole fit: the problems of
bench-linear with every default, two threads; each of {now} ends with a proof that the optimum is
within {LINEAR_TOL:g} of what was gained.
{report.provenance("bench-versions", packages)}

{report.markdown_table(header, [row(case, pair) for case, pair in seconds.items()])}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=42)
    command.add_argument("other", type=Path, help="a checkout of the other version")
    command.add_argument("--launches", type=int, default=3, help="starts of the processes")
    command.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    command.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    command.add_argument(
        "--sizes",
        nargs=len(Sizes._fields),
        type=int,
        default=Sizes(),
        help=", ".join(Sizes._fields),
    )
    command.add_argument("--worker", choices=list(GROUPS), help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.quick:
        options.sizes, options.rounds, options.launches = (5, 1, 4, 4096), 2, 1
    options.sizes = Sizes(*options.sizes)
    options.other = options.other.resolve()
    return options


def main() -> None:
    options = parse()
    if options.worker:
        serve(options.worker, options.sizes, options.other)
        return
    checkouts = ROOT, options.other
    seconds = measure(checkouts, options.sizes, options.rounds, options.launches, options.groups)
    versions = version_of(ROOT), version_of(options.other)
    text = section(seconds, options.sizes, options, versions)
    report.publish("bench-versions", text, options.out)


if __name__ == "__main__":
    main()
