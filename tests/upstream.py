"""MXNet's own unit tests, with this package's classes in the place of MXNet's.

    python tests/upstream.py path/to/a/checkout/of/mxnet/1.9.1

Not collected by pytest: the tests are MXNet's and not part of this package. They are read from the
checkout, whose path is the only argument, and left as they are. What was written for nose and for
older versions of NumPy is put back around them. Nothing is downloaded: a network that is asked for
with pretrained weights gets random ones, by way of a file as well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import gluon_svrg as gs  # the first import: MXNet does not import without it
import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon import trainer as trainer_module
from mxnet.gluon.contrib import estimator as estimator_package

FILES = [
    "test_gluon_estimator.py",
    "test_gluon_event_handler.py",
    "test_gluon_batch_processor.py",
    "test_gluon_trainer.py",
]
FOLDER = Path("tests", "python", "unittest")

REPLACED = {
    "Estimator": gs.Estimator,
    "BatchProcessor": gs.BatchProcessor,
    "MetricHandler": gs.MetricHandler,
    "GradientUpdateHandler": gs.GradientUpdateHandler,
}
"""Classes that take the arguments of MXNet's class of that name, and Trainer.

The others have arguments of their own (ValidationHandler, CheckpointHandler, EarlyStoppingHandler)
or are none of this package's (StoppingHandler, LoggingHandler): there MXNet's run in this package's
Estimator, which is to take them.
"""

TAKES_MORE = {
    "test_fit": "a DataIter as training data",
    "test_validation": "a DataIter as validation data",
    "test_metric": "a metric by its name",
    "test_batch_processor_fit": "a DataIter as training data",
    "test_batch_processor_validation": "a DataIter as validation data",
}
"""What this package takes and MXNet refuses: one ``assert_raises(ValueError)`` of the test may see
no error. All else that the test asks has to hold."""

TAKEN: dict[str, str] = {}
"""Those of them that were met, by test."""


def put_in_place() -> None:
    """Put this package's classes where MXNet's tests look for MXNet's."""
    modules = [estimator_package, *vars(estimator_package).values()]
    for module in modules:
        if isinstance(module, types.ModuleType):
            for name, own in REPLACED.items():
                if name in vars(module):
                    setattr(module, name, own)
            if "Trainer" in vars(module):
                module.Trainer = gs.SVRGTrainer
    gluon.Trainer = trainer_module.Trainer = gs.SVRGTrainer
    gluon.model_zoo.model_store.get_model_file = write_model_file


def write_model_file(name: str, root: str | None = None) -> str:
    """Write random weights for a network of the model zoo; stands in for a download."""
    net = gluon.model_zoo.vision.get_model(name)
    net.initialize()
    net(mx.nd.zeros((1, 3, 224, 224)))
    path = str(Path(tempfile.mkdtemp(prefix="upstream-"), f"{name}.params"))
    net.save_parameters(path)
    return path


def nose_tools() -> types.ModuleType:
    """The functions of nose that the tests import: nose does not run on Python 3.11."""

    @contextlib.contextmanager
    def expected(kind):
        try:
            yield
        except kind:
            return
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].split()[0]
        if kind is not ValueError or test not in TAKES_MORE or test in TAKEN:
            pytest.fail(f"did not raise {kind}")
        TAKEN[test] = TAKES_MORE[test]

    def assert_raises(kind, function=None, *args, **kwargs):
        if function is None:
            return expected(kind)
        with expected(kind):
            function(*args, **kwargs)
        return None

    def make_decorator(function: Callable) -> Callable:
        return functools.wraps(function)

    def raises(*kinds):
        def decorate(test):
            @functools.wraps(test)
            def test_that_raises(*args, **kwargs):
                with pytest.raises(kinds):
                    test(*args, **kwargs)

            return test_that_raises

        return decorate

    tools = types.ModuleType("nose.tools")
    tools.assert_raises, tools.make_decorator, tools.raises = assert_raises, make_decorator, raises
    return tools


class Results:
    """Collects what became of each test."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("/")[2]
        if report.skipped:
            self.lines[name] = f"skipped: {report.longrepr[2]}"
        elif report.failed:
            self.failed += 1
            last = str(report.longrepr).strip().splitlines()[-1]
            error = report.longrepr.reprcrash.message.splitlines()[0]
            self.lines[name] = f"FAILED in {report.when}: {error} ({last})"
        elif report.when == "call":
            taken = TAKEN.get(name.rpartition("::")[2])
            note = f"; takes what MXNet refuses: {taken}" if taken else ""
            self.lines[name] = f"passed ({report.duration:.1f} s){note}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed += 1
            self.lines[report.nodeid] = f"FAILED to import: {report.longrepr}"


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("checkout", type=Path, help="a checkout of MXNet 1.9.1")
    options.add_argument("-k", default="", help="only the tests that pytest's -k selects")
    given = options.parse_args()
    folder = (given.checkout / FOLDER).resolve()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        options.error(
            f"{folder} has no {', '.join(missing)}: give a checkout of MXNet's sources at the tag "
            "1.9.1, which has tests/python/unittest"
        )
    sys.modules["nose"] = types.ModuleType("nose")
    sys.modules["nose.tools"] = sys.modules["nose"].tools = nose_tools()
    put_in_place()
    # common.py stands beside the tests, and models.py in another folder.
    sys.path[:0] = [str(folder), str(folder.parent / "common")]
    results = Results()
    os.chdir(tempfile.mkdtemp(prefix="upstream-"))  # the tests write files where they are
    pytest.main(
        ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider", "-q", "-k", given.k,
         "--no-header", "--no-summary", "-W", "default", *[str(folder / name) for name in FILES]],
        plugins=[results],
    )  # fmt: skip
    print("\nMXNet's own tests, with " + ", ".join([*REPLACED, "Trainer"]) + " of this package:\n")
    for name, outcome in results.lines.items():
        print(f"  {name}: {outcome}")
    passed = sum(line.startswith("passed") for line in results.lines.values())
    print(f"\n{passed} of {len(results.lines)} passed, {results.failed} failed")
    return int(results.failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())
