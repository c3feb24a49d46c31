"""What the workers of test_mpi.py do."""

import hashlib
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.workers import mpi, pmi
from workers import store_programs


def sums():
    """How far each sum is from NumPy's in float64, in units of its rounding, and its bits."""
    own = workers.current()
    found = {}
    for dtype in ("float16", "float32", "float64"):
        rows = [
            [store_programs.numbers(shape, rank, dtype, i) for rank in range(own.size)]
            for i, shape in enumerate(store_programs.SHAPES)
        ]
        for repetition in range(3):  # the third knows the arrays
            if not repetition:
                arrays = [mx.nd.array(row[own.rank], dtype=dtype) for row in rows]
            for array, row in zip(arrays, rows, strict=True):
                array[:] = mx.nd.array(row[own.rank], dtype=dtype)
            own.sum(arrays)
            digest, errors = hashlib.sha256(), []
            for array, row in zip(arrays, rows, strict=True):
                total, size = (sum(f(r.astype("float64")) for r in row) for f in (np.asarray, abs))
                unit = np.finfo(dtype).eps * np.maximum(size, np.finfo(dtype).tiny)
                errors.append(float((abs(array.asnumpy() - total) / unit).max()))
                digest.update(array.asnumpy().tobytes())
            found[f"{dtype} {repetition}"] = [max(errors), digest.hexdigest()]
    return found


def everything():
    names = ("chain", "kinds", "broadcasts", "convolutions", "refusals")
    result = {name: getattr(store_programs, name)() for name in names}
    own = workers.current()
    mapped = Path("/proc/self/maps").read_text()
    leftovers = [name for name in os.listdir("/dev/shm") if name in mapped]
    result |= {"kind": type(own).__name__, "rank": own.rank, "leftovers": leftovers}
    starts = ("PMI_", "PMIX_", "UCX_TLS")
    result["environment"] = sorted(name for name in os.environ if name.startswith(starts))
    result["listens"] = sorted({host for host, is_own in listening() if is_own})
    return result | {"sums": sums()}


def listening():
    """Addresses at which sockets of IPv4 listen, and whether they are of this process."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    own = {os.readlink(link) for link in links if os.path.islink(link)}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            number = bytes.fromhex(fields[1].partition(":")[0])[::-1]
            yield ".".join(map(str, number)), f"socket:[{fields[9]}]" in own


def dies_in_the_start():
    """Worker 1 ends while MPI's processes look for each other."""
    if os.environ["GLUON_SVRG_RANK"] == "1":
        answer = pmi._Manager._answer

        def last(self, line):
            if line.startswith("cmd=barrier_in"):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer(self, line)

        pmi._Manager._answer = last
    workers.current()


def another_mpi():
    """mpi4py has another library than the one that was started."""
    pmi._library = lambda: SimpleNamespace(MPI_Init_thread=lambda *_: 0)
    try:
        workers.current()
    except ImportError as error:
        return str(error)
    return ""


def twice():
    """The sum of arrays of which one comes twice."""
    own = workers.current()
    small, big = mx.nd.ones((4,)), mx.nd.ones((100_000,))
    for _ in range(3):
        own.sum([small, big, small, big])
    return [small[0].asscalar().item(), big[0].asscalar().item()]


def patterns(repetitions=60):
    """The bits of one sum, with random delays."""
    own = workers.current()
    rng = np.random.RandomState(own.rank)
    values = mx.nd.array(rng.standard_normal(20_000) * 10.0 ** rng.randint(-4, 4, 20_000))
    found = set()
    for _ in range(repetitions):
        array = values.copy()
        own.barrier("test")
        time.sleep(rng.random_sample() * 0.004)
        own.sum([array])
        found.add(hashlib.sha256(array.asnumpy().tobytes()).hexdigest())
    return sorted(found)


def dies_in_a_sum(how):
    """Worker 1 ends while the others wait for it in a sum."""
    own = workers.current()
    array = mx.nd.ones((1000,))
    own.sum([array])
    if own.rank == 1:
        if how == "error":
            raise ValueError("on one worker alone")
        os.kill(os.getpid(), signal.SIGKILL)
    own.sum([array])


def parted(late):
    """Worker `late` makes one sum fewer than the others."""
    own = workers.current()
    mpi._LONG = 0.3
    array = mx.nd.ones((3,))
    own.sum([array])
    own.barrier("the step before")
    own.sum([array])
    if own.rank != int(late):
        own.sum([array])
    own.barrier("step")


def late():
    """Each of them is late once, before a sum and before a message."""
    own = workers.current()
    mpi._LONG = 0.1
    array = mx.nd.full((3,), 4.0 / 3**6 * 3)
    gathered = []
    for rank in range(own.size):
        for _ in range(2):
            time.sleep(0.5 * (own.rank == rank))
            own.sum([array])
        time.sleep(0.5 * (own.rank == rank))
        gathered = own.gather_plain(own.rank, "test")
    return [round(float(array.asnumpy()[0]), 3), gathered]


def mpi_first():
    """A script that has started MPI by itself, in each process alone."""
    from mpi4py import MPI

    try:
        workers.current()
    except workers.WorkerError as error:
        return [MPI.COMM_WORLD.size, str(error)]
    return []


class Waits(mx.operator.CustomOp):
    """Hands its input on when it is let go."""

    held, let_go = threading.Event(), threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        self.held.set()
        self.let_go.wait(10)
        self.held.clear()
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("waits")
class WaitsProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Waits()


def overlap():
    """Whether the sum of the last array begins while the first is still being computed."""
    own = workers.current()
    begins = []
    add = mpi.MPIWorkers._add

    def watched(self, numbers):
        begins.append(Waits.held.is_set())
        add(self, numbers)
        Waits.let_go.set()

    late, last = mx.nd.ones((300_000,)), mx.nd.ones((300_000,))
    own.sum([late, last])
    mpi.MPIWorkers._add = watched
    late[:] = mx.nd.Custom(late, op_type="waits")
    assert Waits.held.wait(30)
    own.sum([late, last])
    return [begins, *(sorted(set(array.asnumpy().tolist())) for array in (late, last))]
