"""patch_sklearn: put the estimators in the place of scikit-learn's, for code without edits."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sklearn import linear_model

import provenglm.api.to_sklearn  # noqa: F401 (it must see scikit-learn's own classes)
from provenglm.sklearn_names import classifiers, regressors, searches

__all__ = ["patch_sklearn", "unpatch_sklearn"]

_CLASSES = {
    name: getattr(module, name)
    for module in (classifiers, regressors, searches)
    for name in module.__all__
}

_replaced: dict[str, Any] = {}
"""scikit-learn's own classes, while they are replaced."""


class _Patch:
    """What `patch_sklearn` returns: as a context manager, it ends the replacement at its end."""

    def __enter__(self) -> _Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unpatch_sklearn()


def patch_sklearn() -> _Patch:
    """Let ``from sklearn.linear_model import Lasso`` import this package's Lasso.

    It replaces the twelve names that this package has in ``sklearn.linear_model``, until
    :func:`unpatch_sklearn`, or the end of a ``with`` statement. A name that has been imported
    before is not replaced, so call it before the imports of ``sklearn.linear_model``.

    Returns
    -------
    context manager
        For ``with patch_sklearn():``.
    """
    for name, own in _CLASSES.items():
        _replaced.setdefault(name, getattr(linear_model, name))
        setattr(linear_model, name, own)
    return _Patch()


def unpatch_sklearn() -> None:
    """Undo :func:`patch_sklearn`. Names that were imported in between stay as they are."""
    while _replaced:
        name, original = _replaced.popitem()
        setattr(linear_model, name, original)
