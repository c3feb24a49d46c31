"""Python scripts that find MXNet imported: processes forked from one that has done nothing else.

The import takes seconds, and the tests start scripts by the hundred. What a fork would hide is put
right: a script has its own environment, arguments, output and random numbers, and the processes of
one test are forked from two, which differ in how they hash.
"""

import atexit
import faulthandler
import functools
import itertools
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

LARGEST = 1 << 17  # of a request, in bytes


class Output:
    """Files that a process writes into, `out` and `err` once it is over: no pipe runs full."""

    def __init__(self):
        self.files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115

    def read(self):
        """Return what was written to each of them, and close them."""
        texts = []
        for file in self.files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts


class Forked:
    """What `subprocess.Popen` is, of a script: the part of it that tests ask for."""

    def __init__(self, script, *arguments, env):
        self.args = [str(script), *map(str, arguments)]
        self.returncode = None
        self.output = Output()
        descriptors = [file.fileno() for file in self.output.files]
        self._end, self.pid = fork(next(origins()), self.args, env, descriptors)

    def wait(self, timeout=None):
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = int(self._end.recv(32))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._end.close()
        return self.returncode

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def has_written(self):
        return os.fstat(self.output.files[0].fileno()).st_size > 0

    def end(self):
        """Kill it, if that is needed, and read what it has written."""
        self.kill()
        self.wait()
        self.out, self.err = self.output.read()


def fork(address, arguments, environment, descriptors):
    """Let the process that listens there fork one that runs a script.

    Its standard output and error, and for a rank of MPI the connection to its launcher, are the
    `descriptors`. Returns its number, and the socket over which its exit code comes; if that is
    closed before, it is killed.
    """
    request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
    assert len(request) < LARGEST
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.connect(address)
    socket.send_fds(end, [request], descriptors)
    return end, int(end.recv(32))


@functools.cache
def addresses():
    """The addresses of the processes that others are forked from; they end with this one."""
    found = []
    for seed in "12":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            listener.bind("")  # Linux chooses a name
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": seed},
                stdin=subprocess.PIPE,
            )
            found.append(listener.getsockname())
        atexit.register(process.communicate)
    return found


@functools.cache
def origins():
    """The same, in turn, for ever."""
    return itertools.cycle(addresses())


def serve(listener):
    """Fork for every request; return what the script of this process is, in each of them."""
    wake, woken = socket.socketpair()
    for one in (wake, woken):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno())
    ends = {}
    while True:
        ready, _, _ = select.select([sys.stdin, listener, wake, *ends.values()], [], [])
        if sys.stdin in ready:
            sys.exit()
        if wake in ready:
            wake.recv(4096)
            tell_ends(ends)
        for pid, end in ends.items():
            if end in ready and not end.recv(1):  # no process waits for it any longer
                os.kill(pid, signal.SIGKILL)
                end.shutdown(socket.SHUT_RD)
        if listener in ready:
            end, _ = listener.accept()
            message, descriptors, _, _ = socket.recv_fds(end, LARGEST, 3)
            pid = os.fork()
            if pid == 0:
                for one in (listener, wake, woken, end, *ends.values()):
                    one.close()
                return json.loads(message), descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            ends[pid] = end
            end.send(str(pid).encode())


def tell_ends(ends):
    """Tell the processes that wait for one of the others how it has ended."""
    for pid in list(ends):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with ends.pop(pid) as end, suppress(BrokenPipeError):
                end.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(arguments, environment, descriptors):
    """Be a Python of its own that runs the script; its errors are this process's."""
    import numpy as np

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors[:2], 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    if descriptors[2:]:
        os.environ["PMI_FD"] = str(descriptors[2])
    sys.argv = arguments
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(arguments[0]).parent), *filter(None, path)]
    random.seed()
    np.random.seed()
    warnings.simplefilter("ignore")
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    faulthandler.enable()

    import gluon_svrg
    import mxnet  # noqa: F401

    gluon_svrg.Estimator, gluon_svrg.SVRGTrainer  # noqa: B018  # they are imported when asked for
    request, descriptors = serve(socket.socket(fileno=int(sys.argv[1])))
    become(**request, descriptors=descriptors)
