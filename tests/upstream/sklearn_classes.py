"""A plugin of pytest that puts this package's classes in the place of scikit-learn's."""

from collections.abc import Iterator

import provenglm
import pytest
from provenglm.sklearn_names.base import SklearnNamed
from sklearn import linear_model

# Tests ask the models of scikit-learn for their loss, a private method, to compute the objective.
for name in ("PoissonRegressor", "GammaRegressor", "TweedieRegressor"):
    getattr(provenglm, name)._get_loss = getattr(linear_model, name)._get_loss

provenglm.patch_sklearn()

_check_arguments = SklearnNamed._check_arguments
_fits: list[str] = []


def _counted(self: SklearnNamed) -> None:
    _fits.append(type(self).__name__)
    _check_arguments(self)


SklearnNamed._check_arguments = _counted  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note whether a test fits one of this package's classes."""
    del _fits[:]
    try:
        return (yield)
    finally:
        item.user_properties.append(("fits", len(_fits)))
