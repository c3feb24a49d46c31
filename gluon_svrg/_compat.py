"""Lets MXNet 1.9.1 import on NumPy 1.26 and use every core; keeps the modules' old names.

Imported before MXNet.

MXNet 1.9.1 was written for NumPy below 1.24 and fails to import on later ones, because it reads
aliases that NumPy has removed (MXNet issue 21165). NumPy 1.26 is what current releases of
matplotlib, scikit-learn and onnxruntime need, so the aliases are put back here. NumPy 2 changed
more than names: it is refused.

MXNet also takes half of the machine's cores (``src/engine/openmp.cc`` halves
``omp_get_num_procs`` on x86, as if every core were a hyper-thread) and reads
``OMP_NUM_THREADS`` once, when its library is loaded. While a thread waits for another, OpenMP keeps
its core busy: ``GOMP_SPINCOUNT`` lets it sleep sooner, which leaves the core to others and changes
no result (docs/benchmarks.md has the figures).
"""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import math
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

# Each of these tells libgomp, MXNet's OpenMP, how its threads wait for each other.
_HOW_TO_WAIT = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
# How often a waiting thread looks before it sleeps. libgomp's own 300,000 are a time slice of the
# scheduler on a busy machine; without any, each wait of a small convolution costs a wake-up.
_SPIN = "10000"


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
    """Ask for a thread a core, which soon sleeps while it waits; what the user has set wins."""
    if not mxnet_is_loaded and not _HOW_TO_WAIT & environ.keys():
        environ["GOMP_SPINCOUNT"] = _SPIN
    if "OMP_NUM_THREADS" in environ:
        return
    cores = usable_cores()
    if not mxnet_is_loaded:
        environ["OMP_NUM_THREADS"] = str(cores)
    elif cores > 1:
        warnings.warn(
            f"mxnet was imported before gluon_svrg and uses half of the {cores} cores: import "
            f"gluon_svrg first, or set OMP_NUM_THREADS={cores} before Python starts",
            RuntimeWarning,
            stacklevel=2,
        )


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use, at least 1.

    The affinity of the process, or fewer where a control group (a container) has a limit on the
    processor time. A limit of 1.5 cores counts as 2: with two threads all of it is used, with one
    a third is lost.

    Parameters
    ----------
    root : path
        The folder that has ``proc/self/cgroup`` and ``sys/fs/cgroup``.

    References
    ----------
    Linux, ``Documentation/admin-guide/cgroup-v2.rst`` (``cpu.max``) and
    ``Documentation/scheduler/sched-bwc.rst`` (``cpu.cfs_quota_us``).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min([cores or 1, *map(math.ceil, _limits_of_control_groups(root))]))


def _limits_of_control_groups(root: Path) -> list[float]:
    """Return each limit, in cores, on the control groups that this process is in."""
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return []
    limits = []
    for line in text.splitlines():
        # "0::/path" in version 2, "3:cpu,cpuacct:/path" in version 1.
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for name in ("", "unified") if not controllers else ("cpu", controllers):
            mount = root / "sys/fs/cgroup" / name
            group = mount / path.strip("/")
            # A limit of a group above holds for all below it. Without a namespace of its own, a
            # container sees the path of the host, of which only the last part is mounted: at the
            # mount itself.
            for folder in (group, *group.parents):
                limits += _limit_of_control_group(folder)
                if folder == mount:
                    break
    return limits


def _limit_of_control_group(folder: Path) -> list[float]:
    """Return the limit of one control group, in cores; nothing if it has none."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            words = [w for n in names for w in (folder / n).read_text(encoding="utf-8").split()]
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):  # no such file; "max"
            continue
        if quota > 0 and period > 0:  # -1: no limit
            return [quota / period]
    return []


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
