"""From the rows of a batch to the batch: what is taken from the arrays, and transformed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg._mxnet import as_current, as_legacy
from gluon_svrg.data.arrays import Source, as_ndarray, nested_as, take, take_as_numpy
from gluon_svrg.data.batch import Batch
from gluon_svrg.data.csr import CsrArray
from gluon_svrg.data.draw import Draw
from gluon_svrg.data.partition import Rows
from gluon_svrg.data.transforms.base import Transform, is_by_sample
from mxnet.ndarray import NDArray


class BatchMaker:
    """Makes the batches of an ArrayLoader.

    Parameters
    ----------
    arrays : sequence of NDArray, numpy.ndarray or CsrArray
        What the rows are taken from.
    nesting : sequence, optional
        How a batch nests them.
    transform : callable or Transform, optional
        What they go through.
    """

    def __init__(
        self,
        arrays: Sequence[Source],
        nesting: Sequence[Any] | None,
        transform: Callable[..., Any] | None,
    ) -> None:
        # An mx.np.ndarray becomes the NDArray that shares its memory.
        self._arrays = [as_legacy(x) if isinstance(x, NDArray) else x for x in arrays]
        self._nesting = nesting
        self._transform = transform

    @property
    def takes_any_rows(self) -> bool:
        """Whether a sample is the same, bit for bit, with any others beside it in its batch."""
        transform = self._transform
        return transform is None or (isinstance(transform, Transform) and is_by_sample(transform))

    def some_rows(self, number: int) -> list[NumPyArray]:
        """Return some samples of each array, from its beginning to its end, as they are."""
        rows = np.unique(np.linspace(0, len(self._arrays[0]) - 1, number).astype(np.int64))
        return [take_as_numpy(array, rows) for array in self._arrays]

    def batch(self, index: int, rows: Rows, draw: tuple[int, int, int]) -> Batch:
        """Return the batch of these rows.

        Parameters
        ----------
        index : int
            Its number in the partition.
        rows : slice or numpy.ndarray
            At least one.
        draw : tuple of int
            Seed, stream and number of the random numbers.
        """
        if isinstance(self._transform, Transform):
            arrays = self._augmented(self._transform, rows, *draw)
        else:
            arrays = self._transformed([as_current(take(x, rows)) for x in self._arrays])
        return Batch(nested_as(self._nesting, map(as_current, arrays)), index)

    def _augmented(
        self, transform: Transform, rows: Rows, seed: int, stream: int, number: int
    ) -> Iterable[NDArray]:
        arrays = [take_as_numpy(array, rows) for array in self._arrays]
        samples = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        results = transform(*arrays, draw=Draw(seed, number, samples, stream))
        results = [results] if len(arrays) == 1 else results
        return map(as_ndarray, results, self._arrays)

    def _transformed(self, arrays: list[NDArray]) -> Iterable[NDArray]:
        if self._transform is None:
            return arrays
        result = self._transform(*arrays)
        if len(arrays) == 1 and isinstance(result, NDArray):
            return [result]
        return _checked(result, len(arrays))


def check_transform(transform: object, arrays: Sequence[object]) -> None:
    """Raise TypeError if `transform` cannot be called with the arrays of a batch."""
    if isinstance(transform, Transform) and any(isinstance(a, CsrArray) for a in arrays):
        raise TypeError(
            f"transform is {transform!r}, which takes dense arrays, and one of the loader's is "
            "CSR: give a plain callable, which gets NDArrays, or transform the matrix beforehand"
        )
    if transform is None or isinstance(transform, Transform):
        return
    if not callable(transform):
        raise TypeError(f"transform must be callable with a batch's arrays, got {transform!r}")
    name = getattr(transform, "__name__", type(transform).__name__)
    if type(transform).__module__.startswith("mxnet.gluon.data.vision") and len(arrays) > 1:
        raise TypeError(
            f"transform is gluon's {name}, which takes the image alone, and is called with the "
            f"{len(arrays)} arrays of a batch: give transforms of gluon_svrg.data.transforms, such "
            f"as ToFloat and Normalize, or lambda x, *rest: ({name}()(x), *rest), which gives all "
            "images of a batch the same random numbers"
        )
    try:
        inspect.signature(transform).bind(*arrays)
    except TypeError as e:
        raise TypeError(
            f"transform must be callable with the {len(arrays)} arrays of a batch, all at once, "
            f"and {name} is not ({e}): give a function of {len(arrays)} arguments"
        ) from e
    except ValueError:  # a built-in function does not tell
        pass


def _checked(result: object, number: int) -> Sequence[NDArray]:
    if (
        not isinstance(result, (tuple, list))
        or len(result) != number
        or not all(isinstance(array, NDArray) for array in result)
    ):
        raise ValueError(
            f"transform must return {number} NDArrays, one for each that it is given, got "
            f"{_kind_of(result)}: return a tuple of them"
        )
    return result


def _kind_of(result: object) -> str:
    if isinstance(result, (tuple, list)):
        names = ", ".join(type(item).__name__ for item in result)
        return f"a {type(result).__name__} of {len(result)} ({names})"
    return f"a {type(result).__name__}"
