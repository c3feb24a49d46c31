"""What is checked of rows in other processes, and how a table is made of a part of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator

from provenglm import constants
from provenglm.api.progress import Progress
from provenglm.api.validation import (
    Labels,
    check_features,
    check_labels,
    check_numbers,
    check_offset,
    check_squares,
    check_total,
    check_weights,
    class_weights,
    classes_with_weight,
)
from provenglm.arguments import check_verbose
from provenglm.model.losses import Loss
from provenglm.rows.base import Rows
from provenglm.rows.chunks import Chunks
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows, parts_in
from provenglm.rows.far_parts import FarFeatures, Part, Source
from provenglm.rows.parts import CsrPart
from provenglm.rows.remote import RemoteRows
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_NO_CLASSES = np.empty(0)


class Checked(NamedTuple):
    """The data of a fit, checked.

    Attributes
    ----------
    features : Data
    target, weight, offset : numpy.ndarray
        Of far features there are none here; a single number says that there is an offset.
    total : float
        The sum of the weights, or the number of rows if there are none.
    classes : numpy.ndarray, (K,)
        Of a classifier.
    """

    features: Any
    target: NumPyArray
    weight: NumPyArray | None
    offset: NumPyArray | None
    total: float
    classes: NumPyArray = _NO_CLASSES


class _Look(NamedTuple):
    """What is known of a part without its features."""

    n: int
    total: float
    largest: float
    classes: NumPyArray | None
    class_sums: NumPyArray | None
    has_offset: bool
    version: str


class Kind(NamedTuple):
    """What the features of all parts have in common.

    Attributes
    ----------
    stored : numpy.dtype
    width : int
        The number of columns.
    is_sparse : bool
    names : list of str, optional
        Of the columns.
    """

    stored: np.dtype[Any]
    width: int
    is_sparse: bool
    names: list[str] | None


@dataclass(frozen=True)
class FarRecipe:
    """How a table is made of a part.

    Attributes
    ----------
    name : str
        Of the estimator, for messages.
    sizes : numpy.ndarray
        The number of rows of each part.
    kind : Kind
        Of the features.
    total : float
    outputs : int
        The number of scores of a row.
    classes, weights : numpy.ndarray, (K,), optional
        The labels of a classifier with their class weights.
    """

    name: str
    sizes: NumPyArray
    kind: Kind
    total: float
    outputs: int = 1
    classes: NumPyArray | None = None
    weights: NumPyArray | None = None

    def table(self, part: Part) -> Table:
        """Return the table of a part.

        Raises
        ------
        ValueError
            If its rows are not those that were counted, or not like those of other parts.
        """
        n = int(self.sizes[part.index])
        rows = self._hollow(n) if part.features is None else self._rows(part, n)
        target, weight = self._target(part, n, check_weights(part.weight, n))
        share = np.full(n, 1 / self.total) if weight is None else weight / self.total
        offset = check_offset(part.offset, n, self.outputs)
        start = int(self.sizes[: part.index].sum())
        return Table(rows, target, share, Workers(constants.SMALL), offset, start)

    def _hollow(self, n: int) -> Rows:
        """Return rows that have the shape and the blocks of the features, for calls without."""
        zeros = np.broadcast_to(np.zeros((), self.kind.stored), (n, self.kind.width))
        return DenseRows(zeros)

    def _rows(self, part: Part, n: int) -> Rows:
        """Return the rows of a part. Blocks of sparse rows are dense."""
        features = part.features
        if not (part.is_checked and isinstance(features, np.ndarray)):
            features, kind = _checked(self.name, features)
            _check_like(kind, self.kind)
        if features.shape[0] != n:
            raise ValueError(
                f"X has {features.shape[0]:,} rows, and y had {n:,} when it was read first: give "
                "both the same rows in each part, and data that are the same whenever they are read"
            )
        if isinstance(features, Chunks):
            return DiskRows(parts_in(features))
        return DiskRows([CsrPart(features)]) if issparse(features) else DenseRows(features)

    def _target(
        self, part: Part, n: int, weight: NumPyArray | None
    ) -> tuple[NumPyArray, NumPyArray | None]:
        if self.classes is None or self.weights is None:
            return check_numbers(self.name, part.target, n), weight
        own, codes = check_labels(self.name, part.target, np.empty((n, 0)))
        places = np.minimum(np.searchsorted(self.classes, own), len(self.classes) - 1)
        # A class that is left out has no weight.
        each = np.where(self.classes[places] == own, self.weights[places], 0.0)[codes]
        return places[codes], each if weight is None else each * weight


def far_data(
    estimator: BaseEstimator, source: Source, loss: Loss | None, class_weight: Any = None
) -> Checked:
    """Return the data of a fit on rows in other processes.

    Parameters
    ----------
    estimator : GLMClassifier or GLMRegressor
        Its ``n_features_in_`` and ``feature_names_in_`` are set.
    source : Source
    loss : Loss, optional
        Of a regressor.
    class_weight : dict, 'balanced' or None
        Of a classifier.

    Raises
    ------
    TypeError, ValueError
        As for rows of this process; the message names the part.
    """
    name = type(estimator).__name__
    source.notice = Progress(name, check_verbose(estimator.verbose), 1.0).notice
    found = source.call(_look, name, loss, reads=False)
    sizes = np.array([look.n for look in found], dtype=np.intp)
    there = [k for k in range(len(found)) if sizes[k]]
    if not there:
        raise ValueError(f"X has no rows in any of {len(found)} parts, and {name} needs some")
    _check_versions(source, found)
    for k in there:
        if found[k].has_offset != source.has_offset:
            raise ValueError(
                f"{source.name_of(k)}: there is no offset, and another part has one: give the "
                "offset of all rows"
            )
    (kind,) = source.call(_kind, name, only=there[0])
    width = kind.width
    _set_columns(estimator, width, kind.names)
    total = check_total(float(sum(look.total for look in found)), int(sizes.sum()))
    recipe = FarRecipe(name, sizes, kind, total)
    classes = _NO_CLASSES
    if loss is None:
        recipe = _with_classes(recipe, [found[k] for k in there], class_weight)
        assert recipe.classes is not None
        classes = recipe.classes
    else:
        loss.check_target(np.array([max(found[k].largest for k in there)]), None)
    exact = np.can_cast(kind.stored, np.float32)
    shape = int(sizes.sum()), width
    is_large = shape[0] * (width + 1) > constants.SMALL_DATA
    if kind.is_sparse and width > constants.MOST_WEIGHTS and is_large:
        raise ValueError(
            f"X is sparse with {width:,} columns in other processes, where up to "
            f"{constants.MOST_WEIGHTS:,} are possible: give its rows to one process as a CSR matrix"
        )
    rows = RemoteRows(shape, np.dtype(np.float32 if exact else np.float64))
    features = FarFeatures(source, recipe, rows, kind.stored)
    offset = np.ones(1) if source.has_offset else None
    return Checked(features, np.empty(0), None, offset, recipe.total, classes)


def _with_classes(recipe: FarRecipe, found: list[_Look], class_weight: Any) -> FarRecipe:
    """Return the recipe with the labels of all parts."""
    each = [look.classes for look in found if look.classes is not None]
    kinds = {"number" if one.dtype.kind in "biuf" else one.dtype.kind for one in each}
    if len(kinds) > 1:
        raise ValueError(
            "y has labels of several types in its parts, numbers and text: convert all to text"
        )
    classes, places = np.unique(np.concatenate(each), return_inverse=True)
    sums = np.zeros(len(classes))
    np.add.at(sums, places, np.concatenate([look.class_sums for look in found]))
    labels = Labels(classes, np.arange(len(classes)))
    weights = class_weights(labels, sums, class_weight)
    n = int(recipe.sizes.sum())
    weighted = weights * sums
    each_weight = None if (weighted > 0).all() else weighted
    kept = classes_with_weight(recipe.name, labels, each_weight, n).classes
    outputs = 1 if len(kept) == 2 else len(kept)
    weights = weights[np.isin(classes, kept)]
    total = check_total(float(weights @ sums[np.isin(classes, kept)]), n)
    return replace(recipe, total=total, outputs=outputs, classes=kept, weights=weights)


def _look(part: Part, name: str, loss: Loss | None) -> _Look:
    """Check the targets, weights and offsets of a part, and return what is known of it."""
    given = part.target if part.features is None else part.features
    n = given.shape[0] if hasattr(given, "shape") else len(given)
    kind = part.offset is not None, str(sys.modules["provenglm"].__version__)
    if not n:
        return _Look(0, 0.0, 0.0, None, None, *kind)
    weight = check_weights(part.weight, n)
    total = float(n) if weight is None else float(weight.sum())
    if loss is None:
        labels = check_labels(name, part.target, np.empty((n, 0)))
        sums = np.bincount(labels.codes, weights=weight, minlength=len(labels.classes))
        return _Look(n, total, 0.0, labels.classes, sums.astype(float), *kind)
    target = check_numbers(name, part.target, n)
    if np.abs(target).max() > 1:
        check_squares(target)
    # Only all parts together need a positive number.
    one = np.ones(1)
    loss.check_target(np.append(target, one), None if weight is None else np.append(weight, one))
    counts = target if weight is None else target[weight > 0]
    largest = float(counts.max(initial=0.0))
    return _Look(n, total, largest, None, None, *kind)


def _named(name: str) -> BaseEstimator:
    """Return an estimator of which messages have the name, and nothing else is used."""
    estimator: BaseEstimator = type(name, (BaseEstimator,), {})()
    return estimator


def _kind(part: Part, name: str) -> Kind:
    """Return the kind of a part's features."""
    return _checked(name, part.features)[1]


