"""List the files and functions of gluon_svrg that a batch and a checkpoint pass through.

One process trains a small network with SVRG, an evaluation per epoch and checkpoints. The list has
four sections: a batch in the middle of an epoch, from *batch begin* to *safe point*; the writing of
a checkpoint; the reading of one from the end of an epoch, and of one from the middle, for which
SVRG passes over the data once. The functions of the reading are those that `fit` calls more often
than without a checkpoint, from its beginning to its first epoch or batch.

Files are in the order in which they are first entered. A generator counts as called each time that
it continues. Calls in other threads do not count::

    python benchmarks/call_path.py --out paths.txt
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.events import BatchBegin, EpochBegin, SafePoint
from mxnet import gluon
from mxnet.gluon import nn

PACKAGE = Path(gs.__file__).resolve().parent
BATCHES = 8  # per epoch
TRACED_BATCH = BATCHES + 3  # in the second epoch: nothing is set up there
CHECKPOINT_EVERY = 5
TRACED_CHECKPOINT = BATCHES + 2  # the third: five batches, an epoch, ten batches

Calls = Counter[tuple[str, str]]
"""The number of calls, by file and function, in the order of the first call."""


class Tracer:
    """Counts the calls of the package's functions between `start` and `stop`."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()

    def start(self) -> None:
        """Begin to count."""
        sys.setprofile(self._profile)

    def stop(self) -> None:
        """End it."""
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        # Not comprehensions, lambdas and modules, whose names are in brackets.
        if event == "call" and not code.co_name.startswith("<"):
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE):
                name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
                self.calls[str(path.relative_to(PACKAGE)), name] += 1


class TraceBatch(BatchBegin, SafePoint):
    """Traces one batch, from the first handler of *batch begin* to that of *safe point*."""

    priority = -float("inf")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Start at the batch."""
        if estimator.position.batch == TRACED_BATCH:
            self._tracer.start()

    def safe_point(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Stop after it."""
        self._tracer.stop()


class BeforeCheckpoint(SafePoint):
    """Starts to trace before the CheckpointHandler, which it precedes in the list."""

    priority = float("inf")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def safe_point(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Start at the checkpoint."""
        if estimator.position.batch == TRACED_CHECKPOINT:
            self._tracer.start()


class AfterCheckpoint(SafePoint):
    """Stops after the CheckpointHandler, which it follows in the list."""

    priority = float("inf")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def safe_point(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Stop."""
        self._tracer.stop()


class StopAtBegin(EpochBegin, BatchBegin):
    """Stops at the first epoch or batch that begins."""

    priority = -float("inf")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Stop."""
        self._tracer.stop()

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Stop."""
        self._tracer.stop()


def train(
    folder: Path,
    before: list[Any],
    after: list[Any],
    resume: str | None = None,
    fit_tracer: Tracer | None = None,
) -> None:
    """Train for two epochs, with handlers before and after the CheckpointHandler."""
    gs.seed_everything(1)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(16 * (BATCHES + 2), 10)).astype("float32")
    y = rng.integers(0, 3, len(x)).astype("float32")
    train_data = gs.data.ArrayLoader(x[: 16 * BATCHES], y[: 16 * BATCHES], batch_size=16)
    val_data = gs.data.ArrayLoader(x[16 * BATCHES :], y[16 * BATCHES :], batch_size=16)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu", in_units=10), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), train_metrics=mx.metric.Accuracy(), trainer=trainer
    )
    handlers = [
        *before,
        gs.SVRGHandler(),
        gs.ValidationHandler(val_data),
        gs.CheckpointHandler(folder, every_n_batches=CHECKPOINT_EVERY, keep_last=None),
        *after,
    ]
    if fit_tracer is not None:
        fit_tracer.start()
    estimator.fit(train_data, epochs=2, event_handlers=handlers, resume=resume)


