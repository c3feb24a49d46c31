"""Make MXNet 1.9.1 importable on today's Python and NumPy. Imported before MXNet.

MXNet 1.9.1 reads names that NumPy 1.24 has removed (MXNet issue 21165), and imports ``distutils``,
which Python 3.12 has removed. This module puts them back if they are missing. Names that NumPy has
stay as they are: ``numpy.bool`` of NumPy 2 is another type. ``_mxnet/numpy_2.py`` repairs what
MXNet does wrong with NumPy 2 after its import.
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
"""The arguments of ``pip install`` for MXNet on this Python."""

# The names that MXNet 1.9.1 and gluoncv 0.10.5 read, as NumPy 1 had them; functions are below.
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
"""Modules that MXNet imports if they are installed, and does not need. They take more than half of
the time of its import: 2.9 of 5.2 s. scikit-learn is for the retired ``mxnet.model.FeedForward``
alone; ``_mxnet/lazy_scipy.py`` imports ``scipy.stats`` when it is used."""

WITHOUT_MXNET = {"_compat", "_cores", "_lazy", "_typing", "arguments", "class_names", "files"}
WITHOUT_MXNET |= {"linear", "svrg", "svrg.rule"}
WITHOUT_MXNET |= {"reporting", "reporting.logger", "reporting.text_table", "reporting.verbosity"}
"""The modules that import no MXNet, without the package's name."""


SIZES_OF_JOBS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""The environment variables with the number of workers, of MPICH and Slurm, and of Open MPI."""


def missing_for(module: str) -> str | None:
    """Return a sentence on what `module` of this package needs and is not installed, or None."""
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
        # The finder of setuptools would import setuptools while Python holds the lock on all
        # imports; another thread that holds a module's lock may wait for it: a deadlock.
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
    """Return the names that NumPy has removed and MXNet 1.9.1 or gluoncv 0.10.5 read.

    The functions are new objects: MXNet finds its own version of a NumPy function by the function
    object, so an alias of ``numpy.any`` would change what MXNet calls for ``numpy.any``.
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
    """Put the removed names back into NumPy's `module`, if they are missing; return these."""
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
    """Return this package's version, which is written in ``pyproject.toml`` only.

    It is read from the installation's metadata, or from the file in a checkout that is on the path
    without being installed.
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
    # Python 3.10 has no tomllib.
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    return found[1] if found else "unknown"


def watch_workers() -> None:
    """In a job of several workers, let a plain `gluon.Trainer` warn that it trains alone.

    Imported by name, because the module is in a layer above.
    """
    if any(int(os.environ.get(name) or 0) > 1 for name in SIZES_OF_JOBS):
        importlib.import_module(f"{__package__}.workers.process")


@contextmanager
def _keeping_sigsegv_handler() -> Iterator[None]:
    """Restore the handler of SIGSEGV, for example faulthandler's, after the block.

    MXNet's own handler calls ``exit(255)``, so a shell, the launcher or a queue would not see that
    a signal has killed the process.
    """
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # a struct has 152 bytes
    libc.sigaction(signal.SIGSEGV, None, action)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGSEGV, action, None)


class ImportHook(MetaPathFinder):
    """Raises a clear error if a package is not installed, and prepares the import of MXNet.

    The first finder in ``sys.meta_path``. It finds no module itself.

    Attributes
    ----------
    importing_mxnet : int or None
        The thread that imports MXNet now.
    """

    importing_mxnet: int | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return MXNet's spec, with a :class:`MXNetLoader`; None for any other module.

        Raises
        ------
        ImportError
            If `fullname` is in this package and needs a package that is not installed; if MXNet's
            import asks for a module in `SLOW_TO_IMPORT`.
        """
        if fullname.partition(".")[0] == __package__:
            if (sentence := missing_for(fullname)) is not None:
                raise ImportError(sentence, name=fullname)
        elif fullname == "mxnet":
            others = (finder for finder in sys.meta_path if finder is not self)
            specs = (finder.find_spec(fullname, path, target) for finder in others)
            spec = next(filter(None, specs), None)
            if spec is not None and spec.loader is not None:
                spec.loader = MXNetLoader(spec.loader)
            return spec
        elif fullname in SLOW_TO_IMPORT and self.importing_mxnet == threading.get_ident():
            raise ModuleNotFoundError(f"{fullname} is not for MXNet's import", name=fullname)
        return None


class MXNetLoader(Loader):
    """Loads MXNet by its own loader, with preparations before and repairs after it.

    Before: it sets the number of threads, makes ``distutils`` importable, and hides the modules in
    `SLOW_TO_IMPORT`. This does not happen when this package is imported, because a process that
    never needs MXNet must not set ``OMP_NUM_THREADS`` for its children: joblib would give each of
    its workers that many threads. After: it imports ``_mxnet``, by name because it is in a layer
    above, which repairs MXNet. The handler of SIGSEGV stays the same.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # copy and pickle ask for it before __init__
            raise AttributeError(name)
        return getattr(self.loader, name)  # its source, its data files

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let MXNet's own loader make the module."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Prepare the import, let MXNet's own loader run the module, and repair MXNet."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        if (sentence := _missing_distutils()) is not None:
            raise ImportError(sentence, name="mxnet")
        _cores.use_every_core(os.environ, mxnet_is_loaded=False)
        ImportHook.importing_mxnet = threading.get_ident()
        try:
            with _keeping_sigsegv_handler():
                self.loader.exec_module(module)
        finally:
            ImportHook.importing_mxnet = None
        importlib.import_module(f"{__package__}._mxnet")
        watch_workers()


if not any(isinstance(finder, ImportHook) for finder in sys.meta_path):
    sys.meta_path.insert(0, ImportHook())
NAMES_PUT_BACK = restore_numpy_names(numpy)
if sys.modules.get("mxnet") is not None:
    _cores.use_every_core(os.environ, mxnet_is_loaded=True)