def _checked(name: str, given: Any) -> tuple[Any, Kind]:
    """Return features as an array, a CSR matrix or Chunks, checked, and their kind."""
    estimator = _named(name)
    features: Any = check_features(estimator, given, reset=True)
    names = list(getattr(estimator, "feature_names_in_", [])) or None
    return features, Kind(features.dtype, features.shape[1], issparse(features), names)


def _check_like(kind: Kind, other: Kind) -> None:
    """Raise a ValueError if the features of a part are not like those of another one."""
    if kind.width != other.width:
        raise ValueError(
            f"X has {kind.width} columns, and another part has {other.width}: give all parts the "
            "same columns"
        )
    if kind.stored != other.stored:
        raise ValueError(
            f"X is of {kind.stored}, and another part is of {other.stored}: convert all parts to "
            "one dtype"
        )
    if kind.names != other.names:
        raise ValueError(
            f"X has the columns {kind.names}, and another part has {other.names}: give all parts "
            "the same columns, in the same order"
        )


def _check_versions(source: Source, found: list[_Look]) -> None:
    here = str(sys.modules["provenglm"].__version__)
    for k, look in enumerate(found):
        if look.version != here:
            raise RuntimeError(
                f"{source.name_of(k)} has provenglm {look.version}, and this process has {here}: "
                "install the same version everywhere"
            )


def _set_columns(estimator: BaseEstimator, width: int, names: list[str] | None) -> None:
    estimator.n_features_in_ = width
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
