"""One file of MXNet's own unit tests, with MXNet's classes or with this package's in their place.

    python tests/upstream/unit_tests.py CHECKOUT/tests/python/unittest/test_gluon.py --classes ours

The tests are read from a checkout of MXNet 1.9.1 and left as they are. What was written for nose
and for older versions of NumPy is put back around them. Nothing is downloaded: a network that is
asked for with pretrained weights gets random ones, by way of a file as well. ``run.py`` compares
the outcomes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import generated
import gluon_svrg as gs
import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon import trainer as trainer_module
from mxnet.gluon.contrib import estimator as estimator_package

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


class NAG(gs.NAG):
    """With the states of a float16 weight as MXNet's NAG has them: the test compares their places.

    It has the momentum first. All other optimizers, this package's too, have the float32 weight
    first.
    """

    def create_state_multi_precision(self, index, weight):
        return _turned(super().create_state_multi_precision(index, weight))

    def update_multi_precision(self, index, weight, grad, state):
        states = [_turned(one) for one in state] if isinstance(index, list) else _turned(state)
        super().update_multi_precision(index, weight, grad, states)


def _turned(state):
    return state[::-1] if isinstance(state, tuple) else state


OPTIMIZERS = [gs.LARS, NAG, gs.Signum]
"""The optimizers that MXNet has, too."""


def put_in_place() -> None:
    """Put this package's classes where MXNet's tests look for MXNet's."""
    for optimizer in OPTIMIZERS:
        name = optimizer.__name__
        setattr(mx.optimizer, name, optimizer)
        setattr(mx.optimizer.optimizer, name, optimizer)
        mx.optimizer.Optimizer.opt_registry[name.lower()] = optimizer
    modules = [estimator_package, *vars(estimator_package).values()]
    for module in modules:
        if isinstance(module, types.ModuleType):
            for name, own in REPLACED.items():
                if name in vars(module):
                    setattr(module, name, own)
            if "Trainer" in vars(module):
                module.Trainer = gs.SVRGTrainer
    gluon.Trainer = trainer_module.Trainer = gs.SVRGTrainer


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
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.skipped:
            self.outcomes[name] = "skipped"
        elif report.failed:
            # The line may hold random numbers: the kind of error is what can be compared.
            error = report.longrepr.reprcrash.message.split(":")[0].splitlines()[0]
            self.outcomes[name] = f"failed in {report.when}: {error}"
        elif report.when == "call":
            note = f", takes what MXNet refuses: {TAKEN[name]}" if name in TAKEN else ""
            self.outcomes[name] = f"passed{note}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = f"failed to import: {report.longrepr}"


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("file", type=Path, help="a file of MXNet's unit tests")
    options.add_argument("--classes", choices=["stock", "ours"], required=True)
    options.add_argument("--outcomes", type=Path, help="a JSON file to write")
    options.add_argument("-k", default="", help="only the tests that pytest's -k selects")
    given = options.parse_args()
    file = given.file.resolve()
    sys.modules["nose"] = types.ModuleType("nose")
    sys.modules["nose.tools"] = sys.modules["nose"].tools = nose_tools()
    gluon.model_zoo.model_store.get_model_file = generated.pretrained
    gluon.utils.download = generated.download
    if given.classes == "ours":
        put_in_place()
    outcomes = given.outcomes and given.outcomes.resolve()
    # common.py stands beside the tests, and models.py in another folder.
    sys.path[:0] = [str(file.parent), str(file.parent.parent / "common")]
    results = Results()
    os.chdir(tempfile.mkdtemp(prefix="upstream-"))  # the tests write files where they are
    # The same draws in both runs; MXNet's decorator takes its seeds from here.
    os.environ.setdefault("MXNET_TEST_SEED", "20")
    os.environ.setdefault("MXNET_MODULE_SEED", "20")
    pytest.main(
        # pytest's handler of the root logger would show what this package then does not print.
        ["-p", "no:logging", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir",
         str(file.parent), "-q", "--no-header", "--tb=short", "-W", "default", "-k", given.k,
         str(file)],
        plugins=[results],
    )  # fmt: skip
    if outcomes:
        outcomes.write_text(json.dumps(results.outcomes, indent=1))
    return int(not results.outcomes)


if __name__ == "__main__":
    sys.exit(main())
