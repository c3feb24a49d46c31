"""The first batches of some data."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any

from gluon_svrg.arguments import check_integer
from gluon_svrg.data.loader import ArrayLoader


def first_batches(data: Iterable[Any], number: int) -> list[Any]:
    """Return the first batches as a list: for a dry run, or to see whether a net can overfit them.

    ::

        estimator.fit(first_batches(train_data, 3), first_batches(val_data, 3), epochs=1)
        estimator.fit(first_batches(train_data, 1), epochs=200)

    Parameters
    ----------
    data : iterable
        Training or validation data. Of an ArrayLoader, the first batches of its epoch 0, with the
        augmentation of that epoch, or of the draw that the loader is locked to.
    number : int
        How many; fewer are returned where there are fewer.

    Raises
    ------
    TypeError, ValueError
        If `number` is no positive integer.
    """
    check_integer("number", number, 1, "as many batches are taken")
    if isinstance(data, ArrayLoader):
        data = loader = copy.copy(data)  # which leaves the epoch of the loader as it is
        loader.set_epoch(0)
    return list(itertools.islice(data, number))
