"""One seed for every test; logging as in a program that has configured nothing."""

import logging

import gluon_svrg as gs
import mxnet as mx
import pytest
from gluon_svrg._typing import LOGGER


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
    loggers = [logging.getLogger(name) for name in (None, "gluon_svrg", LOGGER)]
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
