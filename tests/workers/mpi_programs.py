"""What the workers of test_mpi.py do."""

import contextlib
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.workers import mpi
from mxnet import gluon
from workers.loop_programs import connected_anew

SHAPES = [(3, 4), (5,), (2, 3, 3, 3), (1,), (70_000,), (700, 300), (7, 1, 2), (0,)]


def numbers(shape, rank, dtype, seed):
    """What worker `rank` gives: any magnitude, zeros of both signs."""
    rng = np.random.RandomState(1000 * seed + rank)
    values = rng.standard_normal(shape) * 10.0 ** rng.randint(-3, 3, shape)
    values = np.where(rng.random_sample(shape) < 0.1, -0.0, values)
    return values.astype(dtype)


def sums():
    """How far each sum is from NumPy's in float64, in units of its rounding, and its bits."""
    own = workers.current()
    found = {}
    for dtype in ("float16", "float32", "float64"):
        rows = [
            [numbers(shape, rank, dtype, i) for rank in range(own.size)]
            for i, shape in enumerate(SHAPES)
        ]
        for repetition in range(3):  # the third knows the arrays
            if not repetition:
                arrays = [mx.nd.array(row[own.rank], dtype=dtype) for row in rows]
            for array, row in zip(arrays, rows, strict=True):
                array[:] = mx.nd.array(row[own.rank], dtype=dtype)
            own.all_reduce(arrays)
            digest, errors = hashlib.sha256(), []
            for array, row in zip(arrays, rows, strict=True):
                total, size = (sum(f(r.astype("float64")) for r in row) for f in (np.asarray, abs))
                unit = np.finfo(dtype).eps * np.maximum(size, np.finfo(dtype).tiny)
                errors.append(float((abs(array.asnumpy() - total) / unit).max(initial=0.0)))
                digest.update(array.asnumpy().tobytes())
            found[f"{dtype} {repetition}"] = [max(errors), digest.hexdigest()]
    return found


def chain():
    """Sums of sums, without a wait in between; each adds what the last has given."""
    own = workers.current()
    arrays = [mx.nd.full((50, 50), own.rank + 1.0), mx.nd.full((3,), own.rank + 2.0)]
    for _ in range(20):
        own.all_reduce(arrays)
        for array in arrays:
            array /= own.size
    first = sum(r + 1.0 for r in range(own.size)) / own.size
    return [np.unique(array.asnumpy()).tolist() for array in arrays], [first, first + 1]


def kinds():
    """Integers; several dtypes at once; nothing; another layout of the same sizes."""
    own = workers.current()
    mixed = [
        mx.nd.array(np.full((2, 3), 2**53 + own.rank), dtype="int64"),
        mx.nd.full((4,), 0.5, dtype="float64"),
        mx.nd.full((3,), own.rank, dtype="int32"),
        mx.nd.full((2,), 0.25, dtype="float16"),
        mx.nd.full((2,), 100, dtype="uint8"),
        mx.nd.full((2,), 50, dtype="int8"),
    ]
    own.all_reduce(mixed)
    own.all_reduce([])
    turned = [mx.nd.full((4,), 1.0, dtype="float64"), mx.nd.full((2,), 1.0, dtype="float16")]
    own.all_reduce(turned)
    return [np.unique(array.asnumpy()).tolist() for array in [*mixed, *turned]]


def broadcasts():
    """Any bits of any dtype: a sum would lose the sign of zero."""
    own = workers.current()
    bits = np.array([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1 + 2.0**-40])
    arrays = [
        mx.nd.array(bits if own.is_first else np.zeros(6), dtype="float64"),
        mx.nd.array([[1, 2, 3]] if own.is_first else [[0, 0, 0]], dtype="uint8"),
        mx.nd.full((30_000,), own.rank + 1.0),
        mx.nd.full((900_000,), own.rank + 1.0),
    ]
    mpi._BROADCAST_SIZE = 1 << 17
    own.broadcast(arrays)
    equal = arrays[0].asnumpy().tobytes() == bits.tobytes()
    return [
        equal,
        arrays[1].asnumpy().tolist(),
        *(np.unique(a.asnumpy()).tolist() for a in arrays[2:]),
    ]


