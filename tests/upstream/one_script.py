"""Run one script of other people with MXNet's Trainer or this package's, and write down every step.

    python tests/upstream/one_script.py lenet.md --classes ours --steps 4 --record steps.json

A script is a Python file, a notebook, or a page of Markdown with fenced code. It runs as it is, in
an empty folder, until a Trainer has taken a given number of steps. After each step the digest of
every parameter on every device is kept. ``run.py`` compares what two runs have kept.

Around the script: the same seeds, matplotlib without a window, data loaders without processes of
their own, and generated files instead of downloads (``generated.py``). What it asks for besides
ends it with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

import generated
import gluon_svrg as gs
import matplotlib
import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import trainer as trainer_module
from mxnet.gluon.contrib.estimator import estimator as estimator_module
from source import code_of

SEED = 7


class EnoughSteps(BaseException):  # not caught by a script's `except Exception`
    """The script has taken as many steps as were asked for."""


class Recorder:
    """Keeps the digests of all parameters of a trainer after each of its steps."""

    def __init__(self, most: int) -> None:
        self.steps: list[dict[str, str]] = []
        self.trainers: list[gluon.Trainer] = []
        self._most = most

    def after_step(self, trainer: gluon.Trainer) -> None:
        if trainer not in self.trainers:
            self.trainers.append(trainer)
        number = self.trainers.index(trainer)
        digests = {}
        for index, parameter in enumerate(trainer._params):
            for device, array in enumerate(parameter.list_data()):
                values = np.ascontiguousarray(array.asnumpy())
                # The norm says how far apart two are that differ.
                norm = float(np.linalg.norm(values.astype("float64")))
                digest = hashlib.sha1(values.tobytes()).hexdigest()
                digests[f"{number}/{index} {parameter.name}/{device}"] = f"{digest} {norm!r}"
        self.steps.append(digests)
        if len(self.steps) >= self._most:
            raise EnoughSteps

    def recorded(self, base: type[gluon.Trainer]) -> type[gluon.Trainer]:
        """Return a class of trainers whose steps are kept."""
        recorder = self

        class Recorded(base):  # type: ignore[misc,valid-type]
            def step(self, *args, **kwargs):
                super().step(*args, **kwargs)
                recorder.after_step(self)

            def update(self, *args, **kwargs):
                super().update(*args, **kwargs)
                recorder.after_step(self)

        Recorded.__name__ = base.__name__
        return Recorded


def put_in_place(recorder: Recorder, classes: str) -> None:
    """Put the trainer that is recorded where scripts find gluon.Trainer."""
    base = gluon.Trainer if classes == "stock" else gs.SVRGTrainer
    trainer = recorder.recorded(base)
    gluon.Trainer = trainer_module.Trainer = estimator_module.Trainer = trainer


def small_batches(most: int) -> None:
    """Let data loaders read small batches, and in this process: the same draws in each run."""
    first = gluon.data.DataLoader.__init__

    def init(self, dataset, batch_size=None, *args, **kwargs):
        kwargs["num_workers"] = 0
        kwargs.pop("thread_pool", None)
        batch_size = batch_size and min(batch_size, most)
        first(self, dataset, batch_size, *args[:6], **kwargs)

    gluon.data.DataLoader.__init__ = init


def seed_everything() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    mx.random.seed(SEED)


def run(script: Path, prelude: str, arguments: list[str]) -> str:
    """Run the code as a program; return how it ended."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        exec(prelude, module.__dict__)
        exec(compile(code_of(script), str(script), "exec"), module.__dict__)
    except EnoughSteps:
        return "as many steps as asked for"
    except SystemExit as error:
        return f"ended by itself ({error})"
    except BaseException as error:
        import traceback

        traceback.print_exc()
        # MXNet's errors end with the sentence, and begin with where it was in C++.
        lines = str(error).strip().splitlines() or [""]
        line = lines[-1 if lines[0].startswith("Traceback") else 0]
        return f"{type(error).__name__}: {line[:200]}"
    return "ran to its end"


def main(words: list[str]) -> None:
    """Run a script as the command line says, and end the process."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("script", type=Path)
    options.add_argument("--classes", choices=["stock", "ours"], required=True)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--batch", type=int, default=16, help="most samples of a batch")
    options.add_argument("--record", type=Path, required=True, help="a JSON file to write")
    options.add_argument("--path", action="append", default=[], help="more folders of modules")
    options.add_argument("--prelude", default="", help="code that runs before")
    options.epilog = "What follows after -- are the arguments of the script."
    end = words.index("--") if "--" in words else len(words)
    given, arguments = options.parse_args(words[:end]), words[end + 1 :]
    script, record = given.script.resolve(), given.record.resolve()
    sys.path[:0] = [str(Path(folder).resolve()) for folder in given.path]
    matplotlib.use("Agg")
    # What is not this package's: it was written for older versions of everything.
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="upstream-"))
    (folder / "work").mkdir()  # the book puts its data beside it
    if (script.parent.parent / "img").is_dir():  # and has its pictures there
        (folder / "img").symlink_to(script.parent.parent / "img")
    os.chdir(folder / "work")
    os.environ["HOME"] = str(folder)
    os.environ["MXNET_HOME"] = str(folder / "mxnet")
    recorder = Recorder(given.steps)
    generated.put_in_place(folder)
    small_batches(given.batch)
    put_in_place(recorder, given.classes)
    seed_everything()
    begin = time.perf_counter()
    ended = run(script, given.prelude, arguments)
    record.write_text(
        json.dumps(
            {
                "ended": ended,
                "seconds": round(time.perf_counter() - begin, 1),
                "trainers": [type(trainer).__mro__[1].__module__ for trainer in recorder.trainers],
                "steps": recorder.steps,
            }
        )
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that a script has left behind


if __name__ == "__main__":
    main(sys.argv[1:])
