"""The start of MPI in processes that nobody's ``mpirun`` has started.

MPICH, and what descends from it, asks a process manager for the addresses of its other processes,
in a protocol of lines, PMI-1: each process says its own, all meet in a barrier, and each asks for
those of the others. Here each worker is its own process manager, and the barrier is a gather of
the workers, who are connected already. So the launcher owns and watches the processes as it does
with any other engine, on one machine and on several.

The protocol: P. Balaji et al., "PMI: A Scalable Parallel Process-Management Interface for
Extreme-Scale Systems", EuroMPI 2010; the lines are those of MPICH's ``simple_pmi.c``.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gluon_svrg.launch.environment import PEER_FAILED
from gluon_svrg.workers.base import WorkerError, Workers

if TYPE_CHECKING:
    from mpi4py import MPI

INSTALL = "pip install 'gluon-svrg[mpi]'"
_MULTIPLE = 3
"""MPI_THREAD_MULTIPLE. What waits gives its core to others then, which matters where there are
more processes than cores: a sum of a hundred megabytes takes a third of the time."""
_LIBRARY = "libmpi.so.12"
"""The name that all libraries of MPICH's binary interface have: Intel's and Cray's, too."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHARED_MEMORY = Path("/dev/shm")


def communicator_of(workers: Workers) -> MPI.Intracomm:
    """Start MPI in this process and return a communicator of the workers, with their ranks.

    Collective. MPI lasts as long as the process; where it is running already, as under ``mpirun``,
    the communicator is one of those processes.

    Raises
    ------
    ImportError
        If mpi4py or MPICH are missing.
    WorkerError
        If MPI was started before, in this process alone.
    """
    _start(workers)
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != workers.size or MPI.COMM_WORLD.rank != workers.rank:
        raise WorkerError(
            f"MPI knows {MPI.COMM_WORLD.size} processes, and there are {workers.size} workers: it "
            "was started by an import of mpi4py.MPI before the first use of gluon_svrg; let the "
            "script call gluon_svrg.workers.current() first"
        )
    return MPI.COMM_WORLD.Dup()


def check_installed() -> None:
    """Raise ImportError, with the way out, if this process could not start MPI."""
    try:
        metadata.version("mpi4py")
        _library()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise ImportError(
            f"the engine 'mpi' needs mpi4py and MPICH, or a library that is binary compatible to "
            f"it: {INSTALL} ({error})"
        ) from None


def _start(workers: Workers) -> None:
    if "mpi4py.MPI" in sys.modules:
        return
    check_installed()
    hosts = workers.gather_plain(_machine(), "the machines of the workers")
    name = f"gluon_svrg_{workers.of_first(os.urandom(8).hex(), 'the name of the start of MPI')}"
    ours, its = socket.socketpair()
    manager = _Manager(workers, hosts, name)
    threading.Thread(target=manager.serve, args=(ours,), daemon=True).start()
    variables = {
        "PMI_FD": str(its.detach()),
        "PMI_RANK": str(workers.rank),
        "PMI_SIZE": str(workers.size),
    }
    if len(set(hosts)) == 1:  # or it would listen to the network, though nobody is there
        variables["UCX_TLS"] = os.environ.get("UCX_TLS", "self,sm")
    with _environment(variables):
        # Not by mpi4py, which would hold Python's lock meanwhile, and the manager needs it.
        code = _library().MPI_Init_thread(
            None, None, ctypes.c_int(_MULTIPLE), ctypes.byref(ctypes.c_int())
        )
    if code:
        raise WorkerError(f"MPI does not start: MPI_Init_thread returns {code}")
    import mpi4py

    # Without an end of it: a worker that has failed would wait for ever for the others there. All
    # of them have all sums when they meet at the end of the script.
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    workers.barrier("the start of MPI")
    _unlink_shared_memory()
    from mpi4py import MPI

    if not MPI.Is_initialized():
        raise ImportError(
            f"mpi4py has another MPI than MPICH, which was started: it is for "
            f"{MPI.Get_library_version().splitlines()[0]!r}; take the wheel: {INSTALL}"
        )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment, and none of another process manager.

    A script's own programs get what was there before: `srun` of PMIx, say, sets its own, with
    which MPICH would speak to that, or end at once, since there are two.
    """
    before = {name: os.environ[name] for name in os.environ if name.startswith(("PMI_", "PMIX_"))}
    before |= {name: os.environ[name] for name in variables if name in os.environ}
    for name in before:
        del os.environ[name]
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ |= before


def _machine() -> str:
    """Return what the processes have in common that can share memory; two containers cannot."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [_BOOT.read_text().strip(), os.readlink("/proc/self/ns/mnt")]
    return " ".join(parts)


