"""What the workers of test_store.py do."""

import contextlib
import hashlib
import os
import signal
import sys
import time

import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.workers import sockets
from mxnet import gluon


def numbers(shape, rank, dtype, seed):
    """What worker `rank` gives: any magnitude, zeros of both signs."""
    rng = np.random.RandomState(1000 * seed + rank)
    values = rng.standard_normal(shape) * 10.0 ** rng.randint(-3, 3, shape)
    values = np.where(rng.random_sample(shape) < 0.1, -0.0, values)
    return values.astype(dtype)


def oracle(parts, dtype):
    """The sum by twos, and these in order."""
    pairs = [sum(parts[i + 1 : i + 2], start=parts[i]) for i in range(0, len(parts), 2)]
    total = pairs[0]
    for pair in pairs[1:]:
        total = total + pair
    return total.astype(dtype)


def same(array, expected):
    """Whether they have the same bits, but for the sign of zero."""
    return array.dtype == expected.dtype and bool((array == expected).all())


SHAPES = [(3, 4), (5,), (2, 3, 3, 3), (1,), (70_000,), (700, 300), (7, 1, 2)]


def sums(exact="1"):
    own = workers.current()
    result = {}
    for dtype in ("float16", "float32", "float64"):
        arrays = [
            mx.nd.array(numbers(s, own.rank, dtype, i), dtype=dtype) for i, s in enumerate(SHAPES)
        ]
        for repetition in range(4):  # the first makes keys, the third knows the arrays
            for i, (shape, array) in enumerate(zip(SHAPES, arrays, strict=True)):
                array[:] = mx.nd.array(numbers(shape, own.rank, dtype, i + repetition), dtype=dtype)
            own.sum(arrays)
            right = [
                same(
                    array.asnumpy(),
                    oracle([numbers(s, r, dtype, i + repetition) for r in range(own.size)], dtype),
                )
                for i, (s, array) in enumerate(zip(SHAPES, arrays, strict=True))
            ]
            result[f"{dtype} {repetition}"] = right
    return result


def chain():
    """Sums of sums, without a wait in between; each adds what the last has given."""
    own = workers.current()
    arrays = [mx.nd.full((50, 50), own.rank + 1.0), mx.nd.full((3,), own.rank + 2.0)]
    for _ in range(20):
        own.sum(arrays)
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
    ]
    own.sum(mixed)
    own.sum([])
    turned = [mx.nd.full((4,), 1.0, dtype="float64"), mx.nd.full((2,), 1.0, dtype="float16")]
    own.sum(turned)
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
    sockets._CHUNK = 1 << 17
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
        expected = sum(np.frombuffer(v, "float32") for v in own.gather(values.tobytes(), "test"))
        net(x).wait_to_read()
        copies = [p.data() for p in params]
        own.sum(copies)
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
    ):
        try:
            own.sum(arrays)
        except ValueError as error:
            messages.append(str(error))
    if own.is_first and isinstance(own, workers.StoreWorkers):
        own.store._send_command_to_servers(0, "cos\nsystem\n(S'echo unpickled'\ntR.")
    return messages


def caught():
    """Leave, and think better of it, as those do who try argparse or unittest.main."""
    workers.current()
    with contextlib.suppress(SystemExit):
        sys.exit(2)


def everything():
    caught()
    result = {f.__name__: f() for f in (sums, chain, kinds, broadcasts, convolutions, refusals)}
    own = workers.current()
    array = mx.nd.ones((3,))
    own.sum([array])
    return result | {"after": array.asnumpy().tolist()}


def parted():
    """One adds other arrays than the others: its network differs."""
    own = workers.current()
    own.sum([mx.nd.ones((2,)), mx.nd.ones((3 + own.rank,))])


def parted_in_sums():
    """Worker 1 makes them in another order, and worker 2 one fewer; nobody waits for them."""
    own = workers.current()
    main, other = [mx.nd.ones((3,))], [mx.nd.ones((3, 1))]
    for arrays in (main, other):
        own.sum(arrays)
    own.barrier("the step before")
    for arrays in ((main, other), (other, main), (main,))[own.rank]:
        own.sum(arrays)
    own.barrier("step")


def patterns(repetitions=60):
    """How many bit patterns the same sum has, ours and by a key of MXNet's, with random delays."""
    own = workers.current()
    rng = np.random.RandomState(own.rank)
    size = 20_000
    values = mx.nd.array(rng.standard_normal(size) * 10.0 ** rng.randint(-4, 4, size))
    own.store.init(1, mx.nd.zeros(size))
    found = {"ours": set(), "key": set()}
    for _ in range(repetitions):
        for way in found:
            array = values.copy()
            array.wait_to_read()
            own.barrier("test")
            time.sleep(rng.random_sample() * 0.004)
            if way == "ours":
                own.sum([array])
            else:
                own.store.pushpull(1, array, out=array)
            found[way].add(hashlib.sha256(array.asnumpy().tobytes()).hexdigest())
    return {way: sorted(digests) for way, digests in found.items()}


def by_hand():
    """Workers of a kvstore that the user has made; there was no launcher."""
    refused = {}
    for kind, compression in (
        ("dist_async", None),
        ("p3store_dist", None),
        ("dist_sync", {"type": "2bit"}),
    ):
        try:
            workers.workers_on(kind, compression)
        except ValueError as error:
            refused[str(kind if compression is None else "compression")] = str(error)
    store = mx.kv.create("dist_sync")
    own = workers.workers_on(store)
    array = mx.nd.full((2,), own.rank + 1 + 2.0**-40, dtype="float64")
    own.sum([array])
    return {
        "refused": refused,
        "same": [own is workers.current(), own is workers.workers_on("dist_sync")],
        "ranks": [own.rank, store.rank, *own.gather_plain(own.rank, "test")],
        "sum": (array - own.size * 2.0**-40).asnumpy().tolist(),
    }


def no_cluster():
    try:
        workers.workers_on("dist_sync")
    except ValueError as error:
        return str(error)


def start():
    workers.current()


def fails(how):
    """Worker 1 ends in the middle of the run; the others are at their next step."""
    own = workers.current()
    own.sum([mx.nd.ones((3,))])
    if own.rank == 1:
        if how == "error":
            raise ValueError("no such file:\ndata.rec")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(4)
    own.barrier("the next step")
