"""Features in each form that data larger than memory may have."""

from itertools import pairwise

import numpy as np
from provenglm import Chunks
from provenglm.rows import disk
from provenglm.rows.parts import FilePart, MappedPart


def mapped(path, X, **how):
    np.save(path, X)
    return np.load(path, mmap_mode="r", **how)


def cuts(n):
    """Chunks of unequal length, one of them of one row."""
    return [0, 1, n // 3, n // 2, n]


def pieces(X):
    at = cuts(len(X))
    return [X[start:stop] for start, stop in pairwise(at)]


def forms(folder, X):
    """The same rows, by name."""
    paths = []
    for k, piece in enumerate(pieces(X)):
        paths.append(folder / f"{k}.npy")
        np.save(paths[-1], piece)
    return {
        "memmap": mapped(folder / "whole.npy", X),
        "memmap by columns": mapped(folder / "columns.npy", np.asfortranarray(X)),
        "view of a memmap": mapped(folder / "wider.npy", np.hstack([X, X]))[:, : X.shape[1]],
        "chunks": Chunks(pieces(X)),
        "files": Chunks(paths),
        "both": Chunks([paths[0], *pieces(X)[1:]]),
    }


NAMES = ("memmap", "memmap by columns", "view of a memmap", "chunks", "files", "both")


def read_as(features):
    """By which kinds of part."""
    return {type(part) for part in disk.parts_in(features)}


__all__ = ["NAMES", "FilePart", "MappedPart", "cuts", "forms", "mapped", "pieces", "read_as"]
