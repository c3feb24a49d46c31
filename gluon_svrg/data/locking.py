"""Whether a sample is the same in the snapshot's pass and in the epochs until the next snapshot."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.probing import repeats_exactly
from mxnet import gluon
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn

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
        # MXNet keeps dataset and batchify_fn in private attributes.
        length = _length_of(data._dataset)
        if length is None:
            return (
                f"whether a {type(data._dataset).__name__}, which has no length, gives the same "
                "samples each time cannot be told"
            )
        return "" if _repeats(data._dataset, length) and _batchify_repeats(data) else _DRAWS
    return (
        f"whether a {type(data).__name__} gives the same samples each time cannot be told; use "
        "gluon_svrg.data.ArrayLoader, or a list of batches"
    )


def _batchify_repeats(data: Any) -> bool:
    """Return whether a batchify_fn of the user's own gives the same batch each time."""
    if data._batchify_fn in (default_batchify_fn, default_mp_batchify_fn):
        return True
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    indices: list[int] = next(iter(data._batch_sampler), [])
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    return not indices or repeats_exactly(
        lambda: data._batchify_fn([data._dataset[i] for i in indices]), _PROBES
    )


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # the latter is what MXNet's Dataset raises
        return None


def _repeats(dataset: Any, length: int) -> bool:
    indices = sorted({length * k // _SAMPLES for k in range(_SAMPLES)}) if length else []
    return all(repeats_exactly(partial(dataset.__getitem__, i), _PROBES) for i in indices)
