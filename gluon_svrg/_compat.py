"""Lets MXNet 1.9.1 import on NumPy 1.26 and use every core; keeps the modules' old names.

Imported before MXNet.

MXNet 1.9.1 was written for NumPy below 1.24 and fails to import on later ones, because it reads
aliases that NumPy has removed (MXNet issue 21165). NumPy 1.26 is what current releases of
matplotlib, scikit-learn and onnxruntime need, so the aliases are put back here. NumPy 2 changed
more than names: it is refused.

MXNet also takes half of the machine's cores (``src/engine/openmp.cc`` halves
``omp_get_num_procs`` on x86, as if every core were a hyper-thread) and reads
``OMP_NUM_THREADS`` once, when its library is loaded.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import os
import sys
import tomllib
import warnings
from collections.abc import MutableMapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy

NumPyArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""An array of any shape and dtype: NumPy 1.x has no defaults for the two."""

# The aliases that MXNet 1.9.1 and gluoncv 0.10.5 read. Each was the Python built-in of that name.
_REMOVED_ALIASES = ("bool", "float", "int", "object")


def check_numpy_version(version: str) -> None:
    """Raise ImportError, with the way out, where `version` is one that MXNet 1.9.1 cannot use."""
    if int(version.split(".")[0]) >= 2:
        raise ImportError(
            f"gluon_svrg needs NumPy 1.x, found NumPy {version}: MXNet 1.9.1 does not run on "
            "NumPy 2; install one that it runs on with `pip install numpy==1.26.4`"
        )


def restore_numpy_aliases(module: ModuleType) -> None:
    """Put the removed aliases back into NumPy's `module`; those that are there stay."""
    for name in _REMOVED_ALIASES:
        # vars(), not hasattr(): NumPy warns when a removed alias is asked for.
        if name not in vars(module):
            setattr(module, name, getattr(builtins, name))


def use_every_core(environ: MutableMapping[str, str], mxnet_is_loaded: bool) -> None:
    """Ask for one thread a core through `environ`; a user's own ``OMP_NUM_THREADS`` wins."""
    if "OMP_NUM_THREADS" in environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not mxnet_is_loaded:
        environ["OMP_NUM_THREADS"] = str(cores or 1)
    elif cores and cores > 1:
        warnings.warn(
            f"mxnet was imported before gluon_svrg and uses half of the {cores} cores: import "
            f"gluon_svrg first, or set OMP_NUM_THREADS={cores} before Python starts",
            RuntimeWarning,
            stacklevel=2,
        )


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
    return str(tomllib.loads(text)["project"]["version"])


MOVED = {
    "batches": "run.batch_processor",
    "cpu_tuning": "machine.cpu_tuning",
    "encoding": "checkpoint.encoding",
    "history": "run.history",
    "metric_state": "checkpoint.metrics",
    "monitor": "run.monitor",
    "resume": "checkpoint.contents",
    "states": "checkpoint.optimizer_states",
    "tuning": "machine.cpu_tuning",
    "data.counter": "data.draw",
    "data.limit": "data.training_data",
    "data.locking": "data.training_data",
    "data.soft_labels": "data.transforms.labels",
    "data.transform": "data.transforms.base",
    "handlers.full_pass": "svrg.interval",
    "handlers.giving_up": "svrg.giving_up",
    "handlers.update": "handlers.step",
    "svrg.finite": "arrays.finite",
    "svrg.fused": "arrays.fused",
}
"""Where the modules of versions 0.1 and 0.2 are now, both without the package's name."""


class OldModules(MetaPathFinder, Loader):
    """Finds a module by its name in version 0.1, and warns. The last to be asked.

    The old name is another one for the same module: its classes are the same classes.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name; None for any other."""
        package, _, name = fullname.partition(".")
        if package != __package__ or name not in MOVED:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty one; :meth:`exec_module` puts another in its place."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that has moved in the place of `module`."""
        new = f"{__package__}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(
            f"{module.__name__} is {new} since version 0.2: import it by that name",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[module.__name__] = importlib.import_module(new)


check_numpy_version(numpy.__version__)
if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
    sys.meta_path.append(OldModules())
restore_numpy_aliases(numpy)
use_every_core(os.environ, mxnet_is_loaded="mxnet" in sys.modules)
