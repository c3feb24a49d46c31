"""One seed reaches every generator."""

import random

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest


def draw():
    contexts = [mx.cpu(0), mx.cpu(1)]
    return [
        *(mx.nd.random.uniform(shape=3, ctx=context).asnumpy().tolist() for context in contexts),
        mx.nd.random.shuffle(mx.nd.arange(9)).asnumpy().tolist(),
        np.random.rand(3).tolist(),
        [random.random() for _ in range(3)],
    ]


def test_the_same_seed_gives_the_same_numbers_everywhere():
    gs.seed_everything(5)
    first = draw()
    gs.seed_everything(5)
    assert draw() == first
    gs.seed_everything(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_a_shuffled_loader_gives_the_same_batches():
    loader = mx.gluon.data.DataLoader(list(range(20)), batch_size=4, shuffle=True)
    orders = []
    for _ in range(2):
        gs.seed_everything(1)
        orders.append([batch.asnumpy().tolist() for batch in loader])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("seed", [-1, 2**31, 1.0, "1", True, None])
def test_a_bad_seed_is_an_error(seed):
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*31 - 1, got"):
        gs.seed_everything(seed)
