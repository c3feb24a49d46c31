"""Which samples a batch has, and in which order batches come: by seed and epoch alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.data.draw import ORDER, PARTITION

Rows: TypeAlias = "slice | NumPyArray"
"""The rows of the arrays that make a batch."""


class Partition:
    """Divides the samples into batches: once, or anew in each epoch.

    Parameters
    ----------
    samples : int
        The number of samples.
    batch_size : int
        The number of samples of each batch but the last.
    last_batch : 'keep' or 'discard'
        What happens to a last batch with fewer samples.
    seed : int or None
        None: batches hold the samples in their order, and come in it.
    is_anew : bool
        Whether each epoch has a partition of its own.

    Raises
    ------
    ValueError
        If `last_batch` is neither, or leaves no batch.
    """

    def __init__(
        self, samples: int, batch_size: int, last_batch: str, seed: int | None, is_anew: bool
    ) -> None:
        if last_batch == "rollover":
            raise ValueError(
                "last_batch='rollover' carries samples over into the next epoch, and here every "
                "epoch has whole batches of its own: use 'keep' or 'discard'"
            )
        if last_batch not in ("keep", "discard"):
            raise ValueError(f"last_batch must be 'keep' or 'discard', got {last_batch!r}")
        if last_batch == "discard" and samples < batch_size:
            raise ValueError(
                f"last_batch='discard' leaves no batch of {batch_size} from {samples} "
                "samples: use a smaller batch_size, or last_batch='keep'"
            )
        self._samples, self._seed, self._is_anew = samples, seed, is_anew
        #: The number of samples in all batches.
        self.num_samples = samples - samples % batch_size if last_batch == "discard" else samples
        self._slices = [
            slice(i, min(i + batch_size, self.num_samples))
            for i in range(0, self.num_samples, batch_size)
        ]
        self._arguments = samples, batch_size, last_batch
        # One tuple: a thread that prefetches sees the epoch with its own rows.
        self._latest: tuple[int, list[NumPyArray]] | None = None

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._slices)

    def with_seed(self, seed: int) -> Partition:
        """Return the same by another seed."""
        return Partition(*self._arguments, seed, self._is_anew)

    def rows(self, epoch: int) -> list[slice] | list[NumPyArray]:
        """Return the rows of each batch of an epoch."""
        if self._seed is None:
            return self._slices
        epoch = epoch if self._is_anew else 0
        latest = self._latest
        if latest is None or latest[0] != epoch:
            key = (PARTITION, epoch) if self._is_anew else (PARTITION,)
            permutation = self._generator(*key).permutation(self._samples)
            # Sorted: a memmap is read in the order of its file.
            latest = self._latest = epoch, [np.sort(permutation[rows]) for rows in self._slices]
        return latest[1]

    def order(self, epoch: int) -> list[int]:
        """Return the indices of the batches in the order in which `epoch` visits them."""
        if self._seed is None:
            return list(range(len(self)))
        order: list[int] = self._generator(ORDER, epoch).permutation(len(self)).tolist()
        return order

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=key))
        )


def check_shuffle(shuffle: object, reshuffle: object) -> None:
    """Raise TypeError or ValueError if these are no arguments of an ArrayLoader."""
    if not isinstance(shuffle, (bool, np.bool_)):
        raise TypeError(f"shuffle must be a bool, got {shuffle!r}: a sampler is not taken")
    if not isinstance(reshuffle, (bool, np.bool_)):
        raise TypeError(
            f"reshuffle must be a bool, got {reshuffle!r}: whether batches are others each epoch"
        )
    if reshuffle and not shuffle:
        raise ValueError("reshuffle=True needs shuffle=True, got False: give both, or neither")
