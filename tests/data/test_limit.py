"""The first batches of some data, for dry runs."""

import re

import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader, first_batches


@pytest.mark.parametrize("number", [1, 3, 5, 9])
def test_they_are_the_first_and_the_same_each_time(number):
    batches = problems.make("softmax").ndarrays()
    taken = first_batches(batches, number)
    assert len(taken) == min(number, 5)
    assert all(a is b for a, b in zip(taken, batches, strict=False))


def test_an_array_loader_is_left_as_it_is():
    loader = ArrayLoader(np.arange(20.0), batch_size=4, shuffle=True, seed=3)
    expected = [loader[index][0].asnumpy().tolist() for index in loader.order(0)[:2]]
    loader.set_epoch(4)
    assert [batch[0].asnumpy().tolist() for batch in first_batches(loader, 2)] == expected
    assert loader.epoch == 4


@pytest.mark.slow
def test_a_net_overfits_one_batch():
    problem = problems.make("mlp")
    estimator = runs.estimator_of(problem, lr=2.0)
    estimator.logger.handlers.clear()
    history = estimator.fit(first_batches(problem.ndarrays(), 1), epochs=200).history
    assert history[-1]["training accuracy"] == 1
    assert history[-1]["samples"] == 8


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_a_bad_number_is_an_error(number):
    message = f"number must be a positive integer, got {number!r}: that many batches are taken"
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        first_batches([1], number)
