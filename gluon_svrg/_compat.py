"""Lets MXNet 1.9.1 import on today's Python and NumPy.

Imported before MXNet.

MXNet 1.9.1 was written for NumPy below 1.24 and fails to import on later ones, because it reads
names that NumPy has removed (MXNet issue 21165), and for Python below 3.12, because it imports
``distutils``. What is missing is put back here; what NumPy has stays as it is, ``numpy.bool`` of
NumPy 2 above all, which is a type of its own there. That NumPy 2 prints ``np.int64(2)`` is dealt
with in ``_mxnet/``.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
from gluon_svrg import _cores
from gluon_svrg._typing import NumPyArray

MXNET_TO_INSTALL = (
    "mxnet==1.9.1"
    if sys.version_info < (3, 13)
    else "--no-deps mxnet==1.9.1"  # its metadata ask for NumPy 1, which has no wheel there
)
"""What ``pip install`` gets MXNet with on this Python."""

# The names that MXNet 1.9.1 and gluoncv 0.10.5 read, as NumPy 1 had them, but for the functions.
_VALUES: dict[str, object] = {
    # Not numpy.bool_ and so on: each was the built-in itself.
    "bool": bool,
    "int": int,
    "float": float,
    "object": object,
    "Inf": float("inf"),
    "PINF": float("inf"),
    "NINF": float("-inf"),
    "NAN": float("nan"),
    "NaN": float("nan"),
    "PZERO": 0.0,
    "NZERO": -0.0,
}
_NEW_NAMES = {
    "alltrue": "all",
    "sometrue": "any",
    "product": "prod",
    "round_": "round",
    "trapz": "trapezoid",
}
# Read by the import of mxnet.numpy alone.
_FINANCIAL = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")

SLOW_TO_IMPORT = {"sklearn", "scipy.stats"}
"""What MXNet's import takes if it is there, and does as well without. It is more than half of its
time: 2.9 of 5.2 s. scikit-learn is a base class of the retired ``mxnet.model.FeedForward`` and of
nothing else; ``_mxnet/lazy_scipy.py`` gives ``scipy.stats`` back."""

WITHOUT_MXNET = {"_compat", "_cores", "_lazy", "_typing", "arguments", "class_names", "files"}
WITHOUT_MXNET |= {"linear", "svrg", "svrg.rule"}
WITHOUT_MXNET |= {"reporting", "reporting.logger", "reporting.text_table", "reporting.verbosity"}
"""The modules that import no MXNet, without the package's name."""


SIZES_OF_JOBS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""The environment of a worker says how many there are: by MPICH and Slurm, by Open MPI."""


def missing_for(module: str) -> str | None:
    """Return in a sentence what `module` of this package needs and is not installed; else None."""
    name = module.partition(".")[2]
    package = name.partition(".")[0]
    if package == "linear" and not is_installed("provenglm"):
        return (
            "gluon_svrg.linear needs provenglm, which is not installed: `pip install ./linear` in "
            "a checkout of gluon-svrg"
        )
    if not name or name in WITHOUT_MXNET or (package == "linear" and name != "linear.to_gluon"):
        return None
    if not is_installed("mxnet"):
        return (
            "gluon_svrg needs MXNet 1.9.1, which is not installed for Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}: `pip install {MXNET_TO_INSTALL}`"
        )
    return _missing_distutils()


def is_installed(package: str) -> bool:
    """Return whether `package` can be imported, without doing so."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def _missing_distutils() -> str | None:
    """Make ``distutils`` importable where Python has none; return why it cannot be, or None."""
    if "_distutils_hack" in sys.modules and "distutils" not in sys.modules:
        # Its finder, of setuptools, would import setuptools while Python holds the lock on all
        # imports, for which another thread may wait that holds a module's.
        with suppress(ImportError):
            importlib.import_module("setuptools")
    if not is_installed("distutils"):
        try:
            importlib.import_module("setuptools")
        except ImportError:
            return (
                "MXNet 1.9.1 imports distutils, which Python 3.12 removed and setuptools brings "
                "back, and setuptools is not installed: `pip install setuptools`"
            )
    return None


def removed_names(module: ModuleType) -> dict[str, object]:
    """Return what NumPy's `module` once had and MXNet 1.9.1 or gluoncv 0.10.5 read.

    The functions are new ones: MXNet keeps its own version of each NumPy function by the function
    itself, so that a second name of ``numpy.any`` would exchange what is called for the first.
    """
    names = dict(_VALUES)
    for old, new in _NEW_NAMES.items():
        names[old] = _function_by_another_name(module, old, new)
    for old in _FINANCIAL:
        names[old] = _function_that_is_gone(old)

    def in1d(ar1: NumPyArray, ar2: NumPyArray, **options: bool) -> NumPyArray:
        found: NumPyArray = module.isin(module.ravel(ar1), ar2, **options)
        return found

    def msort(a: NumPyArray) -> NumPyArray:
        in_order: NumPyArray = module.sort(a, axis=0)
        return in_order

    compat = ModuleType("numpy.compat")
    vars(compat)["basestring"] = str
    return names | {"in1d": in1d, "msort": msort, "compat": compat}


