"""The loop of `solve` without its ends: from point to point by a method's own steps."""

from provenglm import solve
from provenglm.methods.base import Target
from provenglm.plan import choose
from provenglm.proof.duality import duality_gap
from provenglm.solve import advanced


def walk(method, theta, tol=0.0):
    """Yield each point and the step from it; ends where no step leads lower."""
    objective = method.objective
    null, point = objective.null()[1], objective.snapshot(method.start(theta))
    while True:
        target = Target(tol, null - point.objective, duality_gap(objective, point))
        step = method.step(point, target)
        yield point, step
        new, length = advanced(method, point, step)
        if length == 0 and method.forget():
            new, length = advanced(method, point, method.step(point, target))
        if length == 0 or not (step.is_whole or new.objective < point.objective):
            return
        method.learn(point, new, length)
        point = new


def take(monkeypatch, name):
    """Have fits take one method, whatever it costs."""

    def chosen(problem, is_precise=False, folds=1, only=None):
        return choose(problem, is_precise, folds, only or name)

    monkeypatch.setattr(solve, "choose", chosen)
