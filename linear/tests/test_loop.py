"""The loop of `solve`: what a method has to do, and what is left to the loop."""

import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of
from provenglm import plan, solve as solve_module
from provenglm.methods.base import Method, Step
from provenglm.methods.descent_columns import ByColumns
from provenglm.methods.kept_products import ByKeptColumns
from provenglm.model.losses import Logistic, Softmax, Squared
from provenglm.model.objective import Objective
from provenglm.model.solution import Settings, StopReason
from provenglm.solve import solve
from provenglm.stopping import Stopping
from scipy.sparse import csr_array

# A method of one's own: a class, and a row of the table.


class GradientDescent(Method):
    """Steps along the gradient: nothing is known but that."""

    name = "gradient-descent"

    def step(self, point, target):
        square = float(np.vdot(point.gradient, point.gradient))
        return Step(-point.gradient, target.gap, square)


class Uphill(GradientDescent):
    """Steps that lead up."""

    def step(self, point, target):
        step = super().step(point, target)
        return step._replace(change=-step.change)


@pytest.fixture
def table(monkeypatch):
    """Have rows in the table for the two."""
    row = replace(
        plan.TABLE[1], name="gradient-descent", make=lambda given: GradientDescent(given.objective)
    )
    up = replace(row, name="uphill", make=lambda given: Uphill(given.objective))
    monkeypatch.setattr(plan, "TABLE", (*plan.TABLE, row, up))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_gradient_descent_runs_to_a_proof(loss):
    problem = problem_of(loss, n=80, p=3, l2=0.1)
    solution = solve(problem, Settings(tol=1e-5, method="gradient-descent"))
    assert solution.method == "gradient-descent"
    assert solution.reason is StopReason.CONVERGED
    objective, null, _ = prepared(problem)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    _, least = dense.minimum(null.theta)
    assert 0 <= solution.objective - least + 1e-12 <= solution.gap + 1e-12
    assert solution.gap <= 1e-5 * (null.objective - least)
    values = [record.objective for record in solution.history]
    assert len(values) > 3
    assert np.all(np.diff(values) < 0)


@pytest.mark.usefixtures("table")
def test_steps_that_lead_up_are_not_taken():
    problem = problem_of(Logistic(), n=80, p=3, l2=0.1)
    start = np.full((3, 1), 0.01), np.zeros(1)
    solution = solve(problem, Settings(method="uphill"), start)
    assert solution.reason is StopReason.STALLED
    assert {record.objective for record in solution.history} == {solution.objective}


# What all methods leave to the loop.


def sparse(problem):
    return replace(problem, features=csr_array(problem.features))


CASES = {
    "newton-cholesky": problem_of(Logistic(), n=300, p=4, l2=1e-2),
    "sampled-newton": problem_of(Softmax(3), n=6000, p=4, l2=1e-2),
    "sampled-newton-cg": problem_of(Softmax(3), n=6000, p=4, l2=1e-2),
    "newton-cg": problem_of(Softmax(3), n=300, p=4, l2=1e-2),
    "newton-cg, sparse": sparse(problem_of(Logistic(), n=300, p=4, l2=1e-2)),
    "row-space-newton": problem_of(Logistic(), n=30, p=40, l2=1e-2),
    "subspace-newton": problem_of(Logistic(), n=300, p=40, l2=1e-2),
    "dual-coordinate-ascent": problem_of(Softmax(3), n=300, p=4, l2=0.1),
    "dual-coordinate-ascent, sparse": sparse(problem_of(Logistic(), n=300, p=4, l2=0.1)),
    "coordinate-descent": replace(problem_of(Logistic(), n=300, p=40, l2=0.0), l1=0.01),
    "coordinate-descent, squared": replace(problem_of(Squared(), n=60, p=90, l2=0.0), l1=0.1),
    "coordinate-descent, sparse": sparse(
        replace(problem_of(Logistic(), n=300, p=40, l2=0.0), l1=0.01)
    ),
}


def test_each_method_has_a_case():
    assert {name.split(",")[0] for name in CASES} == {row.name for row in plan.TABLE}


class Calls:
    """Who evaluates points, and how often each is bounded and added."""

    def __init__(self, monkeypatch):
        self.evaluated, self.bounded, self.added, self.callers = [], [], [], set()
        self._depth = 0
        for kind, name in [
            (Objective, "snapshot"),
            (Objective, "at_scores"),
            (ByColumns, "snapshot"),
            (ByKeptColumns, "snapshot"),
        ]:
            monkeypatch.setattr(kind, name, self._spied(getattr(kind, name)))
        gap, add = solve_module.duality_gap, Stopping.add

        def bound(objective, point, *given):
            self.bounded.append(point)
            return gap(objective, point, *given)

        def added(stopping, method, point, *rest):
            self.added.append(point)
            add(stopping, method, point, *rest)

        monkeypatch.setattr(solve_module, "duality_gap", bound)
        monkeypatch.setattr(Stopping, "add", added)

    @contextmanager
    def _within(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _spied(self, evaluate):
        def spied(objective, *arguments):
            if not self._depth:
                self.callers.add(Path(sys._getframe(1).f_code.co_filename).name)
            with self._within():
                point = evaluate(objective, *arguments)
            if not self._depth:
                self.evaluated.append(point)
            return point

        return spied


@pytest.mark.parametrize("name", CASES)
def test_points_are_evaluated_and_bounded_by_the_loop_alone_and_once(monkeypatch, name):
    monkeypatch.setattr(solve_module, "in_memory_if_small", lambda problem: problem)
    calls = Calls(monkeypatch)
    solution = solve(CASES[name], Settings(tol=1e-8, method=name.split(",")[0]))
    assert solution.method == name.split(",")[0]
    assert solution.reason is StopReason.CONVERGED
    assert calls.callers == {"solve.py"}
    # Snapshots live as long as the lists: no two have the same id.
    times = Counter(map(id, calls.bounded))
    assert set(times.values()) == {1}
    assert len(calls.added) == len(solution.history) > 1
    assert {id(point) for point in calls.added} <= set(times)
    assert len({id(point) for point in calls.added}) == len(calls.added)
