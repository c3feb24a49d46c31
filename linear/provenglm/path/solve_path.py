"""Solve paths of penalties over the folds of a cross-validation, each from the previous point.

Paths go from the greatest penalty to the least. The mean loss and its gradient do not depend on the
penalty, so the first step towards the next point needs no pass; if the penalty hardly matters, the
whole point needs none. The objective decreases from point to point, so a start at the previous
point is never worse than the null model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sklearn.utils.parallel import Parallel, delayed

from provenglm.model.budget import joint_fold_bytes, within
from provenglm.model.solution import Settings
from provenglm.path import squares
from provenglm.path.folds import Folds, PathPoint, Start, point_of, point_with_scale
from provenglm.path.joint import JointPath, Watch
from provenglm.plan import choose, in_memory_if_small
from provenglm.solve import Session


def solve_path(
    folds: Folds,
    strengths: Sequence[float],
    settings: Settings,
    watch: Watch,
    n_jobs: int | None = None,
) -> list[list[PathPoint]]:
    """Return the points of each fold, in the order of `strengths`.

    Parameters
    ----------
    folds : Folds
    strengths : sequence of float
        The strengths, from the greatest penalty to the least.
    settings : Settings
        `max_iter` applies to each point.
    watch : callable
        A function that is called with a line of text when a part of the path is done.
    n_jobs : int, optional
        Number of processes that share the folds, if each fold is solved alone.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C is pressed; no points are returned.
    """
    features = in_memory_if_small(folds.penalised(0, strengths[0])).features
    folds = replace(folds, problem=replace(folds.problem, features=features))
    together = _together(folds)
    # The whole path uses one method: the best one for a penalty in the middle.
    problem = (together or folds).penalised(0, strengths[len(strengths) // 2])
    plan = choose(problem, settings.is_precise, len(folds), settings.method)
    if together is not None and plan.suits_folds:
        paths = JointPath(together, plan, settings, watch).solve(strengths)
    elif squares.suits(folds, problem):
        paths = squares.solve(folds, strengths, settings, watch)
    else:
        each = range(len(folds))
        if n_jobs in (None, 1):
            paths = [_one_fold(folds, fold, strengths, settings, watch) for fold in each]
        else:
            one = delayed(_one_fold)
            work = [one(folds, fold, strengths, settings) for fold in each]
            paths = list(Parallel(n_jobs=n_jobs)(work))
    return paths


def _together(folds: Folds) -> Folds | None:
    """Return the folds with the memory that their scores leave, or None if it is not enough."""
    whole = folds.problem
    problem = within(whole, joint_fold_bytes(whole, len(folds)))
    return None if problem is None else replace(folds, problem=problem)


def _one_fold(
    folds: Folds,
    fold: int,
    strengths: Sequence[float],
    settings: Settings,
    watch: Watch = lambda _: None,
) -> list[PathPoint]:
    """Return the points of one fold, solved alone."""
    points: list[PathPoint] = []
    start: Start | None = None
    session: Session | None = None
    for strength in strengths:
        penalties = folds.penalties(fold, strength)
        if folds.problem.loss.has_scale:
            point = point_with_scale(folds.of(fold, strength), settings, start)
        else:
            # Without a penalty another method may be better.
            if session is None or not any(penalties):
                session = Session(folds.of(fold, strength), settings)
            with session.running():
                point = point_of(session, penalties, start)
        start = point.coef, point.intercept
        points.append(point)
    passes = sum(point.iterations for point in points)
    watch(f"fold {fold + 1} of {len(folds)}: {len(points)} points, {passes} snapshots")
    return points