def convolutions():
    """Arrays that oneDNN has laid out in its own way: weights after a forward pass alone."""
    own = workers.current()
    mx.random.seed(own.rank)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3), gluon.nn.BatchNorm(), gluon.nn.Conv2D(32, 3), gluon.nn.Dense(10)
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.random.normal(shape=(4, 8, 12, 12))
    right = []
    for _ in range(3):
        net(x).wait_to_read()
        params = list(net.collect_params().values())
        values = np.concatenate([p.data().copy().asnumpy().ravel() for p in params])
        expected = sum(
            np.frombuffer(v, "float32") for v in own.all_gather_bytes(values.tobytes(), "test")
        )
        net(x).wait_to_read()
        copies = [p.data() for p in params]
        own.all_reduce(copies)
        own.broadcast(copies)
        found = np.concatenate([copy.asnumpy().ravel() for copy in copies])
        right.append(bool(np.array_equal(found, expected)))
        out = net(x).asnumpy()
        for copy in copies:
            copy *= 0.5
    return right, bool(np.isfinite(out).all())


def refusals():
    """What is no sum; the run goes on."""
    own = workers.current()
    messages = []
    for arrays in (
        [mx.nd.ones((2, 2)).tostype("row_sparse")],
        [mx.nd.ones((2,), mx.cpu(0)), mx.nd.ones((2,), mx.cpu(1))],
        [mx.nd.ones((2,), dtype="bool")],
    ):
        try:
            own.all_reduce(arrays)
        except ValueError as error:
            messages.append(str(error))
    return messages


def gathers():
    own = workers.current()
    plain = own.all_gather_object({"rank": own.rank, "none": None, "é": [0.1, True]}, "a")
    first = own.broadcast_object(own.rank + 10, "b")
    total = own.all_sum(0.1 * (own.rank + 1), "c")
    lengths = (own.rank, 235, 236, 237, 5_000_000 * own.rank)  # 236 bytes and less go at once
    data = [own.all_gather_bytes(bytes([own.rank]) * length, "d") for length in lengths]
    parts = [[[len(part), sorted(set(part))] for part in parts] for parts in data]
    return [plain, first, total, parts, own.all_any(own.rank == 1, "e"), own.all_any(False, "f")]


def twice():
    """The sum of arrays of which one comes twice."""
    own = workers.current()
    small, big = mx.nd.ones((4,)), mx.nd.ones((100_000,))
    for _ in range(3):
        own.all_reduce([small, big, small, big])
    return [small[0].asscalar().item(), big[0].asscalar().item()]


def late():
    """Each of them is late once, before a sum and before a message."""
    own = workers.current()
    mpi._ANNOUNCE_AFTER, before = 0.1, mpi._ANNOUNCE_AFTER
    array = mx.nd.full((3,), 2.0)
    gathered = []
    for rank in range(own.size):
        for _ in range(2):
            time.sleep(0.3 * (own.rank == rank))
            own.all_reduce([array])
            array /= own.size
        time.sleep(0.3 * (own.rank == rank))
        gathered = own.all_gather_object(own.rank, "test")
    mpi._ANNOUNCE_AFTER = before
    return [float(array[0].asscalar()), gathered]


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
        own.all_reduce([array])
        found.add(hashlib.sha256(array.asnumpy().tobytes()).hexdigest())
    return sorted(found)


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
    add = mpi.MPIWorkers._sum_in_place

    def watched(self, numbers):
        begins.append(Waits.held.is_set())
        add(self, numbers)
        Waits.let_go.set()

    first, last = mx.nd.ones((300_000,)), mx.nd.ones((300_000,))
    own.all_reduce([first, last])
    mpi.MPIWorkers._sum_in_place = watched
    first[:] = mx.nd.Custom(first, op_type="waits")
    assert Waits.held.wait(30)
    own.all_reduce([first, last])
    mpi.MPIWorkers._sum_in_place = add
    Waits.let_go.clear()
    return [begins, *(sorted(set(array.asnumpy().tolist())) for array in (first, last))]


