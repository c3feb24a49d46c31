"""What MXNet's import was made to leave out (`_compat.SLOW_TO_IMPORT`), on its first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mxnet as mx
from gluon_svrg._compat import is_installed
from mxnet import test_utils


class LazyModule(ModuleType):
    """A module that is imported when something of it is asked for.

    Not :class:`importlib.util.LazyLoader`, which would stand in ``sys.modules`` for everybody, and
    which two threads may not ask at once in older versions of Python.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of any module, by inspection for instance
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Let it be pickled as what it stands for, as far as that goes for modules."""
        return importlib.import_module, (self.__name__,)


def give_back_what_is_slow() -> None:
    """Let MXNet have ``scipy.stats`` where it is installed.

    Quantization asks whether it is there; tests of random numbers call it.
    """
    for module, name in ((mx.contrib.quantization, "stats"), (test_utils, "ss")):
        if vars(module)[name] is None and is_installed("scipy"):
            vars(module)[name] = LazyModule("scipy.stats")


give_back_what_is_slow()
