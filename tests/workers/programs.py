"""What the workers of these tests do: see tests/cluster.py."""

import mxnet as mx
from gluon_svrg import workers


def gather():
    own = workers.current()
    values = own.all_gather_object({"rank": own.rank, "text": "x" * own.rank}, "test")
    total = own.all_sum(0.1 * (own.rank + 1), "test")
    array = mx.nd.full((2, 3), own.rank + 1.0, dtype="float64")
    first = mx.nd.full((2,), own.rank + 5.0)
    own.all_reduce([array])
    own.broadcast([first])
    return [values, total, array.asnumpy().tolist(), first.asnumpy().tolist()]


def latency():
    import time

    own = workers.current()
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        own.all_gather_object([1, 0], "test")
        times.append(time.perf_counter() - begin)
    return sorted(times)[1000] * 1e6
