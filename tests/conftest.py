"""Which tests run; one seed for every test; logging as in a program that has configured nothing."""

import itertools
import logging
from collections import defaultdict

import gluon_svrg as gs
import mxnet as mx
import pytest
from gluon_svrg.run.logger import NAME

FEW = 6


def pytest_addoption(parser):
    parser.addoption(
        "--cover",
        choices=["few", "pairs", "all"],
        default="all",
        help=f"of a test with parameters: {FEW} cases, as many as have each pair of values once "
        "(tests marked slow: each value), or all",
    )


def pytest_collection_modifyitems(config, items):
    cover = config.getoption("--cover")
    if cover == "all":
        return
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    choose = spread if cover == "few" else paired
    kept = {item for tests in cases.values() for item in choose(tests)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def spread(tests):
    """Return a few cases of a test, from the first to the last."""
    if len(tests) <= FEW:
        return tests
    return [tests[place * (len(tests) - 1) // (FEW - 1)] for place in range(FEW)]


def paired(tests):
    """Return cases that have each pair of two parameters' values; of slow tests, each value."""
    seen, kept = set(), []
    for test in tests:
        params = test.callspec.params if hasattr(test, "callspec") else {}
        values = [(name, repr(value)) for name, value in sorted(params.items())]
        size = 1 if test.get_closest_marker("slow") else min(2, len(values))
        tuples = set(itertools.combinations(values, size))
        if not tuples or tuples - seen:
            kept.append(test)
            seen |= tuples
    return kept


@pytest.fixture(autouse=True)
def _seed():
    gs.seed_everything(0)
    yield
    if mx.util.is_np_shape():  # a document, or a test that has failed
        mx.npx.reset_np()


@pytest.fixture(params=["legacy", "numpy"])
def mode(request, _seed):
    """MXNet's two modes, one after the other: with ``mx.nd``, and after ``npx.set_np()``."""
    if request.param == "numpy":
        mx.npx.set_np()
    yield request.param
    mx.npx.reset_np()


class _WithoutPytest(list):
    """Handlers of a logger, but for those that pytest puts on the root logger at each phase."""

    def append(self, handler):
        if not type(handler).__module__.startswith("_pytest"):
            super().append(handler)


@pytest.fixture
def root_logger():
    """The root logger as it is without pytest; what a test does to the loggers is undone."""
    loggers = [logging.getLogger(name) for name in (None, "gluon_svrg", NAME)]
    before = [(log, log.level, _WithoutPytest(), log.handlers) for log in loggers]
    for log, _, own, handlers in before:
        for handler in handlers:
            own.append(handler)
        log.handlers = _WithoutPytest()
    yield loggers[0]
    for log, level, own, _ in before:
        log.handlers = list(own)
        log.setLevel(level)
        log.filters.clear()