def _library() -> ctypes.CDLL:
    """Return MPICH's library, which mpi4py finds as what is loaded already."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution("mpich").files or []:
            if file.name == _LIBRARY:
                return ctypes.CDLL(os.path.realpath(file.locate()), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(_LIBRARY, ctypes.RTLD_GLOBAL)


def _unlink_shared_memory() -> None:
    """Take the names of the memory that MPICH shares; else it would outlive a killed process."""
    for line in Path("/proc/self/maps").read_bytes().strip().split(b"\n"):
        path = Path(os.fsdecode(line.split(maxsplit=5)[-1]))
        if path.parent == _SHARED_MEMORY and path.name.startswith("mpich_shm_"):
            start = path.name.rpartition("_")[0]  # the rest is the number of a process
            for one in _SHARED_MEMORY.glob(f"{start}_*"):
                one.unlink(missing_ok=True)


class _Manager:
    """What MPICH asks, and the answers.

    Parameters
    ----------
    workers : Workers
        Who start together. Nothing else may be gathered meanwhile.
    hosts : sequence of str
        On which machine each of them is.
    name : str
        Of this start: no other one may have it, on any of the machines.
    """

    def __init__(self, workers: Workers, hosts: Sequence[str], name: str) -> None:
        self._workers = workers
        self._name = name
        self._own: dict[str, str] = {}
        self._known = {"PMI_process_mapping": mapping_of(hosts)}

    def serve(self, connection: socket.socket) -> None:
        """Answer until MPICH closes the connection."""
        with suppress(OSError), connection, connection.makefile("rw", newline="\n") as lines:
            for line in lines:
                try:
                    answer = self._answer(line)
                except WorkerError as error:
                    # MPICH would end the process if nobody answered, and by a crash.
                    print(f"WorkerError: {error}", file=sys.stderr, flush=True)
                    sys.stdout.flush()
                    _unlink_shared_memory()
                    os._exit(PEER_FAILED)
                lines.write(f"cmd={answer}\n")
                lines.flush()

    def _answer(self, line: str) -> str:
        rest, _, value = line.rstrip("\n").partition(" value=")
        fields = dict(field.partition("=")[::2] for field in rest.split())
        command, key = fields.get("cmd", ""), fields.get("key", "")
        if command == "put":
            self._own[key] = value
            return "put_result rc=0 msg=success"
        if command == "get":
            if key not in self._known:
                return "get_result rc=-1 msg=not_found value=unknown"
            return f"get_result rc=0 msg=success value={self._known[key]}"
        if command == "barrier_in":
            for some in self._workers.gather_plain(self._own, "a barrier of MPI's start"):
                self._known |= some
            return "barrier_out rc=0"
        fixed = {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "maxes kvsname_max=256 keylen_max=64 vallen_max=4096 rc=0",
            "get_appnum": "appnum appnum=0 rc=0",
            "get_my_kvsname": f"my_kvsname kvsname={self._name} rc=0",
            "get_universe_size": f"universe_size size={self._workers.size} rc=0",
            "finalize": "finalize_ack rc=0",
        }
        return fixed.get(command, f"{command}_result rc=-1 msg=unknown_command")


def mapping_of(hosts: Sequence[str]) -> str:
    """Return which process is on which machine, in PMI's own words.

    Parameters
    ----------
    hosts : sequence of str
        Of each rank.

    Returns
    -------
    str
        ``(vector,(first machine, machines, processes on each),...)``, in the order of the ranks.
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks: list[list[int]] = []
    for host in hosts:
        if blocks and blocks[-1][0] == numbers[host]:
            blocks[-1][2] += 1
        else:
            blocks.append([numbers[host], 1, 1])
    return f"(vector,{','.join('({},{},{})'.format(*block) for block in blocks)})"
