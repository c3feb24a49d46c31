"""Workers: what the processes of a run do together; Single: one process, which does it alone."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mxnet.ndarray import NDArray


class WorkerError(RuntimeError):
    """Another worker of the run is gone, has failed, or does something else than this one."""


class PeerError(WorkerError):
    """Another worker has failed, and has said why itself: that is where to look.

    Attributes
    ----------
    is_of_another : bool
        True: the traceback of this one would hide the other's.
    """

    is_of_another = True


@dataclass(frozen=True)
class Reduction:
    """A part of a state that all workers compute together, from a value of each of them.

    A checkpoint gathers the values of all its parts at once, and puts the results in their places.

    Attributes
    ----------
    value : plain data or arrays
        The value of this worker.
    reduce : callable
        Returns the part, from the values of all workers, by rank. It is called on each worker, and
        returns the same on all.
    """

    value: Any
    reduce: Callable[[list[Any]], Any]


class Workers(ABC):
    """The processes that train one network, as one of them sees them.

    All methods but :meth:`abort` are collective: every worker calls the same ones in the same
    order, and each waits for the others where it needs what they give.

    Attributes
    ----------
    rank : int
        The number of this worker, from 0.
    size : int
        How many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        """Whether this is the worker that writes, prints and shows: number 0."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    @abstractmethod
    def gather(self, data: bytes, at: str) -> list[bytes]:
        """Return what each worker gives, by rank, on every worker.

        Parameters
        ----------
        data : bytes
            What this one gives; not all need be of one length.
        at : str
            Where the run stands, for messages: workers that call this at different places are an
            error, not a hang.

        Raises
        ------
        WorkerError
            If another worker is gone, has given up, or is at another place.
        """

    @abstractmethod
    def sum(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by its sum over all workers; they all have the same bits then.

        Waits until the sums are there. A sum over one process does nothing.

        Parameters
        ----------
        arrays : sequence of NDArray
            Of any shapes and dtypes, dense, on one context; the same on all workers.
        """

    @abstractmethod
    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by the first worker's; waits until that is done."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Tell the others that this worker has failed, and wait for nobody from here on."""

    def leave(self) -> None:  # noqa: B027  # one process has nothing to leave
        """End it, with the script: each waits for the others, who may need it still."""

    def gather_plain(self, value: Any, at: str) -> list[Any]:
        """Return what each worker gives, by rank: None, bool, numbers, strings, lists, dicts."""
        return [json.loads(data) for data in self.gather(json.dumps(value).encode(), at)]

    def of_first(self, value: Any, at: str) -> Any:
        """Return what the first worker gives, on every worker; what the others give is not used."""
        return self.gather_plain(value if self.is_first else None, at)[0]

    def total(self, value: Any, at: str) -> Any:
        """Return the sum of a number over all workers, added in the order of their ranks."""
        return sum(self.gather_plain(value, at))

    def any(self, value: bool, at: str) -> bool:
        """Return whether it is true on any worker."""
        return any(self.gather_plain(bool(value), at))

    def barrier(self, at: str) -> None:
        """Wait until all workers are here."""
        self.gather(b"", at)

    def reduction(self, value: Any, reduce: Callable[[list[Any]], Any]) -> Any:
        """Return a :class:`Reduction` for a state; of one process, its result."""
        return Reduction(value, reduce)


class Single(Workers):
    """One process: it gathers what it gives, and its sums are what they were. Nothing is sent."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def gather(self, data: bytes, at: str) -> list[bytes]:
        """Return what this process gives."""
        return [data]

    def gather_plain(self, value: Any, at: str) -> list[Any]:
        """Return what this process gives, as it is."""
        return [value]

    def reduction(self, value: Any, reduce: Callable[[list[Any]], Any]) -> Any:
        """Return what `reduce` makes of the value of this process."""
        return reduce([value])

    def sum(self, arrays: Sequence[NDArray]) -> None:
        """Leave the arrays as they are."""

    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Leave the arrays as they are."""

    def abort(self, reason: str) -> None:
        """Tell nobody: there are no others."""
