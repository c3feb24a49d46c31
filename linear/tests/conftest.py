"""Logging as in a program that has configured nothing."""

import logging

import pytest
from provenglm.plan import Plan, choose


class _WithoutPytest(list):
    """Handlers of a logger, but for those that pytest puts on the root logger at each phase."""

    def append(self, handler):
        if not type(handler).__module__.startswith("_pytest"):
            super().append(handler)


@pytest.fixture
def root_logger():
    """The root logger as it is without pytest; what a test does to the loggers is undone."""
    root, own = logging.getLogger(), logging.getLogger("provenglm")
    handlers, level, own_level = root.handlers, root.level, own.level
    root.handlers = _WithoutPytest()
    yield root
    root.handlers = list(handlers)
    root.setLevel(level)
    own.setLevel(own_level)


@pytest.fixture
def solve_together(monkeypatch):
    """A function that has all folds solved together, or each by itself, whatever their size."""

    def decide(together):
        suits = property(lambda plan: together and not plan.shape.problem.loss.has_scale)
        monkeypatch.setattr(Plan, "suits_folds", suits)

        def chosen(problem, is_precise, folds, only):
            plan = choose(problem, is_precise, folds, only)
            if together and not plan.sample_size:  # they share a sample
                return choose(problem, is_precise, folds, "sampled-newton")
            return plan

        monkeypatch.setattr("provenglm.path.solve_path.choose", chosen)

    return decide
