"""Rows that the ranks of an MPI communicator have. Only this module imports mpi4py, if needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import issparse

from provenglm.rows.chunks import Chunks
from provenglm.rows.disk_checks import joined
from provenglm.rows.far_parts import Failure, Part, Source, guarded, sendable
from provenglm.rows.parts import ArrayPart, CsrPart


class Distributed:
    """The rows of this rank, of a data set that all ranks of a communicator have together.

    Every rank calls `fit` with its own rows, and all get the same model. The rows never leave their
    rank, except for a sample, and for small data: up to eight million numbers are solved in the
    memory of rank 0. The rank with number 0 runs the solver; the other ranks answer it until the
    end. So its parameters count, and it alone shows progress and warns. A sum over the rows is
    added in the order of the ranks' parts. If the parts are the same, so are all bits of the
    result, however many ranks there are.

    Parameters
    ----------
    X : array-like, sparse matrix or Chunks of shape (n of this rank, p)
        The chunks of Chunks are parts; everything else is one part. A rank may have no rows.
    comm : mpi4py.MPI.Comm, optional
        The communicator; by default ``MPI.COMM_WORLD``, which needs mpi4py: ``pip install
        'provenglm[mpi]'``.

    Examples
    --------
    In a program that is started by ``mpiexec -n 4 python program.py``::

        model = GLMClassifier().fit(Distributed(X_of_this_rank), y_of_this_rank)
    """

    def __init__(self, X: Any, comm: Any = None) -> None:
        if comm is None:
            try:
                from mpi4py import MPI
            except ImportError as missing:
                raise ImportError(
                    f"Distributed needs mpi4py, which cannot be imported ({missing}): "
                    "pip install 'provenglm[mpi]', with an MPI library"
                ) from missing
            comm = MPI.COMM_WORLD
        self.rows, self.comm = X, comm

    def fit(self, estimator: Any, *beside: Any) -> Any:
        """Fit an estimator on the rows of all ranks: rank 0 solves, and all get its attributes.

        Parameters
        ----------
        estimator : GLMClassifier or GLMRegressor
        *beside : object
            y, sample_weight and offset of this rank's rows.
        """
        source = _Ranks(self.comm, self.rows, beside)
        if self.comm.Get_rank() != 0:
            source.serve()
            answer = self.comm.bcast(None)
        else:
            try:
                estimator.fit(source, None)
                answer = {k: v for k, v in vars(estimator).items() if k not in _params(estimator)}
            except BaseException as error:
                answer = sendable(error)
            self.comm.bcast(None)
            self.comm.bcast(answer)
        if isinstance(answer, BaseException):
            raise answer
        params = _params(estimator)
        vars(estimator).clear()
        vars(estimator).update(params, **answer)
        return estimator


class _Ranks(Source):
    """The parts of all ranks. Rank 0 calls `run`, while all others are in `serve`."""

    def __init__(self, comm: Any, rows: Any, beside: tuple[Any, ...]) -> None:
        self._comm = comm
        own: Any
        try:
            own = _parts(rows, beside)
        except Exception as error:
            own = Failure(sendable(error))
        is_wrong = isinstance(own, Failure)
        # A rank without parts that can be read has one, for which all functions fail.
        self._failure = own if is_wrong else None
        self._parts: list[Part] = [Part(0, None, None)] if is_wrong else own
        has = [len(self._parts), any(part.offset is not None for part in self._parts)]
        found = comm.allgather(has)
        counts = [count for count, _ in found]
        self._ranks = np.repeat(np.arange(len(counts)), counts)
        self.has_offset = any(has_offset for _, has_offset in found)
        for k, part in enumerate(self._parts):
            part.index = sum(counts[: comm.Get_rank()]) + k

    def run(
        self,
        function: Callable[..., Any],
        *small: Any,
        reads: bool = True,
        only: int | None = None,
    ) -> list[Any]:
        self._comm.bcast((function, small, only))
        return [result for found in self._answer(function, small, only) for result in found]

    def serve(self) -> None:
        """Answer rank 0 until it is done."""
        while (asked := self._comm.bcast(None)) is not None:
            self._answer(*asked)

    def name_of(self, index: int) -> str:
        rank = self._ranks[index]
        chunk = int(index - np.flatnonzero(self._ranks == rank)[0])
        alone = np.count_nonzero(self._ranks == rank) == 1
        return f"rank {rank}" if alone else f"rank {rank}, chunk {chunk}"

    def _answer(
        self, function: Callable[..., Any], small: tuple[Any, ...], only: int | None
    ) -> Any:
        asked = [part for part in self._parts if only in (None, part.index)]
        found = [self._failure or guarded(function, part, *small) for part in asked]
        return self._comm.gather(found)


def _params(estimator: Any) -> dict[str, Any]:
    return dict(estimator.get_params(deep=False))


def _parts(rows: Any, beside: tuple[Any, ...]) -> list[Part]:
    """Return the parts of a rank's rows with y, sample_weight and offset."""
    if not isinstance(rows, Chunks):
        with contextlib.suppress(TypeError):
            if not issparse(rows) and len(rows) == 0:
                return []
        return [] if issparse(rows) and not rows.shape[0] else [Part(0, rows, *beside)]
    names = "y", "sample_weight", "offset"
    values: list[Any] = [
        joined(name, given, rows) for name, given in zip(names, beside, strict=True)
    ]
    starts = np.cumsum([0, *rows.lengths])
    for name, given in zip(names, values, strict=True):
        if np.ndim(given) and len(given) != starts[-1]:
            raise ValueError(
                f"{name} has {len(given):,} values, and X has {starts[-1]:,} rows: give one value "
                "for each row"
            )
    found = []
    for k, part in enumerate(rows.parts):
        own = slice(starts[k], starts[k + 1])
        features: Any = Chunks([part])
        if isinstance(part, ArrayPart):
            features = part.array
        elif isinstance(part, CsrPart):
            features = part.matrix
        found.append(Part(k, features, *[v[own] if np.ndim(v) else v for v in values]))
    return found
