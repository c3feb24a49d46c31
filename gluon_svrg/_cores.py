"""The cores that this process may use, and MXNet's threads on them.

MXNet uses half of the machine's cores by default (``src/engine/openmp.cc`` halves
``omp_get_num_procs`` on x86, as if every core were a hyper-thread). It reads ``OMP_NUM_THREADS``
once, when its library is loaded. While a thread waits for another, OpenMP keeps its core busy:
``GOMP_SPINCOUNT`` lets it sleep sooner, which leaves the core to other processes and changes no
result (docs/benchmarks/threads.md has the figures).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import MutableMapping
from pathlib import Path

# Each of these tells libgomp, MXNet's OpenMP library, how its threads wait for each other.
_HOW_TO_WAIT = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
# How often a waiting thread polls before it sleeps. libgomp's default, 300,000, takes a whole time
# slice of the scheduler on a busy machine. With 0, each wait of a small convolution costs a
# wake-up.
_SPIN = "10000"


def use_every_core(environ: MutableMapping[str, str], mxnet_is_loaded: bool) -> None:
    """Set one thread per core, which soon sleeps while it waits; the user's own values stay."""
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

    It is the process's CPU affinity, or less if a control group (a container) limits the CPU time.
    A limit of 1.5 cores counts as 2: two threads use all of it, and one thread two thirds.

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
        text = os.fsdecode((root / "proc/self/cgroup").read_bytes())
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
