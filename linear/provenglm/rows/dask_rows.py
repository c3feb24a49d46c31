"""Rows in the partitions of a Dask array or DataFrame.

Only this module imports Dask, and only after it got a collection. Between two calls the workers
hold nothing that Dask cannot compute again, so a call gives the same bits after a worker has died.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np

from provenglm.rows.far_parts import Part, Source, guarded, name_of_call
from provenglm.types import NumPyArray

_STALL_SECONDS = 30.0
"""A call ends with an error if no task was completed for this time and all workers are paused."""

_TARGETS = "y", "sample_weight", "offset"


def is_dask(given: object) -> bool:
    """Return whether an object is a collection of Dask. Dask is not imported."""
    kind = type(given)
    return kind.__module__.partition(".")[0] == "dask" and hasattr(kind, "__dask_graph__")


class _Partition(NamedTuple):
    """A partition in a graph.

    Attributes
    ----------
    key : object
        The key of its task.
    tasks : dict
        The tasks from which it is computed.
    held : dict
        Futures, or values of this process, that the tasks need.
    """

    key: Any
    tasks: dict[Any, Any]
    held: dict[Any, Any]


@dataclass(frozen=True)
class _Call:
    """A function and its arguments. Dask does not look into this object."""

    function: Callable[..., Any]
    small: tuple[Any, ...]
    is_checked: bool

    def answer(self, features: Any, targets: Part) -> Any:
        """Return the result for a partition, or its failure."""
        part = replace(targets, features=features, is_checked=self.is_checked)
        return guarded(self.function, part, *self.small)


@dataclass(frozen=True)
class _Tasks:
    """The tasks of a partition, without the values that they need."""

    key: Any
    tasks: dict[Any, Any]
    needs: list[Any]

    def computed(self, values: list[Any]) -> Any:
        """Return the partition."""
        from dask import get

        return get({**self.tasks, **dict(zip(self.needs, values, strict=True))}, self.key)


class _Groups(NamedTuple):
    """The indices of partitions that one task gets, and the workers that have the partitions."""

    indices: list[list[int]]
    holders: set[str]


class DaskRows(Source):
    """The partitions of X with those of y, sample_weight and offset.

    Targets, weights and offsets are computed once and stay in the memory of the cluster. If X is
    not persisted, each call that needs features computes X again, with one task per partition if
    partitions have no tasks in common. If X is persisted, each thread of a worker gets one task for
    several partitions that the worker has. Without a client, Dask's own scheduler runs everything
    on this machine.

    Parameters
    ----------
    X : dask.array.Array or dask.dataframe.DataFrame of shape (n, p)
        Any chunks along the rows. Chunks along the columns are joined in each call, unless X is
        persisted with whole rows: ``X.rechunk({1: -1}).persist()``.
    y, sample_weight, offset : dask.array.Array or dask.dataframe.Series
        In the partitions of X. Weights and offsets may be None or a number.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        If the numbers of partitions differ.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> None:
        from dask.base import get_scheduler

        targets = dict(zip(_TARGETS, (y, sample_weight, offset), strict=True))
        _check_types(X, targets)
        self._get = get_scheduler(collections=[X])
        owner = getattr(self._get, "__self__", None)
        self._client: Any = owner if hasattr(owner, "who_has") else None
        names = ["X", *(name for name, given in targets.items() if is_dask(given))]
        lowered = dict(zip(names, _lowered([X, *map(targets.get, names[1:])]), strict=True))
        self._features = lowered["X"]
        for name, partitions in lowered.items():
            if len(partitions) != len(self._features):
                raise ValueError(
                    f"X has {len(self._features)} partitions along the rows, and {name} has "
                    f"{len(partitions)}: give both the same chunks, or take both from the same "
                    "DataFrame, as it was read or persisted"
                )
        self.has_offset = offset is not None
        self._are_checked = False
        self._groups: dict[bool, _Groups] = {}
        self._are_separate = _are_separate(self._features)
        is_there = self._client is not None and self._are_separate
        self._are_features_held = is_there and _are_held(self._features)
        each = [
            [lowered[name][k] if name in lowered else given for name, given in targets.items()]
            for k in range(len(self._features))
        ]
        with self._connected():
            self._targets = self._held(each)

    def name_of(self, index: int) -> str:
        """Return how a message calls a partition."""
        return f"partition {index}"

    def run(
        self,
        function: Callable[..., Any],
        *small: Any,
        reads: bool = True,
        only: int | None = None,
    ) -> list[Any]:
        """Return the results, or failures, of a function of each partition; see `Source.run`.

        Raises
        ------
        RuntimeError
            If a partition cannot be read, workers die or are paused, or the scheduler is gone.
        """
        call = _Call(function, small, self._are_checked)
        name = f"provenglm_{name_of_call(function, small)}-{uuid.uuid4().hex}"
        indices = list(range(len(self._targets))) if only is None else [only]
        found = None
        with self._connected():
            if self._client is not None and only is None and (self._are_features_held or not reads):
                found = self._run_groups(name, call, reads)
            if found is None:
                found = self._run_each(name, call, reads, indices)
        self._are_checked = self._are_checked or (reads and only is None)
        return found

    def _run_each(self, name: str, call: _Call, reads: bool, indices: list[int]) -> list[Any]:
        """Return the results of partitions, with one task for each."""
        graph: dict[Any, Any] = {f"{name}-call": call}
        keys = [(name, k) for k in indices]
        for key, k in zip(keys, indices, strict=True):
            targets, task, needs = self._targets[k], None, []
            graph.update(targets.held)
            if reads:
                features = self._features[k]
                graph.update(features.held)
                if self._are_separate:
                    # In one task, so that rows that wait for a call do not fill the memory.
                    needs = list(features.held)
                    task = _Tasks(features.key, features.tasks, needs)
                else:
                    graph.update(features.tasks)
                    needs = [features.key]
            graph[key] = _answer, f"{name}-call", task, needs, targets.key
        return self._computed(graph, keys, indices)

    def _run_groups(self, name: str, call: _Call, reads: bool) -> list[Any] | None:
        """Return the results of all partitions, with one task per thread; None if one failed."""
        groups = self._grouped(reads)
        futures = []
        for number, group in enumerate(groups.indices):
            given = []
            for k in group:
                task, needs, (target,) = None, [], self._targets[k].held.values()
                if reads:
                    key, tasks, held = self._features[k]
                    task, needs = _Tasks(key, tasks, list(held)), list(held.values())
                given.append((task, needs, target))
            futures.append(self._client.submit(_answers, call, given, key=f"{name}-{number}"))
        self._wait(futures)
        if any(future.status != "finished" for future in futures):
            return None
        found: list[Any] = [None] * len(self._targets)
        for group, results in zip(groups.indices, self._client.gather(futures), strict=True):
            for k, result in zip(group, results, strict=True):
                found[k] = result
        return found

    def _grouped(self, reads: bool) -> _Groups:
        """Return the groups of partitions, made again if a worker that has some is gone."""
        threads = self._client.nthreads()
        known = self._groups.get(reads)
        if known is not None and known.holders <= threads.keys():
            return known
        partitions = self._features if reads else self._targets
        futures = [next(iter(partition.held.values())) for partition in partitions]
        self._wait(futures)
        where = self._client.who_has(futures)
        of_holder: dict[str, list[int]] = {}
        for k, future in enumerate(futures):
            holder = next(iter(where.get(future.key) or [""]))
            of_holder.setdefault(holder, []).append(k)
        indices = [
            part.tolist()
            for holder, own in of_holder.items()
            for part in np.array_split(own, min(len(own), threads.get(holder, 1)))
        ]
        self._groups[reads] = _Groups(indices, set(of_holder))
        return self._groups[reads]

    def _held(self, each: list[list[Any]]) -> list[_Partition]:
        """Return y, weights and offsets of all partitions, which are computed and kept."""
        name = f"provenglm_targets-{uuid.uuid4().hex}"
        graph: dict[Any, Any] = {}
        for k, given in enumerate(each):
            for one in given:
                graph.update({**one.tasks, **one.held} if isinstance(one, _Partition) else {})
            keys = [one.key if isinstance(one, _Partition) else one for one in given]
            graph[name, k] = Part, k, None, *keys
        keys = [(name, k) for k in range(len(each))]
        if self._client is None:
            values = self._computed(graph, keys, list(range(len(each))))
        else:
            values = self._client.get(graph, keys, sync=False)
        return [_Partition(key, {}, {key: one}) for key, one in zip(keys, values, strict=True)]

    def _computed(self, graph: dict[Any, Any], keys: list[Any], indices: list[int]) -> list[Any]:
        """Return the values of tasks, one for each of some partitions."""
        if self._client is not None:
            futures = self._client.get(graph, keys, sync=False)
            self._wait(futures)
            for future, index in zip(futures, indices, strict=True):
                if future.status != "finished":
                    self._fail(index, future)
            return list(self._client.gather(futures))
        try:
            return list(self._get(graph, keys))
        except Exception as error:
            for key, index in zip(keys, indices, strict=True):
                try:
                    self._get(graph, key)
                except Exception as own:
                    raise RuntimeError(f"{self.name_of(index)} cannot be read: {own!r}") from own
            raise RuntimeError(f"a partition cannot be read: {error!r}") from error

    def _fail(self, index: int, future: Any) -> NoReturn:
        """Raise a RuntimeError that says why there is no result for a partition."""
        from distributed import KilledWorker

        name = self.name_of(index)
        if future.status == "cancelled":
            if self._client.status != "running":
                raise ConnectionError
            raise RuntimeError(
                f"{name} was cancelled, or lost with its worker, and Dask cannot compute it again "
                "if it was scattered: give data that the workers read themselves"
            )
        error = future.exception()
        if isinstance(error, KilledWorker):
            raise RuntimeError(
                f"{name} cannot be computed, because a worker died in each of "
                f"{error.allowed_failures + 1} attempts, probably for lack of memory: give smaller "
                "partitions, or workers with more memory"
            ) from error
        raise RuntimeError(f"{name} cannot be read: {error!r}") from error

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise a RuntimeError instead of an OSError if the connection is lost."""
        try:
            yield
        except OSError as error:
            if self._client is None:
                raise
            raise RuntimeError(
                f"the connection to Dask's scheduler {self._client.scheduler.address} was lost in "
                f"round {self.rounds + 1}: connect a new Client, and fit again"
            ) from error

    def _wait(self, futures: list[Any]) -> None:
        """Wait until all futures are done, without raising their errors.

        Raises
        ------
        RuntimeError
            If all workers are paused because their memory is full.

        Warns
        -----
        UserWarning
            If there are no workers.
        """
        from distributed import CancelledError, TimeoutError, wait

        count = 0
        while True:
            try:
                wait(futures, timeout=_STALL_SECONDS)
                # A result is lost for a while if its worker dies; then it is computed again.
                if not any(future.status in ("pending", "lost") for future in futures):
                    return
            except CancelledError:
                return
            except TimeoutError:
                before, count = count, sum(future.done() for future in futures)
                if count == before:
                    self._check_workers()

    def _check_workers(self) -> None:
        """Raise or warn if no task can be computed."""
        workers = list(self._client.scheduler_info()["workers"].values())
        if not workers:
            warnings.warn(
                f"Dask's scheduler {self._client.scheduler.address} has no workers: the fit waits "
                "until there are some",
                stacklevel=2,
            )
        elif all(worker["status"] == "paused" for worker in workers):
            least = min(worker["memory_limit"] for worker in workers) / 2**20
            raise RuntimeError(
                f"all {len(workers)} workers are paused, because they use most of their memory "
                f"(the limit is {least:,.0f} MiB): give smaller partitions, or workers with more "
                "memory"
            )


def _check_types(X: Any, targets: dict[str, Any]) -> None:
    if getattr(X, "ndim", None) != 2:
        raise TypeError(
            f"X is a {type(X).__name__} of Dask, which has no columns: give a dask.array of shape "
            "(n, p) or a dask.dataframe.DataFrame"
        )
    for name, given in targets.items():
        if hasattr(given, "ndim") and is_dask(given):
            continue
        if name == "y" or not (given is None or isinstance(given, Real)):
            raise TypeError(
                f"X is a Dask collection, and {name} is {type(given).__name__}: give {name} in the "
                "partitions of X, such as dask.array.from_array(values, chunks=X.chunks[0])"
            )


def _lowered(collections: list[Any]) -> list[list[_Partition]]:
    """Return the partitions of each collection. Arrays share the tasks that they have in common."""
    import dask
    from dask.core import flatten
    from dask.optimization import cull

    arrays = {k: _whole_rows(one) for k, one in enumerate(collections) if hasattr(one, "chunks")}
    # Optimizing would lose futures.
    if not any(_is_future(task) for one in arrays.values() for task in _graph(one).values()):
        arrays = dict(zip(arrays, dask.optimize(*arrays.values()), strict=True))
    found = []
    for k, one in enumerate(collections):
        # `optimize` would join partitions if few columns of files are needed: X and y of the same
        # files would then have different ones.
        one = arrays[k] if k in arrays else one.simplify()
        graph, partitions = _graph(one), []
        for key in flatten(one.__dask_keys__()):
            tasks, _ = cull(graph, [key])
            held = {name: task for name, task in tasks.items() if _is_future(task)}
            rest = {name: task for name, task in tasks.items() if name not in held}
            partitions.append(_Partition(key, rest, held))
        found.append(partitions)
    return found


def _graph(collection: Any) -> dict[Any, Any]:
    return dict(collection.__dask_graph__())


def _whole_rows(array: Any) -> Any:
    """Return an array whose chunks have all columns."""
    return array.rechunk({1: -1}) if array.ndim == 2 else array


def _is_future(task: Any) -> bool:
    return type(task).__module__.partition(".")[0] == "distributed" and hasattr(task, "client")


def _are_separate(partitions: list[_Partition]) -> bool:
    """Return whether no task belongs to two partitions."""
    names = [name for partition in partitions for name in partition.tasks]
    return len(names) == len(set(names))


def _are_held(partitions: list[_Partition]) -> bool:
    """Return whether partitions need no more than futures."""
    from dask.core import get_dependencies

    return all(
        held and all(get_dependencies({**tasks, **held}, name) for name in tasks)
        for _, tasks, held in partitions
    )


def _answer(call: _Call, task: _Tasks | None, needs: list[Any], targets: Part) -> Any:
    """Return the result for a partition; `needs` is the partition itself if there is no task."""
    features = needs[0] if needs else None
    return call.answer(features if task is None else task.computed(needs), targets)


def _answers(call: _Call, given: list[Any]) -> list[Any]:
    """Return the results of several partitions, one after the other."""
    return [_answer(call, *one) for one in given]


def mapped(function: Callable[..., Any], X: Any, offset: Any, empty: NumPyArray) -> Any:
    """Return a lazy array of a function's results for the partitions of X.

    Parameters
    ----------
    function : callable
        A function of features and ``offset=``, whose result has one row per row.
    X : dask.array.Array or dask.dataframe.DataFrame
    offset : dask.array.Array or dask.dataframe.Series, number or None
        In the partitions of X.
    empty : numpy.ndarray
        The result for no rows.

    Returns
    -------
    dask.array.Array
    """
    import dask.array
    from dask import delayed

    _check_types(X, {"offset": offset})
    parts = [_delayed(one) for one in (X, offset) if is_dask(one)]
    if len({len(one) for one in parts}) > 1:
        raise ValueError(
            f"X has {len(parts[0])} partitions along the rows, and offset has {len(parts[1])}: "
            "give both the same chunks"
        )
    offsets = parts[1] if len(parts) > 1 else [offset] * len(parts[0])
    rows = X.chunks[0] if hasattr(X, "chunks") else [np.nan] * len(parts[0])
    called = delayed(_called, pure=False)
    shared = delayed(function, pure=False, traverse=False)
    blocks = [
        dask.array.from_delayed(
            called(shared, own, one, empty), (n, *empty.shape[1:]), dtype=empty.dtype
        )
        for own, one, n in zip(parts[0], offsets, rows, strict=True)
    ]
    return dask.array.concatenate(blocks, allow_unknown_chunksizes=True)


def _delayed(one: Any) -> list[Any]:
    """Return the partitions along the rows."""
    if not hasattr(one, "chunks"):
        return list(one.simplify().to_delayed(optimize_graph=False))
    return list(_whole_rows(one).to_delayed().ravel())


def _called(function: Callable[..., Any], features: Any, offset: Any, empty: NumPyArray) -> Any:
    """Return a function's result, also for no rows, which the function does not accept."""
    return function(features, offset=offset) if len(features) else empty
