"""Parameters that an optimizer exempts, by their names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from gluon_svrg.optimizer.optimizer import Optimizer

# The names that MXNet's LARS exempts. The paper scales every layer.
EXEMPT = r"(gamma|beta|bias)$"

Exempt: TypeAlias = str | re.Pattern[str] | Callable[[str], bool] | Collection[str] | None
"""A regular expression that is searched for in a name, a predicate of a name, names; or none."""

_SHOWN = 5  # names in a warning


class ExemptByName(Optimizer):
    """An optimizer that treats some parameters apart: those whose names `exempt` fits."""

    _unchecked_exempt: Exempt  # looked at in the first step, and None from then on
    _is_exempt: Callable[[str], object]

    def is_exempt(self, name: str) -> bool:
        """Return whether the parameter called `name` is exempt."""
        return bool(self._is_exempt(name))

    def __getstate__(self) -> dict[str, Any]:
        # A lambda has no pickle, and `gluon.Trainer.save_states` pickles its optimizer.
        state = super().__getstate__()
        is_predicate = not isinstance(
            getattr(self._is_exempt, "__self__", None), re.Pattern | frozenset
        )
        if is_predicate and state["idx2name"]:
            exempt = frozenset(filter(self.is_exempt, state["idx2name"].values()))
            state.update(_is_exempt=exempt.__contains__, _unchecked_exempt=None)
        return state

    def _set_exempt(self, exempt: Exempt, warns: bool) -> None:
        """Take `exempt`; `warns` in the first step if it fits no parameter."""
        if isinstance(exempt, str | re.Pattern):
            self._is_exempt = _compiled(exempt).search
        elif callable(exempt):
            self._is_exempt = exempt
        elif exempt is not None and not isinstance(exempt, Collection):
            raise ValueError(
                f"exempt must be a regular expression, a predicate of a name, a collection of "
                f"names, or None for no parameters, got {exempt!r}"
            )
        else:
            self._is_exempt = frozenset(exempt or ()).__contains__
        self._unchecked_exempt = exempt if warns else None

    def _check_exempt(self, indices: Sequence[int]) -> None:
        """Warn, in the first step, if `exempt` fits no parameter."""
        if self._unchecked_exempt is not None:
            self._warn_if_no_match(indices)

    def _warn_if_no_match(self, indices: Sequence[int]) -> None:
        exempt, self._unchecked_exempt = self._unchecked_exempt, None
        known = {*self.param_dict, *self.idx2name} or indices
        names = [self._name(index) for index in known]
        if isinstance(exempt, str | re.Pattern):
            pattern = re.compile(exempt).pattern
            given = "" if any(map(self.is_exempt, names)) else f"the regular expression {pattern!r}"
        elif callable(exempt):
            given = "" if any(map(self.is_exempt, names)) else f"the predicate {exempt!r}"
        else:
            unknown = sorted(set(exempt or ()).difference(names), key=str)
            given = ", ".join(map(repr, unknown[:_SHOWN])) + ", ..." * (len(unknown) > _SHOWN)
        if given:
            shown = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN)
            warnings.warn(
                f"{type(self).__name__}(exempt=...): no parameter matches {given}; the parameters "
                f"are {shown}. Give whole names, or a regular expression such as {EXEMPT!r}, which "
                "is searched for in each name",
                UserWarning,
                stacklevel=2,
            )


def _compiled(exempt: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(exempt)
    except re.error as e:
        raise ValueError(
            f"exempt={exempt!r} is no regular expression ({e}): {EXEMPT!r}, for example, is one"
        ) from e