def restore_numpy_names(module: ModuleType) -> list[str]:
    """Put the removed names back into NumPy's `module`; return those that were missing.

    Those that are there stay.
    """
    names = removed_names(module)
    missing = [name for name in names if not _has(module, name)]
    vars(module).update({name: names[name] for name in missing})
    return missing


def _has(module: ModuleType, name: str) -> bool:
    """Return whether `module` has `name`, perhaps with a warning that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hasattr(module, name)


def _function_by_another_name(module: ModuleType, old: str, new: str) -> Callable[..., object]:
    def function(*args: object, **options: object) -> object:
        return getattr(module, new)(*args, **options)

    function.__name__ = function.__qualname__ = old
    return function


def _function_that_is_gone(name: str) -> Callable[..., object]:
    def function(*args: object, **options: object) -> object:
        raise NotImplementedError(
            f"numpy.{name} was removed in NumPy 1.20: the package numpy-financial has it"
        )

    function.__name__ = function.__qualname__ = name
    return function


def version() -> str:
    """Return this package's version, which stands in ``pyproject.toml`` alone.

    An installation has a copy of it. A checkout that is on the path without being installed has the
    file itself.
    """
    try:
        return importlib.metadata.version("gluon-svrg")
    except importlib.metadata.PackageNotFoundError:
        return version_of_checkout(Path(__file__).parent.parent)


def version_of_checkout(folder: Path) -> str:
    """Return the version in the ``pyproject.toml`` of `folder`; ``"unknown"`` without the file."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    # Not by tomllib, which Python 3.10 does not have.
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    return found[1] if found else "unknown"


def watch_workers() -> None:
    """Let one of several workers say so if a `gluon.Trainer`, made at any time, trains alone.

    Named by a string, since it is in a layer above.
    """
    if any(int(os.environ.get(name) or 0) > 1 for name in SIZES_OF_JOBS):
        importlib.import_module(f"{__package__}.workers.process")


@contextmanager
def _sigsegv_kept() -> Iterator[None]:
    """Put back the handler of SIGSEGV, perhaps faulthandler's, after the block.

    MXNet's own handler leaves by ``exit(255)``, so that nothing (a shell, the launcher, a queue)
    could see how the process has died.
    """
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # a struct has 152 bytes
    libc.sigaction(signal.SIGSEGV, None, action)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGSEGV, action, None)


class WhatIsNeeded(MetaPathFinder):
    """Says what is not installed, and looks after MXNet's import. The first to be asked.

    It finds nothing itself.

    Attributes
    ----------
    importing_mxnet : int or None
        The thread that imports MXNet now.
    """

    importing_mxnet: int | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return MXNet's spec, with a loader around its own; None for any other module.

        Raises
        ------
        ImportError
            If `fullname` is in this package and needs what is not installed; if MXNet, while it is
            imported, asks for what is `SLOW_TO_IMPORT`.
        """
        if fullname.partition(".")[0] == __package__:
            if (sentence := missing_for(fullname)) is not None:
                raise ImportError(sentence, name=fullname)
        elif fullname == "mxnet":
            others = (finder for finder in sys.meta_path if finder is not self)
            specs = (finder.find_spec(fullname, path, target) for finder in others)
            spec = next(filter(None, specs), None)
            if spec is not None and spec.loader is not None:
                spec.loader = AroundMXNet(spec.loader)
            return spec
        elif fullname in SLOW_TO_IMPORT and self.importing_mxnet == threading.get_ident():
            raise ModuleNotFoundError(f"{fullname} is not for MXNet's import", name=fullname)
        return None


class AroundMXNet(Loader):
    """MXNet's own loader, with what has to be done before and after every import of MXNet.

    Before: the cores, and ``distutils``; and what is slow is left out. Not as soon as this package
    is imported, since a process that never needs MXNet shall not hand ``OMP_NUM_THREADS`` on:
    joblib takes it as the user's word and gives each of its workers as many threads. After: what
    was left out is given back, and what is wrong with NumPy 2 is put right (``_mxnet``, named by a
    string, since it is in a layer above). The handler of SIGSEGV stays the one from before.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # asked for by copy and pickle before it is there
            raise AttributeError(name)
        return getattr(self.loader, name)  # its source, its data files

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let MXNet's own loader make the module."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Prepare, let MXNet's own loader run the module, and put right what it did."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        if (sentence := _missing_distutils()) is not None:
            raise ImportError(sentence, name="mxnet")
        _cores.use_every_core(os.environ, mxnet_is_loaded=False)
        WhatIsNeeded.importing_mxnet = threading.get_ident()
        try:
            with _sigsegv_kept():
                self.loader.exec_module(module)
        finally:
            WhatIsNeeded.importing_mxnet = None
        importlib.import_module(f"{__package__}._mxnet")
        watch_workers()


if not any(isinstance(finder, WhatIsNeeded) for finder in sys.meta_path):
    sys.meta_path.insert(0, WhatIsNeeded())
NAMES_PUT_BACK = restore_numpy_names(numpy)
if sys.modules.get("mxnet") is not None:
    _cores.use_every_core(os.environ, mxnet_is_loaded=True)
