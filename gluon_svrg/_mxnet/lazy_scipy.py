"""LazyModule: gives MXNet ``scipy.stats`` on first use, which its import was made to skip."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mxnet as mx
from gluon_svrg._compat import is_installed
from mxnet import test_utils


class LazyModule(ModuleType):
    """A module that is imported when one of its attributes is read.

    Not :class:`importlib.util.LazyLoader`: that one would be in ``sys.modules`` for every importer,
    and is not safe for two threads in older versions of Python.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of any module, by inspection for instance
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Pickle it as the name of the module."""
        return importlib.import_module, (self.__name__,)


def give_back_what_is_slow() -> None:
    """Give MXNet ``scipy.stats``, if it is installed.

    MXNet's quantization and its tests of random numbers use it.
    """
    for module, name in ((mx.contrib.quantization, "stats"), (test_utils, "ss")):
        if vars(module)[name] is None and is_installed("scipy"):
            vars(module)[name] = LazyModule("scipy.stats")


give_back_what_is_slow()
