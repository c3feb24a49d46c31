"""The interface between the processes of a run, and its implementation for a single process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class Reduction:
    """A part of a state that is computed from one value per worker.

    A checkpoint gathers the values of all its reductions in one message, and then replaces each
    reduction by its result.

    Attributes
    ----------
    value : plain data or arrays
        The value of this worker.
    reduce : callable
        Takes the list of all workers' values, by rank, and returns the result. It is called on
        every worker and must return the same on each.
    """

    value: Any
    reduce: Callable[[list[Any]], Any]


class Workers(ABC):
    """A group of processes that train one network together, as seen from one of them.

    All methods except :meth:`abort` are collective: every worker has to call the same methods in
    the same order. A call returns when the data that it needs from the other workers have arrived.

    Attributes
    ----------
    rank : int
        The number of this worker, from 0.
    size : int
        The number of workers.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        """Whether this is worker 0, which writes files and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one worker."""
        return self.size > 1

    @abstractmethod
    def all_gather_bytes(self, data: bytes, label: str) -> list[bytes]:
        """Return the `data` of all workers, by rank, on every worker.

        Parameters
        ----------
        data : bytes
            The data of this worker. The lengths may differ between workers.
        label : str
            The name of this call, for error messages. If workers call with different labels, an
            error is raised instead of a deadlock.

        Raises
        ------
        WorkerError
            If another worker has exited, has failed, or calls with another label.
        """

    @abstractmethod
    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by its sum over all workers, and wait for the result.

        Afterwards the arrays are bit-identical on all workers. With one worker, nothing changes.

        Parameters
        ----------
        arrays : sequence of NDArray
            Dense arrays on one context. Shapes and dtypes must be the same on all workers.
        """

    @abstractmethod
    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by that of worker 0, and wait for the result."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Tell the other workers that this one has failed. Does not wait for them."""

    def leave(self) -> None:  # noqa: B027  # a single process has no other to wait for
        """Wait at the end of the script until all workers have finished."""

    def all_gather_object(self, value: Any, label: str) -> list[Any]:
        """Return the `value` of all workers, by rank, on every worker.

        A value consists of None, bools, numbers, strings, lists and dicts.
        """
        parts = self.all_gather_bytes(json.dumps(value).encode(), label)
        return [json.loads(data) for data in parts]

    def broadcast_object(self, value: Any, label: str) -> Any:
        """Return the `value` of worker 0 on every worker. The other values are ignored."""
        return self.all_gather_object(value if self.is_first else None, label)[0]

    def all_sum(self, value: Any, label: str) -> Any:
        """Return the sum of a number over all workers, added in the order of the ranks."""
        return sum(self.all_gather_object(value, label))

    def all_any(self, value: bool, label: str) -> bool:
        """Return whether `value` is true on at least one worker."""
        return any(self.all_gather_object(bool(value), label))

    def barrier(self, label: str) -> None:
        """Wait until all workers have called this."""
        self.all_gather_bytes(b"", label)

    def reduction(self, value: Any, reduce: Callable[[list[Any]], Any]) -> Any:
        """Return a :class:`Reduction` to put into a state; with one worker, its result."""
        return Reduction(value, reduce)


class SingleProcess(Workers):
    """A run with one worker. Collective calls return immediately."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_gather_bytes(self, data: bytes, label: str) -> list[bytes]:
        """Return `data` in a list."""
        return [data]

    def all_gather_object(self, value: Any, label: str) -> list[Any]:
        """Return `value` in a list, without converting it to JSON."""
        return [value]

    def reduction(self, value: Any, reduce: Callable[[list[Any]], Any]) -> Any:
        """Return the result of `reduce` for the value of this process."""
        return reduce([value])

    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Do nothing: the sum over one worker is the array itself."""

    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Do nothing."""

    def abort(self, reason: str) -> None:
        """Do nothing."""
