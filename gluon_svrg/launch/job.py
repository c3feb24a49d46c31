"""Job: attempts, one after the other, until the workers have come to their end or it is no use."""

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
from gluon_svrg.launch.attempt import Attempt, Outcome, adopt
from gluon_svrg.launch.environment import ATTEMPT, PROGRESS_TIMEOUT, SUPERVISED
from gluon_svrg.launch.hosts import is_here, wait_for, worker_count
from gluon_svrg.launch.output import PATTERN, say
from gluon_svrg.launch.signals import Signals

UNAVAILABLE = 69
"""The exit code of a job whose hosts do not answer (EX_UNAVAILABLE)."""
_START = 20.0
"""Seconds within which two failures in the same way count as a mistake in the script."""
_ALLOCATIONS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
"""Set by queues whose hosts mpiexec finds by itself."""
_CHECK = '"$0" -c "import mpi4py, gluon_svrg.launch.worker" || kill -9 $$; exec "$0" "$@"'
"""Ends a worker by a signal if its host has no such Python or package: at an exit code before
MPI_Init mpiexec waits for ever."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

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
    """Return the path of hydra's mpiexec: that of this environment, or of the machine.

    Raises
    ------
    ValueError
        If it or mpi4py is missing.
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
    """A script on several workers, started anew when it fails.

    Parameters
    ----------
    options : Options
        What is asked for.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mpiexec = find_mpiexec() if self._is_mpi else ""
        if not all(map(is_here, options.hosts)) and shutil.which(options.ssh) is None:
            raise ValueError(
                f"--ssh {options.ssh!r} is not installed, and other hosts are reached by it: "
                "install openssh-client, or name another program"
            )

    @property
    def _is_mpi(self) -> bool:
        return self._options.workers > 1 or bool(self._options.hosts)

    def run(self) -> int:
        """Run to the end and return the exit code."""
        adopt(ctypes.CDLL(None).prctl)
        signals = Signals()
        restarts = self._options.max_restarts
        before = ""
        for number in itertools.count():
            hosts = self._hosts(is_first=number == 0)
            if hosts is None:
                return UNAVAILABLE
            begin = time.monotonic()
            outcome = self._attempt(number, hosts, signals)
            if signals.received:
                if outcome.code and outcome.is_by_itself:
                    say(outcome.sentence)
                say(
                    "ended by a signal, and not started again: the same line goes on from the "
                    "newest checkpoint if the script calls fit with resume='auto'"
                )
                return 128 + signals.received[0]
            if outcome.code == 0:
                return 0
            is_quick = outcome.is_by_itself and time.monotonic() - begin < _START
            last, before = before, _without_processes(outcome.sentence) if is_quick else ""
            if number == restarts or (before and before == last):
                return self._give_up(outcome, number)
            say(outcome.sentence, is_cause=True)
            say(f"everything is started again: restart {number + 1} of at most {restarts}")
        raise AssertionError("a count has no end")

    def _give_up(self, outcome: Outcome, number: int) -> int:
        if number < self._options.max_restarts:
            reason = "it has failed twice in the same way, so it is not started again"
        elif number == 0:
            reason = "it is not started again: --max-restarts is 0"
        else:
            reason = f"no restart is left of --max-restarts {number}"
        say(reason)
        say(outcome.sentence, is_cause=True)
        return outcome.code

    def _hosts(self, *, is_first: bool) -> dict[str, int] | None:
        """Return the hosts that answer; None if they are too few."""
        options = self._options
        hosts = dict(options.hosts)
        # A host that refuses costs no restart.
        reasons = wait_for([*hosts], options.ssh, options.wait)
        for host, reason in reasons.items():
            say(f"{host} cannot start workers: {reason}")
            del hosts[host]
        if not reasons:
            return hosts
        workers = worker_count(hosts, options.hosts, options.workers)
        least = options.min_workers
        if is_first or least is None or workers < max(1, least):
            say(
                f"{len(hosts)} of {len(options.hosts)} hosts can start workers after "
                f"{options.wait:g} s (--wait)"
                + ("" if least is None else f", which is {workers} of --min-workers {least}"),
                is_cause=True,
            )
            return None
        say(f"the job goes on with {workers} workers on {', '.join(hosts)}")
        return hosts

    def _attempt(self, number: int, hosts: Mapping[str, int], signals: Signals) -> Outcome:
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
            command = self._command(hosts, workers, environment)
        return Attempt(
            command, environment, signals, number, options.log_dir, workers=workers
        ).run()

    def _command(
        self, hosts: Mapping[str, int], workers: int, environment: dict[str, str]
    ) -> list[str]:
        """Return the line of mpiexec."""
        options = self._options
        worker = [sys.executable, "-m", "gluon_svrg.launch.worker", *options.command]
        if hosts:
            names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
            where = ["-launcher", "ssh", "-launcher-exec", shutil.which(options.ssh) or options.ssh]
            where += ["-hosts", names]
        elif any(name in os.environ for name in _ALLOCATIONS):
            where = []
        else:
            where = ["-launcher", "fork", "-rmk", "user"]
            # Or the workers would listen to the network, though no other machine is there.
            environment.setdefault("UCX_TLS", "self,sm")
        if hosts or not where:
            worker = ["/bin/sh", "-c", _CHECK, *worker]
        return [self._mpiexec, *where, "-prepend-pattern", PATTERN, "-n", str(workers), *worker]


def _without_processes(sentence: str) -> str:
    return "".join(part for part in sentence if not part.isdigit())
