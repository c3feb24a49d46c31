"""Choose the method for a problem from a table of the needs and costs of all methods.

Costs are in seconds of the machine in `constants`. They are fixed numbers, so that the same data
are solved by the same method on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.methods.base import Method
from provenglm.methods.block_subsample import pays
from provenglm.methods.descent import CoordinateDescent
from provenglm.methods.dual import DualCoordinateAscent
from provenglm.methods.newton import Newton
from provenglm.methods.newton_cg import NewtonCG
from provenglm.methods.row_space import RowSpaceNewton
from provenglm.methods.sampled_newton_cg import SampledNewtonCG
from provenglm.methods.subspace import SubspaceNewton
from provenglm.model import csr_sample
from provenglm.model.budget import memory_budget, rows_of_a_sample
from provenglm.model.objective import Objective
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.rows.disk import on_disk
from provenglm.rows.far_parts import FarFeatures
from provenglm.rows.kinds import rows_of, taken
from provenglm.rows.remote import AnyTable
from provenglm.workers import Workers

__all__ = ["TABLE", "Plan", "Row", "Shape", "choose", "in_memory_if_small", "is_small"]


_COPIES = 6
"""A fit in memory takes at most about this many times the bytes of its features in float64."""


def is_small(problem: Problem) -> bool:
    """Whether the data, including zeros, are so small that copying them costs little."""
    n, p = problem.features.shape
    return n * (p + 1) <= constants.SMALL_DATA


def in_memory_if_small(problem: Problem) -> Problem:
    """Return the problem with its features in one dense array, if they are small.

    Rows on disk are read if a fit on them in memory stays within `memory_limit`, and rows in other
    processes are fetched. Sparse features with very few nonzero numbers stay sparse: as a dense
    array, 2,000 x 3,000 with 30 numbers per row took ten times as long. For a squared loss with an
    L1 penalty, small sparse features are always made dense, because the fit needs only the products
    of the columns.
    """
    features: Any = problem.features
    if not is_small(problem):
        return problem
    if isinstance(features, FarFeatures):
        return _fetched(problem, features.table(Workers(0), precise=True))
    if on_disk(features):
        (n, p), memory = features.shape, memory_budget(problem)
        if memory is not None and 8 * _COPIES * n * (p + 1) > memory:
            return problem
        return replace(problem, features=taken(features, np.arange(n)))
    if not issparse(features):
        return problem
    needs_only_products = problem.loss.is_quadratic and problem.l1 > 0
    if csr_sample.is_sparser(features) and not needs_only_products:
        return problem
    return replace(problem, features=features.toarray())


def _fetched(problem: Problem, table: AnyTable) -> Problem:
    """Return the problem with the rows of a far table in this process."""
    rows = np.arange(table.n)
    target, share, offset = table.row_data(rows)
    features = table.gathered(rows)
    return replace(problem, features=features, target=target, sample_weight=share, offset=offset)


@dataclass(frozen=True)
class Shape:
    """The properties of a problem that the table uses. Expensive ones are cached.

    Parameters
    ----------
    problem : Problem
    is_precise : bool
        Whether the requested tolerance is too small for float32.
    folds : int
        Number of folds of a path that are solved together. They share a sample's Hessian.
    """

    problem: Problem
    is_precise: bool = False
    folds: int = 1

    @property
    def n(self) -> int:
        """The number of rows."""
        return int(self.problem.features.shape[0])

    @property
    def p(self) -> int:
        """The number of features."""
        return int(self.problem.features.shape[1])

    @property
    def outputs(self) -> int:
        """The number of scores per row."""
        return self.problem.loss.outputs

    @property
    def width(self) -> int:
        """The number of weights, including the intercepts."""
        return (self.p + 1) * self.outputs

    @property
    def is_smooth(self) -> bool:
        """Whether there is no L1 penalty."""
        return not self.problem.l1 > 0

    @property
    def has_room_for_copy(self) -> bool:
        """Whether dense rows may be copied in float32."""
        return 4 * self.n * self.p <= constants.COPY_BYTES

    @cached_property
    def is_sparse(self) -> bool:
        """Whether the rows are sparse."""
        return bool(issparse(self.problem.features))

    @cached_property
    def is_on_disk(self) -> bool:
        """Whether the rows are read in blocks, from disk or in other processes."""
        features = self.problem.features
        return isinstance(features, FarFeatures) or on_disk(features)

    @cached_property
    def sample_row_limit(self) -> float:
        """The largest number of sample rows that fit into memory."""
        return rows_of_a_sample(memory_budget(self.problem), self.p)

    @cached_property
    def product_seconds(self) -> float:
        """The seconds for a product with all rows and one with their transpose."""
        features: Any = self.problem.features
        if self.is_sparse:
            return float(constants.STORED * features.nnz * self.outputs)
        number_seconds = constants.NUMBER + 2 * constants.PRODUCT * (self.outputs - 1)
        return float(number_seconds * self.n * self.p)

    @cached_property
    def pass_seconds(self) -> float:
        """The seconds for a pass over all rows, including the losses."""
        return self.product_seconds + constants.LOSS * self.n * self.outputs

    def gram_seconds(self, rows: int, width: int) -> float:
        """Return the seconds for the Hessian of `rows` rows with `width` weights."""
        dense = constants.PRODUCT * float(rows) * width * width
        features: Any = self.problem.features
        if not self.is_sparse:
            return dense
        pairs = float(rows) * (features.nnz / max(1, self.n)) ** 2 * self.outputs**2
        return float(min(dense, constants.PAIR * pairs))

    def factor_seconds(self, width: int) -> float:
        """Return the seconds for a Cholesky factor."""
        return constants.PRODUCT * float(width) ** 3 / 3

    @cached_property
    def hessian_rows(self) -> int:
        """The number of rows in a sample whose Hessian is factored.

        It is chosen so that the Hessian costs half as much as a pass, but is at most 1,000 rows per
        feature, and at most a quarter of all rows. At least 20 rows per feature are used, or 10
        if 20 would cost more than three passes. Sparse rows and rows on disk have other limits.
        """
        n, p = self.n, self.p
        size = sample_size(n, p, self.outputs)
        if self.is_sparse:
            return csr_sample.size(self.problem.features, self.outputs, size)
        if not self.is_on_disk:
            return size
        # A small sample is enough if the Hessian is computed from some of the blocks.
        features = self.problem.features
        few = max(constants.LEAST_ROWS, constants.ROWS_BESIDE_BLOCKS * p)
        if not isinstance(features, FarFeatures) and self.outputs == 1:
            rows: Any = rows_of(features)
            size = min(size, few) if pays(rows, few) else size
        return int(min(size, self.sample_row_limit))

    @cached_property
    def cg_rows(self) -> int:
        """The number of rows in a sample whose Hessian is only used in products."""
        size = max(4 * constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * self.p)
        if self.is_on_disk:
            size = max(size, self.n // constants.STEP_STRIDE)
        return int(min(self.n, self.sample_row_limit, size))

    @cached_property
    def dual_curvature(self) -> float:
        """The mean of |x|^2 over the rows, divided by n l2. Dense rows are centred."""
        features: Any = self.problem.features
        if not self.problem.l2 > 0:
            return np.inf
        if self.is_sparse:
            square = float(np.vdot(features.data, features.data)) / self.n
        else:
            some = features[:: max(1, self.n // constants.MEASURED_ROWS)]
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(np.var(some, axis=0, dtype=np.float64).sum())
        return square / (self.n * self.problem.l2)

    @cached_property
    def has_digits(self) -> bool:
        """Whether the penalty is large enough for products in float32.

        With singular values over a range of 1e5 and no penalty, conjugate gradients took up to five
        times as long as a method that factors a Hessian.
        """
        features: Any = self.problem.features
        some = features[:: max(1, self.n // constants.MEASURED_ROWS)]
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.var(some, axis=0, dtype=np.float64).max()
        return bool(self.problem.l2 > float(np.finfo(np.float32).eps) * variance)


class Given(NamedTuple):
    """The arguments from which a method is made.

    Attributes
    ----------
    shape : Shape
    objective : Objective
    sample : Sample
    rng : numpy.random.Generator
    last : Method, optional
        The method of the previous point on a path.
    """

    shape: Shape
    objective: Objective
    sample: Sample
    rng: np.random.Generator
    last: Method | None = None


@dataclass(frozen=True)
class Row:
    """One method in the table.

    Attributes
    ----------
    name : str
        The name of the method.
    needs, costs : str
        The conditions of `can` and the costs in `seconds`, in words.
    can : callable
        A function that returns whether the method can solve a problem of this shape.
    seconds : callable
        A function that returns the cost of a fit in seconds.
    rows : callable
        A function that returns the number of rows to draw before the method begins; 0 for none.
    make : callable
        A function that returns the method.
    keeps_sparse : bool
        Whether a sample of sparse rows stays sparse.
    suits_folds : callable
        A function that returns whether the method solves the folds of a path together.
    """

    name: str
    needs: str
    costs: str
    can: Callable[[Shape], bool]
    seconds: Callable[[Shape], float]
    rows: Callable[[Shape], int]
    make: Callable[[Given], Method]
    keeps_sparse: bool = False
    suits_folds: Callable[[Shape], bool] = lambda _: False


def _step_rows(shape: Shape) -> int:
    """Return the number of rows in the Hessian of a step of sampled-newton-cg."""
    if shape.is_on_disk:
        # A pass over a file is so expensive that a step should use the whole sample.
        return shape.cg_rows
    return min(shape.cg_rows, max(constants.LEAST_ROWS, shape.n // constants.STEP_STRIDE))


def _starts_from_a_sample(shape: Shape) -> bool:
    """Whether coordinate descent starts at the optimum of a sample.

    This saves Hessians of all rows.
    """
    if shape.is_on_disk:
        return not shape.problem.loss.is_quadratic
    is_expensive = shape.gram_seconds(shape.n, shape.width) > shape.pass_seconds
    has_few = sample_size(shape.n, shape.p, shape.outputs) < shape.n / constants.GROWTH
    is_dense = not (shape.is_sparse or shape.problem.loss.is_quadratic)
    return is_dense and has_few and is_expensive and shape.width <= constants.MOST_WEIGHTS


def _rows_for_l1(shape: Shape) -> int:
    """Return how many rows coordinate descent draws, for its coordinates and its start."""
    size = sample_size(shape.n, shape.p, shape.outputs)
    if shape.is_on_disk and shape.outputs > 1:
        return shape.cg_rows
    if not _starts_from_a_sample(shape):
        if shape.is_sparse and shape.p > constants.MOST_WEIGHTS:
            return 0
        size = min(size, constants.MEASURED_ROWS)
    return int(min(size, shape.sample_row_limit))


def _hessians(shape: Shape, count: int) -> int:
    """Return the number of Hessians in a fit: 1 if the Hessian is constant, else `count`."""
    return 1 if shape.problem.loss.is_quadratic else count


def _can_dual(shape: Shape) -> bool:
    if not shape.is_smooth or not shape.problem.loss.has_classes or shape.is_on_disk:
        return False
    if shape.is_sparse:
        return shape.p > constants.MOST_WEIGHTS and shape.dual_curvature <= constants.DUAL_CURVATURE
    has_room = 4 * shape.n * max(shape.p, 2 * shape.outputs) <= constants.COPY_BYTES
    is_strong = shape.outputs > 1 and has_room
    return is_strong and shape.dual_curvature <= constants.DUAL_CURVATURE_OF_DENSE


TABLE = (
    Row(
        "coordinate-descent",
        needs="a penalty on sizes",
        costs="nothing else minimises it",
        can=lambda shape: not shape.is_smooth,
        seconds=lambda shape: 10 * shape.pass_seconds,
        rows=_rows_for_l1,
        make=lambda given: CoordinateDescent(
            given.objective,
            given.last,
            given.sample if _starts_from_a_sample(given.shape) else None,
        ),
    ),
    Row(
        "newton-cholesky",
        needs="data of which a copy costs little, and up to `MOST_WEIGHTS` weights",
        costs="6 passes, and the factor of the Hessian of all rows in each (one if it is constant)",
        can=lambda shape: (
            shape.is_smooth
            and is_small(shape.problem)
            and shape.n <= shape.sample_row_limit
            and shape.width <= constants.MOST_WEIGHTS
        ),
        seconds=lambda shape: (
            6 * shape.pass_seconds
            + _hessians(shape, 6)
            * (shape.gram_seconds(shape.n, shape.width) + shape.factor_seconds(shape.width))
        ),
        rows=lambda shape: shape.n,
        make=lambda given: Newton(given.objective, given.sample),
    ),
    Row(
        "row-space-newton",
        needs="fewer dense rows than features, in memory, up to `MOST_WEIGHTS` of them times "
        "classes, and a penalty",
        costs="6 passes, the Hessian of a weight for each row and its factor in each, and the "
        "factor that turns the rows",
        can=lambda shape: (
            shape.is_smooth
            and shape.problem.l2 > 0
            and not (shape.is_sparse or shape.is_on_disk)
            and shape.n < shape.p
            and (shape.n + 1) * shape.outputs <= constants.MOST_WEIGHTS
        ),
        seconds=lambda shape: (
            6 * shape.pass_seconds
            + 2 * shape.gram_seconds(shape.p, shape.n)
            + _hessians(shape, 6)
            * (
                shape.gram_seconds(shape.n, shape.n * shape.outputs)
                + shape.factor_seconds(shape.n * shape.outputs)
            )
        ),
        rows=lambda shape: shape.n,
        make=lambda given: RowSpaceNewton(given.objective, given.sample),
    ),
    Row(
        "sampled-newton",
        needs="up to `MOST_WEIGHTS` weights",
        costs="5 passes (16 with classes of dense rows), and 2 Hessians of the sample, which folds "
        "share",
        can=lambda shape: shape.is_smooth and shape.width <= constants.MOST_WEIGHTS,
        seconds=lambda shape: (
            constants.SAMPLE
            + (5 if shape.outputs == 1 or shape.is_sparse else 16) * shape.pass_seconds
            + _hessians(shape, 2)
            * (
                shape.gram_seconds(shape.hessian_rows, shape.width)
                + shape.factor_seconds(shape.width)
            )
            / shape.folds
        ),
        rows=lambda shape: shape.hessian_rows,
        make=lambda given: Newton(given.objective, given.sample),
        keeps_sparse=True,
        # With fewer rows per feature, the Hessian of all rows differs too much from that of a fold.
        suits_folds=lambda shape: shape.n >= 2 * constants.FEW_ROWS_OF_A_FEATURE * shape.p,
    ),
    Row(
        "sampled-newton-cg",
        needs="dense rows, of several classes or in files",
        costs="12 passes, 100 products with the Hessian of the rows of a step, and the inverse of "
        "the sample's second moments",
        can=lambda shape: (
            shape.is_smooth and not shape.is_sparse and (shape.outputs > 1 or shape.is_on_disk)
        ),
        seconds=lambda shape: (
            constants.SAMPLE
            + (12 + 100 * _step_rows(shape) / shape.n) * shape.pass_seconds
            + shape.gram_seconds(shape.cg_rows, shape.p + 1)
            + 3 * shape.factor_seconds(shape.p + 1)
        ),
        rows=lambda shape: shape.cg_rows,
        make=lambda given: SampledNewtonCG(
            given.objective, given.sample, _step_rows(given.shape), given.shape.is_precise
        ),
    ),
    Row(
        "newton-cg",
        needs="sparse rows (up to `MOST_WEIGHTS` columns: with a penalty), or classes of dense "
        "rows in memory",
        costs="6 passes and 30 products; of dense rows 60, and twice the inverse of the classes' "
        "mean Hessian",
        can=lambda shape: (
            shape.is_smooth
            and not shape.is_on_disk
            and (
                shape.problem.l2 > 0 or shape.width > constants.MOST_WEIGHTS
                if shape.is_sparse
                else shape.outputs > 1
            )
        ),
        seconds=lambda shape: (
            6 * shape.pass_seconds + 30 * (shape.product_seconds + constants.CALL)
            if shape.is_sparse
            else 6 * shape.pass_seconds
            + 60 * (shape.product_seconds + constants.CALL)
            + shape.gram_seconds(shape.cg_rows, shape.p + 1)
            + 6 * shape.factor_seconds(shape.p + 1)
        ),
        rows=lambda shape: 0 if shape.is_sparse else shape.cg_rows,
        make=lambda given: NewtonCG(
            given.objective,
            given.shape.is_precise,
            given.shape.is_sparse or given.shape.has_room_for_copy,
            None if given.shape.is_sparse else given.sample,
        ),
    ),
    Row(
        "subspace-newton",
        needs="dense rows in memory, with one output",
        costs="40 passes; 200 if the penalty leaves float32 too few digits",
        can=lambda shape: (
            shape.is_smooth and not (shape.is_sparse or shape.is_on_disk) and shape.outputs == 1
        ),
        seconds=lambda shape: (40 if shape.has_digits else 200) * shape.pass_seconds,
        rows=lambda shape: min(shape.n, constants.MEASURED_ROWS),
        make=lambda given: SubspaceNewton(given.objective, given.shape.is_precise, given.rng),
    ),
    Row(
        "dual-coordinate-ascent",
        needs="classes, and a penalty for which the mean of ‖x‖² / n l2 is at most "
        "`DUAL_CURVATURE` on more than `MOST_WEIGHTS` sparse columns, or "
        "`DUAL_CURVATURE_OF_DENSE` on dense rows of several classes in memory",
        costs="10 passes, and the compiled code",
        can=_can_dual,
        seconds=lambda shape: constants.COMPILED + 10 * shape.pass_seconds,
        rows=lambda shape: 0 if shape.is_sparse else shape.cg_rows,
        make=lambda given: DualCoordinateAscent(given.objective, given.shape.is_precise, given.rng),
    ),
)
"""One row per method."""


@dataclass(frozen=True)
class Plan:
    """A method, and the reason for choosing it.

    Attributes
    ----------
    row : Row
        The table's row of the method.
    shape : Shape
    why : str
        The reason: the costs of the methods that can solve the problem.
    sample_size : int
        Number of rows to draw before the method begins; 0 for none.
    tried : tuple of str
        Names of the methods that are excluded, because they have given up or cannot be used.
    """

    row: Row
    shape: Shape
    why: str
    sample_size: int
    tried: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.row.name

    @property
    def suits_folds(self) -> bool:
        """Whether the folds of a path are solved together."""
        return self.row.suits_folds(self.shape) and not self.shape.problem.loss.has_scale

    @property
    def measures_alone(self) -> bool:
        """Whether the drawn rows are used only to measure the coordinates."""
        shape = self.shape
        is_for_l1 = shape.problem.l1 > 0 and not shape.is_on_disk
        return is_for_l1 and not _starts_from_a_sample(shape)

    def make(
        self, objective: Objective, sample: Sample, rng: np.random.Generator, last: Method | None
    ) -> Method:
        """Return the method."""
        return self.row.make(Given(self.shape, objective, sample, rng, last))

    def with_penalties(self, l2: float, l1: float) -> Plan:
        """Return the plan for other penalties. The method is kept if it can still be used."""
        shape = replace(self.shape, problem=replace(self.shape.problem, l2=l2, l1=l1))
        plan = replace(self, shape=shape)
        return plan if self.row.can(shape) else plan.without(self.name)

    def without(self, name: str) -> Plan:
        """Return a plan with another method than `name` and those tried before."""
        return _choice(self.shape, (*self.tried, name), self.sample_size)


def choose(
    problem: Problem, is_precise: bool = False, folds: int = 1, only: str | None = None
) -> Plan:
    """Choose the method for a problem.

    Parameters
    ----------
    problem : Problem
    is_precise : bool
        Whether the requested tolerance is too small for float32.
    folds : int
        Number of folds of a path that are solved together.
    only : str, optional
        The name of a method to use, whatever it costs.
    """
    shape = Shape(problem, is_precise, folds)
    if only is not None:
        row = next((row for row in TABLE if row.name == only), None)
        if row is None or not (shape.is_smooth or only == "coordinate-descent"):
            able = [one.name for one in TABLE if one.can(shape)]
            raise ValueError(f"method {only!r} does not solve this problem: take one of {able}")
        return Plan(row, shape, f"{only} was requested", row.rows(shape))
    return _choice(shape)


def _choice(shape: Shape, tried: tuple[str, ...] = (), drawn: int | None = None) -> Plan:
    """Return the plan with the lowest cost.

    If a sample was already drawn, only methods that need the same number of rows are considered.
    """
    costs = {
        row: row.seconds(shape)
        for row in TABLE
        if row.can(shape) and row.name not in tried and drawn in (None, row.rows(shape))
    }
    row = min(costs, key=lambda each: costs[each])
    in_order = sorted(costs, key=lambda each: costs[each])
    estimates = ", ".join(f"{one.name} {costs[one]:.2g} s" for one in in_order)
    why = f"lowest estimated cost: {estimates}"
    if len(costs) == 1:
        why = f"the only method for this problem: it needs {row.needs}"
    return Plan(row, shape, why, row.rows(shape), tried)


def sample_size(n: int, p: int, outputs: int) -> int:
    """Return the number of dense rows in a sample whose Hessian is factored."""
    like_a_pass = constants.SAMPLE_OF_A_PASS * n / (p * outputs)
    least = constants.ROWS_OF_A_FEATURE * p
    least = 2 * least if least <= 3 * like_a_pass else least
    return int(min(n, max(constants.LEAST_ROWS, least, min(like_a_pass, 1000 * p, n / 4))))
