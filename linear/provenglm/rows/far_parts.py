"""Features of a problem whose rows other processes hold, with all that belongs to each row.

A `Source` calls a function for each part of the rows, wherever it is. A `Recipe` makes a `Table` of
a part, there. So this process needs neither features nor targets.
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isroutine
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from provenglm.rows.kinds import LocalData
from provenglm.rows.remote import RemoteRows, RemoteTable
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers


@dataclass
class Part:
    """Some consecutive rows as they are given.

    Attributes
    ----------
    index : int
        The number of the part.
    features, target, weight, offset : object
        The data of these rows. Features are None if a call does not need them.
    is_checked : bool
        Whether an earlier call has checked the features.
    table : Table, optional
        What a recipe has made of them.
    """

    index: int
    features: Any
    target: Any
    weight: Any = None
    offset: Any = None
    is_checked: bool = False
    table: Table | None = None


class Failure(NamedTuple):
    """What is returned, instead of a result, of a part for which a function failed."""

    error: Exception


class Recipe(Protocol):
    """How a table is made of a part. It is pickled."""

    @property
    def sizes(self) -> NumPyArray:
        """The number of rows of each part."""
        ...

    def table(self, part: Part) -> Table:
        """Return the table of a part."""
        ...


class Source(ABC):
    """Parts of rows in other processes."""

    has_offset: bool
    notice: Callable[[str], None] | None = None
    """Shows a line after each call, if it is set."""
    rounds = 0

    @abstractmethod
    def run(
        self,
        function: Callable[..., Any],
        *small: Any,
        reads: bool = True,
        only: int | None = None,
    ) -> list[Any]:
        """Return the results, or failures, of a function of each `Part`, in their order.

        Parameters
        ----------
        function : callable
            A function of a module.
        *small
            Further arguments, which are pickled.
        reads : bool
            Whether the function needs features. Without them ``part.features`` may be None.
        only : int, optional
            The only part for which the function is called.
        """

    @abstractmethod
    def name_of(self, index: int) -> str:
        """Return how a message calls a part."""

    def call(
        self,
        function: Callable[..., Any],
        *small: Any,
        reads: bool = True,
        only: int | None = None,
    ) -> list[Any]:
        """Return the results of a function of each `Part`, in their order; see `run`.

        Raises
        ------
        Exception
            That of the first part for which the function failed; its message names the part.
        """
        began = time.perf_counter()
        found = self.run(function, *small, reads=reads, only=only)
        self.rounds += 1
        if self.notice is not None:
            self.notice(
                f"round {self.rounds} ({name_of_call(function, small)}): {len(found)} parts, "
                f"{time.perf_counter() - began:.2f} s"
            )
        for place, result in enumerate(found):
            if isinstance(result, Failure):
                kind, name = type(result.error), self.name_of(place if only is None else only)
                if kind not in (TypeError, ValueError):
                    raise RuntimeError(f"{name}: {result.error!r}") from result.error
                raise kind(f"{name}: {result.error}") from result.error
        return found


def name_of_call(function: Callable[..., Any], small: tuple[Any, ...]) -> str:
    """Return what a call computes: the name of the innermost function."""
    inner = [value for value in (function, *small) if isroutine(value)][-1]
    return inner.__name__.strip("_")


def guarded(function: Callable[..., Any], part: Part, *small: Any) -> Any:
    """Return the result of a function of a part, or its failure."""
    try:
        return function(part, *small)
    except Exception as error:
        return Failure(sendable(error))


def sendable(error: BaseException) -> Any:
    """Return an exception that can be pickled, with the same message."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


class FarFeatures(NamedTuple):
    """The features of a problem with rows in other processes.

    Attributes
    ----------
    source : Source
    recipe : Recipe
    rows : RemoteRows
    dtype : numpy.dtype
        In which the features are stored.
    """

    source: Source
    recipe: Recipe
    rows: RemoteRows
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, p)."""
        return self.rows.shape

    @property
    def size(self) -> int:
        """The number of numbers."""
        return self.rows.shape[0] * self.rows.shape[1]

    def table(self, workers: Workers, precise: bool = False) -> RemoteTable:
        """Return the rows with what belongs to each of them."""
        table = _PartsTable(self, workers)
        return table.precise() if precise else table


Data: TypeAlias = "LocalData | FarFeatures"
"""The types of a problem's features."""


class _PartsTable(RemoteTable):
    """The table of all parts."""

    def __init__(self, features: FarFeatures, workers: Workers) -> None:
        super().__init__(features.rows, workers, features.source.has_offset)
        self._features = features

    def run(self, function: Callable[..., Any], *small: Any, reads: bool = True) -> list[Any]:
        source, recipe = self._features.source, self._features.recipe
        found = source.call(call_with_table, recipe, function, *small, reads=reads)
        return [result for result, n in zip(found, recipe.sizes, strict=True) if n]


def call_with_table(part: Part, recipe: Recipe, function: Callable[..., Any], *small: Any) -> Any:
    """Return the result of a function of a part's table; None of a part without rows."""
    if not recipe.sizes[part.index]:
        return None
    if part.table is None:
        part.table = recipe.table(part)
    with part.table.workers.running():
        return function(part.table, *small)