def trace_fit(folder: Path, checkpoint: Path | None = None) -> Calls:
    """Return the calls from the beginning of `fit` to its first epoch or batch.

    A resumed run has the folder of the checkpoint's run, with this checkpoint alone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if checkpoint is not None:
        shutil.copytree(checkpoint, folder / checkpoint.name)
    tracer = Tracer()
    train(folder, [StopAtBegin(tracer)], [], "auto" if checkpoint else None, tracer)
    return tracer.calls


def describe(title: str, calls: Calls) -> str:
    """Return a section: its files with their functions."""
    by_file: dict[str, list[str]] = {}
    totals: Counter[str] = Counter()
    for (file, function), count in calls.items():
        by_file.setdefault(file, []).append(f"{function} {count}" if count > 1 else function)
        totals[file] += count
    folders = {str(Path(file).parent) for file in by_file}
    lines = [
        f"{title}: {len(by_file)} files in {len(folders)} folders, {len(calls)} functions, "
        f"{sum(totals.values())} calls"
    ]
    for number, (file, functions) in enumerate(by_file.items(), 1):
        lines.append(f"{number:3} {file} ({totals[file]}): {', '.join(functions)}")
    return "\n".join(lines) + "\n"


def page(sections: list[tuple[str, Calls]]) -> str:
    """Return a page with the files of each section, and what each new one is for."""
    lines = [
        "# The way of a batch and of a checkpoint",
        "",
        "The files of `gluon_svrg/` that a real run goes through, in the order in which it enters",
        "them: what each is for (its first line), the function that is called first, and how many",
        "others are called. A file that an earlier section has is only counted. The run has one",
        "process, `ArrayLoader`, `SVRGHandler` with a table, `ValidationHandler` and",
        "`CheckpointHandler`. `python benchmarks/call_path.py --page docs/call_path.md` makes this",
        "page; with `--out` it writes all functions, with the number of their calls.",
    ]
    known: set[str] = set()
    for title, calls in sections:
        functions: dict[str, list[str]] = {}
        for name, function in calls:
            functions.setdefault(name, []).append(function)
        new = [name for name in functions if name not in known]
        known.update(new)
        counts = f"{len(functions)} files, {len(new)} of them new here."
        lines += ["", f"## {title}", "", counts, ""]
        lines += ["| file | what it is for | first call | others |", "|---|---|---|--:|"]
        for name in new:
            tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
            purpose = (ast.get_docstring(tree) or "").splitlines()[0]
            first, *others = functions[name]
            lines.append(f"| `{name}` | {purpose} | `{first}` | {len(others)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trace the runs, and write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the file to write; by default it is printed")
    parser.add_argument("--page", type=Path, help="a page to write, with what each file is for")
    arguments = parser.parse_args()
    out = arguments.out
    batch, checkpoint = Tracer(), Tracer()
    with tempfile.TemporaryDirectory() as folder:
        run, kept = Path(folder) / "run", Path(folder) / "kept"
        # One after the other: the handlers of the second would be among the batch's.
        train(run, [TraceBatch(batch)], [])
        run.rename(kept)
        train(run, [BeforeCheckpoint(checkpoint)], [AfterCheckpoint(checkpoint)])
        fresh = trace_fit(run)
        sections = [
            ("A batch in the middle of an epoch", batch.calls),
            ("Writing a checkpoint", checkpoint.calls),
        ]
        for where, name in (
            ("end", f"epoch-1-batch-{BATCHES}"),
            ("middle", f"epoch-1-batch-{TRACED_CHECKPOINT}"),
        ):
            resumed = trace_fit(run, kept / name)
            title = f"Reading a checkpoint from the {where} of an epoch"
            sections.append((title, resumed - fresh))
    if arguments.page is not None:
        arguments.page.write_text(page(sections), encoding="utf-8")
    text = "\n".join(describe(title, calls) for title, calls in sections)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text)


if __name__ == "__main__":
    main()
