"""Whether a sample is the same in the snapshot's pass and in the epochs until the next snapshot."""

from __future__ import annotations

from functools import partial
from typing import Any

from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.probing import repeats_exactly
from mxnet import gluon

# A mirror image with probability 1/2 stays undetected in 6 trials of 4 samples once in 2**20.
_SAMPLES, _PROBES = 4, 6

_DRAWS = (
    "its transform draws other numbers each time, from NumPy's or MXNet's generator or its own; "
    "use gluon_svrg.data.ArrayLoader with gluon_svrg.data.transforms"
)


def why_not_locked(data: Any) -> str:
    """Return why the samples of `data` may change from one pass to the next, or '' if they do not.

    SVRG needs that a sample is augmented alike in the full pass and in the epochs until the next
    snapshot. These are: a list of batches; an :class:`gluon_svrg.data.ArrayLoader` whose transform
    does not draw, or whose random numbers can be locked; a ``gluon.data.DataLoader`` whose dataset
    gives the same each time. Its order may change.

    A dataset is tried out, with a few of its samples several times. NumPy's global generator and
    Python's are left as they were; what it draws from MXNet's is drawn. A draw that changes a
    sample only rarely, or other samples only, is not found out.

    Parameters
    ----------
    data : iterable
        The training data.

    Returns
    -------
    str
        A clause that goes on after "is not locked: ", or ''.
    """
    if isinstance(data, (list, tuple)):
        return ""
    if isinstance(data, ArrayLoader):
        return "" if data.can_lock else _DRAWS
    if isinstance(data, gluon.data.DataLoader):
        # MXNet keeps the dataset in a private attribute.
        return "" if _repeats(data._dataset) else _DRAWS
    return (
        f"whether a {type(data).__name__} gives the same samples each time cannot be told; use "
        "gluon_svrg.data.ArrayLoader, or a list of batches"
    )


def _repeats(dataset: Any) -> bool:
    length = len(dataset)
    indices = sorted({length * k // _SAMPLES for k in range(_SAMPLES)}) if length else []
    return all(repeats_exactly(partial(dataset.__getitem__, i), _PROBES) for i in indices)