def caught():
    """Leave, and think better of it, as those do who try argparse or unittest.main."""
    workers.current()
    with contextlib.suppress(SystemExit):
        sys.exit(2)


def everything():
    caught()
    own = workers.current()
    mapped = Path("/proc/self/maps").read_text()
    result = {
        "kind": type(own).__name__,
        "rank": own.rank,
        "leftovers": [name for name in os.listdir("/dev/shm") if name in mapped],
        "environment": sorted(name for name in os.environ if name.startswith("PMI")),
    }
    for function in (
        gathers,
        sums,
        chain,
        kinds,
        broadcasts,
        convolutions,
        refusals,
        twice,
        late,
        patterns,
        overlap,
    ):
        result[function.__name__] = function()
    return result | {"failures": failures()}


# --- Workers that are not together any more --------------------------------------------------


def failures():
    """What every worker hears: each case with workers of its own."""
    mpi._ANNOUNCE_AFTER = 0.3
    heard = {}
    for name, case in FAILURES.items():
        with connected_anew() as own:
            begin = time.monotonic()
            try:
                case(own)
                heard[name] = None
            except Exception as error:
                heard[name] = [type(error).__name__, str(error), time.monotonic() - begin]
                try:
                    own.barrier("later")
                except workers.WorkerError as again:
                    heard[name].append(str(again))
    return heard


def at_different_places(own):
    own.all_gather_bytes(b"", "step 3" if own.is_first else "the end of the epoch")


def fails_in_a_message(own):
    if own.rank == 1:
        own.abort("ValueError: no data")
        raise ValueError("no data")
    own.barrier("step")


def fails_in_a_sum(own):
    array = mx.nd.ones((1000,))
    own.all_reduce([array])
    if own.rank == 1:
        own.abort("ValueError: no data")
        raise ValueError("no data")
    own.all_reduce([array])


def adds_other_arrays(own):
    own.all_reduce([mx.nd.ones((2,)), mx.nd.ones((3 + own.rank,))])


def adds_once_less(own, rank):
    array = mx.nd.ones((3,))
    own.all_reduce([array])
    own.barrier("the step before")
    own.all_reduce([array])
    if own.rank != rank:
        own.all_reduce([array])
    own.barrier("step")


def adds_in_another_order(own):
    main, other = [mx.nd.ones((3,))], [mx.nd.ones((3, 1))]
    for arrays in (main, other):
        own.all_reduce(arrays)
    own.barrier("the step before")
    for arrays in (other, main) if own.rank == 1 else (main, other):
        own.all_reduce(arrays)
    own.barrier("step")


def does_not_come(own):
    own._timeout = 2.0
    margin, mpi._TIMEOUT_MARGIN = mpi._TIMEOUT_MARGIN, 0.1
    try:
        if own.rank == 1:
            time.sleep(5)  # longer than a busy machine lets the others wait for a core
        own.barrier("step")
        own.barrier("the next step")  # of the one that was late alone
    finally:
        mpi._TIMEOUT_MARGIN = margin


FAILURES = {
    "at different places": at_different_places,
    "fails in a message": fails_in_a_message,
    "fails in a sum": fails_in_a_sum,
    "other arrays": adds_other_arrays,
    "the first adds once less": lambda own: adds_once_less(own, 0),
    "the last adds once less": lambda own: adds_once_less(own, own.size - 1),
    "another order": adds_in_another_order,
    "does not come": does_not_come,
}


# --- Processes that end -----------------------------------------------------------------------


def ends(how):
    """Worker 1 ends in the middle of the run; the others are at their next step."""
    own = workers.current()
    array = mx.nd.ones((3,))
    own.all_reduce([array])
    if own.is_first and how == "full disk":
        with open("/dev/full", "w") as file:
            file.write("the log")
    if own.rank == 1 and how != "full disk":
        if how == "error":
            raise ValueError("no such file:\ndata.rec")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            hangs()
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise SystemExit(4)
    if how == "hang":  # as a fit arms it
        from gluon_svrg.workers import progress

        progress.start_timer()
    own.all_reduce([array])
    own.barrier("the next step")


def hangs():
    from gluon_svrg.workers import progress

    progress.start_timer()
    while True:
        pass
