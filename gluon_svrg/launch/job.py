"""Run a script on several workers, and restart it after a failure."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gluon_svrg import _compat
from gluon_svrg.launch.attempt import Attempt, Outcome, become_subreaper
from gluon_svrg.launch.hosts import is_local, wait_for_hosts, worker_count
from gluon_svrg.launch.output import PREFIX, log
from gluon_svrg.launch.signals import Signals
from gluon_svrg.workers.supervision import ATTEMPT, PROGRESS_TIMEOUT, SUPERVISED

UNAVAILABLE = 69
"""The exit code if too few hosts are available (EX_UNAVAILABLE)."""
_QUICK_FAILURE = 20.0
"""If the script fails twice within this many seconds after its start, with the same message, it is
not restarted again."""
_QUEUE_VARIABLES = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
"""Environment variables of job schedulers whose hosts mpiexec finds by itself."""
_CHECKED_START = '"$0" -c "import mpi4py, gluon_svrg.launch.worker" || kill -9 $$; exec "$0" "$@"'
"""A shell command that starts a worker, or kills itself if the host lacks Python or the package:
mpiexec would wait forever after a normal exit before MPI_Init."""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    command: list[str]
    workers: int
    max_restarts: int = 3
    progress_timeout: float = 300.0
    threads: int | None = None
    log_dir: Path | None = None
    hosts: Mapping[str, int] = field(default_factory=dict)
    ssh: str = "ssh"
    wait: float = 300.0
    min_workers: int | None = None


def find_mpiexec() -> str:
    """Return the path of MPICH's mpiexec, in this Python environment or else in PATH.

    Raises
    ------
    ValueError
        If mpiexec or mpi4py is missing.
    """
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    found = shutil.which("mpiexec.hydra", path=path)
    if found is None or not _compat.is_installed("mpi4py"):
        missing = "mpiexec of MPICH" if found is None else "mpi4py"
        raise ValueError(
            f"several workers need mpi4py and MPICH, and {missing} is not installed: "
            "pip install 'gluon-svrg[workers]'"
        )
    return found


class Job:
    """A script on several workers, which is restarted when it fails.

    Parameters
    ----------
    options : Options
        The options of the command line.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mpiexec = find_mpiexec() if self._is_mpi else ""
        if not all(map(is_local, options.hosts)) and shutil.which(options.ssh) is None:
            raise ValueError(
                f"--ssh {options.ssh!r} is not installed, but the hosts need it: install "
                "openssh-client, or pass another program"
            )

    @property
    def _is_mpi(self) -> bool:
        return self._options.workers > 1 or bool(self._options.hosts)

    def run(self) -> int:
        """Run the script, with restarts if needed, and return the exit code."""
        become_subreaper(ctypes.CDLL(None).prctl)
        signals = Signals()
        restarts = self._options.max_restarts
        last_failure = ""
        for number in itertools.count():
            hosts = self._available_hosts(is_first=number == 0)
            if hosts is None:
                return UNAVAILABLE
            begin = time.monotonic()
            outcome = self._run_attempt(number, hosts, signals)
            if signals.received:
                if outcome.code and outcome.is_script_failure:
                    log(outcome.message)
                log(
                    "stopped by a signal; the same command continues from the newest checkpoint "
                    "if the script calls fit with resume='auto'"
                )
                return 128 + signals.received[0]
            if outcome.code == 0:
                return 0
            is_quick = outcome.is_script_failure and time.monotonic() - begin < _QUICK_FAILURE
            failure = _without_numbers(outcome.message) if is_quick else ""
            if number == restarts or (failure and failure == last_failure):
                return self._give_up(outcome, number)
            last_failure = failure
            log(outcome.message, is_cause=True)
            log(f"restarting all workers: restart {number + 1} of at most {restarts}")
        raise AssertionError("a count has no end")

    def _give_up(self, outcome: Outcome, number: int) -> int:
        if number < self._options.max_restarts:
            reason = "not restarted, because it failed twice in the same way"
        elif number == 0:
            reason = "not restarted, because --max-restarts is 0"
        else:
            reason = f"not restarted, because --max-restarts {number} is reached"
        log(reason)
        log(outcome.message, is_cause=True)
        return outcome.code

    def _available_hosts(self, *, is_first: bool) -> dict[str, int] | None:
        """Return the available hosts with their slots; None if there are too few."""
        options = self._options
        hosts = dict(options.hosts)
        # Waiting for a host does not count as a restart.
        reasons = wait_for_hosts([*hosts], options.ssh, options.wait)
        for host, reason in reasons.items():
            log(f"{host} cannot start workers: {reason}")
            del hosts[host]
        if not reasons:
            return hosts
        workers = worker_count(hosts, options.hosts, options.workers)
        min_workers = options.min_workers
        if is_first or min_workers is None or workers < max(1, min_workers):
            log(
                f"{len(hosts)} of {len(options.hosts)} hosts can start workers after "
                f"{options.wait:g} s (--wait)"
                + ("" if min_workers is None else f": {workers} of --min-workers {min_workers}"),
                is_cause=True,
            )
            return None
        log(f"continuing with {workers} workers on {', '.join(hosts)}")
        return hosts

    def _run_attempt(self, number: int, hosts: Mapping[str, int], signals: Signals) -> Outcome:
        if signals.received:
            return Outcome(1)
        options = self._options
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PMI_", "PMIX_", "HYDI_"))
        }
        environment[ATTEMPT] = str(number)
        if options.threads is not None:
            environment["OMP_NUM_THREADS"] = str(options.threads)
        command, workers = [sys.executable, *options.command], 0
        if self._is_mpi:
            environment[SUPERVISED] = "1"
            environment[PROGRESS_TIMEOUT] = f"{options.progress_timeout:g}"
            workers = options.workers
            if hosts:
                workers = worker_count(hosts, options.hosts, workers)
            command = self._mpiexec_command(hosts, workers, environment)
        return Attempt(
            command, environment, signals, number, options.log_dir, workers=workers
        ).run()

    def _mpiexec_command(
        self, hosts: Mapping[str, int], workers: int, environment: dict[str, str]
    ) -> list[str]:
        """Return the command that starts the workers."""
        options = self._options
        worker = [sys.executable, "-m", "gluon_svrg.launch.worker", *options.command]
        if hosts:
            names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
            where = ["-launcher", "ssh", "-launcher-exec", shutil.which(options.ssh) or options.ssh]
            where += ["-hosts", names]
        elif any(name in os.environ for name in _QUEUE_VARIABLES):
            where = []
        else:
            where = ["-launcher", "fork", "-rmk", "user"]
            # Otherwise the workers would open network ports, which one machine does not need.
            environment.setdefault("UCX_TLS", "self,sm")
        if hosts or not where:
            worker = ["/bin/sh", "-c", _CHECKED_START, *worker]
        return [self._mpiexec, *where, "-prepend-pattern", PREFIX, "-n", str(workers), *worker]


def _without_numbers(message: str) -> str:
    """Remove process numbers, so that messages can be compared."""
    return "".join(character for character in message if not character.isdigit())
