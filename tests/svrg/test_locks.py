"""MaskLock: seeds that are a pure function, and the question whether a network draws at all."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.svrg import MaskLock
from gluon_svrg.workers import SingleProcess
from mxnet import autograd
from mxnet.gluon import nn, rnn


def drawn(lock, batch):
    lock.lock(batch)
    return mx.nd.random.uniform(shape=8).asnumpy().tolist()


def test_a_seed_is_a_pure_function_of_seed_snapshot_and_batch():
    numbers = {}
    for seed in (0, 1):
        lock = MaskLock(seed)
        for snapshot in range(3):
            lock.next_snapshot()
            for batch in range(4):
                numbers[seed, snapshot, batch] = tuple(drawn(lock, batch))
    assert len(set(numbers.values())) == len(numbers)
    again = MaskLock(1)
    for _ in range(2):
        again.next_snapshot()
    assert tuple(drawn(again, 3)) == numbers[1, 1, 3]


def test_by_default_mxnets_seed_decides():
    results = []
    for seed in (3, 3, 4):
        gs.seed_everything(seed)
        lock = MaskLock()
        lock.next_snapshot()
        results.append(drawn(lock, 0))
    assert results[0] == results[1] != results[2]


X = mx.nd.random.uniform(shape=(4, 6))


def choose():
    return mx.nd.random.multinomial(mx.nd.ones((4,)) / 4, shape=3)


def forward(net):
    net.initialize()

    def run():
        with autograd.record():
            return net(X.reshape((2, 2, 6)) if isinstance(net, rnn.LSTM) else X)

    return run


@pytest.mark.parametrize(
    ("run", "draws"),
    [
        (forward(nn.Dense(3)), False),
        (forward(nn.BatchNorm()), False),
        # oneDNN's LSTM on a CPU has no dropout, whatever it was asked for.
        (forward(rnn.LSTM(3, num_layers=2, dropout=0.5, input_size=6)), False),
        (forward(nn.Dropout(0.5)), True),
        (lambda: forward(nn.Dropout(0.5))().sum(), True),
        (lambda: mx.nd.random.normal(shape=(3,)), True),
        (choose, True),  # the plain generator, not the parallel one
    ],
)
def test_it_finds_out_whether_random_numbers_are_drawn(run, draws):
    run()  # a parameter's first value is drawn as well, but once
    lock = MaskLock(0)
    lock.next_snapshot()
    lock.watch(run, [mx.cpu(0), mx.cpu(1)])
    assert lock.is_needed == draws


def test_what_it_watches_draws_as_if_locked():
    lock = MaskLock(0)
    lock.next_snapshot()
    result = lock.watch(lambda: mx.nd.random.uniform(shape=8), [mx.cpu()])
    assert result.asnumpy().tolist() == drawn(lock, 0)


def test_where_it_is_not_needed_no_seed_is_set():
    lock = MaskLock(0)
    lock.next_snapshot()
    lock.is_needed = False
    gs.seed_everything(9)
    expected = mx.nd.random.uniform(shape=8).asnumpy()
    gs.seed_everything(9)
    assert np.array_equal(drawn(lock, 0), expected)


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU, rnn.RNN])
def test_recurrent_layers_draw_no_masks_on_a_cpu(layer):
    """MXNet's dropout between them does nothing there; the questions and answers say so."""
    net = layer(4, num_layers=3, dropout=0.9)
    net.initialize(mx.init.Normal(0.5))
    x = mx.nd.random.normal(shape=(5, 3, 4))
    with autograd.record():
        one, other = net(x).asnumpy(), net(x).asnumpy()
    assert np.array_equal(one, other)
    # Other kernels than in training, on some processors with other roundings.
    np.testing.assert_allclose(net(x).asnumpy(), one, rtol=1e-5, atol=1e-7)


def test_on_other_devices_than_cpus_it_is_always_needed():
    lock = MaskLock(0)
    lock.next_snapshot()
    assert lock.watch(lambda: "result", [mx.gpu(0)]) == "result"
    assert lock.is_needed


def draw_of(lock, batch):
    lock.lock(batch)
    return mx.nd.random.uniform(shape=(5,)).asnumpy().tolist()


def test_each_worker_has_masks_of_its_own():
    """The first one's are those of one process."""
    locks = [MaskLock(3)]
    for rank in range(3):
        workers = SingleProcess()
        workers.rank = rank
        locks.append(MaskLock(3, workers=workers))
    for lock in locks:
        lock.next_snapshot()
    alone, *others = [[draw_of(lock, batch) for batch in range(3)] for lock in locks]
    assert others[0] == alone
    assert len({str(draw) for draws in others for draw in draws}) == 9
    assert others == [[draw_of(lock, batch) for batch in range(3)] for lock in locks[1:]]
    assert len({str(lock.state_dict()) for lock in locks}) == 1
