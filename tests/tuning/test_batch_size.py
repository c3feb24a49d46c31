"""find_batch_size: which sizes it tries, what it suggests, and that it leaves no trace."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
from gluon_svrg.tuning import batch_size
from mxnet.gluon import nn
from problems import ONE, TWO, array, weights_of


class Watching(gs.BatchProcessor):
    """Notes the size of each batch, and fails from one on."""

    def __init__(self, fails_from=None, message="cudaMalloc retry failed: out of memory"):
        self.sizes = Watching.seen = []
        self.fails_from, self.message = fails_from, message

    def fit_batch(self, estimator, train_batch, batch_axis=0):
        size = train_batch[0].shape[batch_axis]
        self.sizes.append(size)
        if self.fails_from is not None and size >= self.fails_from:
            raise mx.base.MXNetError(self.message)
        return super().fit_batch(estimator, train_batch, batch_axis)


def estimator_of(contexts=ONE, **arguments):
    net = nn.Dense(3, in_units=4)
    net.initialize(ctx=list(contexts))
    estimator = runs.estimator_of(net, optimizer="adam")
    estimator.batch_processor = Watching(**arguments)
    return estimator


def data_of(number=12):
    rng = np.random.default_rng(0)
    return [(array(rng.normal(size=(number, 4))), array(rng.integers(0, 3, number)))]


class Clock:
    """A clock by which a step takes `fixed` seconds and one more per sample from `free` on."""

    def __init__(self, fixed=100.0, free=0):
        self.now, self.begun, self.fixed, self.free = 0.0, False, fixed, free

    def perf_counter(self):
        if self.begun:
            self.now += self.fixed + max(0, Watching.seen[-1] - self.free)
        self.begun = not self.begun
        return self.now


def oracle(sizes, fixed, least_gain):
    seconds = [(fixed + size) / size for size in sizes]
    for k in range(1, len(sizes)):
        if 1 - seconds[k] / seconds[k - 1] < least_gain:
            return sizes[k - 1], sizes[: k + 1], seconds[: k + 1]
    return sizes[-1], sizes, seconds


@pytest.mark.parametrize("fixed", [10.0, 100.0, 1e6])
@pytest.mark.parametrize("least_gain", [0.1, 0.4])
def test_the_suggestion_is_that_of_the_oracle(fixed, least_gain, monkeypatch, mode):
    monkeypatch.setattr(batch_size, "time", Clock(fixed))
    found = gs.find_batch_size(estimator_of(), data_of(), 4, 1000, least_gain=least_gain)
    sizes = [4 * 2**k for k in range(8)]
    suggestion, tried, seconds = oracle(sizes, fixed, least_gain)
    assert (found.suggestion, found.batch_sizes) == (suggestion, tried)
    np.testing.assert_allclose(found.seconds_per_sample, seconds)
    if suggestion == 512:
        assert found.reason == "max_batch_size=1000 is reached"
    else:
        assert f"a batch of {tried[-1]} takes" in found.reason


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_each_size_is_stepped_with(contexts, monkeypatch):
    monkeypatch.setattr(batch_size, "time", Clock(1e9))
    found = gs.find_batch_size(estimator_of(contexts), data_of(), 2, 64)
    assert found.suggestion == 64
    assert Watching.seen == [size for size in (2, 4, 8, 16, 32, 64) for _ in range(4)]


def test_a_batch_that_does_not_fit_ends_it(monkeypatch):
    monkeypatch.setattr(batch_size, "time", Clock(1e9))
    found = gs.find_batch_size(estimator_of(fails_from=32), data_of(), 4, 1000)
    assert (found.suggestion, found.batch_sizes) == (16, [4, 8, 16])
    assert found.reason == "a batch of 32 samples does not fit into memory"


def test_another_error_is_raised():
    with pytest.raises(mx.base.MXNetError, match="shapes do not match"):
        gs.find_batch_size(estimator_of(fails_from=16, message="shapes do not match"), data_of())


def test_the_first_size_has_to_fit():
    with pytest.raises(mx.base.MXNetError, match="out of memory"):
        gs.find_batch_size(estimator_of(fails_from=1), data_of())


def test_one_time_that_was_disturbed_is_measured_again(monkeypatch):
    clock = Clock(1e6)
    monkeypatch.setattr(batch_size, "time", clock)
    measured = batch_size._seconds_per_sample
    calls = []

    def disturbed(dry_run, batch, size, batch_axis):
        calls.append(size)
        slower = 10 if calls.count(8) == 1 and size == 8 else 1
        return slower * measured(dry_run, batch, size, batch_axis)

    monkeypatch.setattr(batch_size, "_seconds_per_sample", disturbed)
    found = gs.find_batch_size(estimator_of(), data_of(), 4, 16)
    assert calls == [4, 8, 4, 8, 16]
    assert found.suggestion == 16


def test_everything_is_put_back(monkeypatch):
    def run(is_tested):
        gs.seed_everything(0)
        estimator, data = estimator_of(), data_of()
        if is_tested:
            gs.find_batch_size(estimator, data, 4, 32)
        estimator.fit(data, epochs=2, verbose=0)
        return weights_of(estimator.net)

    np.testing.assert_equal(run(True), run(False))


def test_the_samples_are_those_of_the_first_batch_over_and_over():
    x = mx.nd.arange(6).reshape((3, 2))
    made = batch_size._resized(((x, x.asnumpy()), {"a": mx.nd.arange(3)}), 7, 0)
    rows = [0, 1, 2, 0, 1, 2, 0]
    np.testing.assert_array_equal(made[0][0].asnumpy(), x.asnumpy()[rows])
    np.testing.assert_array_equal(made[0][1], x.asnumpy()[rows])
    np.testing.assert_array_equal(made[1]["a"].asnumpy(), rows)
    along_1 = batch_size._resized((x.T, mx.nd.arange(3)), 4, 1)
    np.testing.assert_array_equal(along_1[0].asnumpy(), x.asnumpy()[rows[:4]].T)
    np.testing.assert_array_equal(along_1[1].asnumpy(), rows[:4])


def test_sparse_batches():
    sparse = mx.nd.ones((4, 4)).tostype("csr")
    with pytest.raises(ValueError, match="storage type 'csr', which find_batch_size cannot"):
        batch_size._resized((sparse, mx.nd.ones(4)), 8, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_batch_size": 0}, "min_batch_size must be a positive integer, got 0"),
        (
            {"min_batch_size": 9, "max_batch_size": 8},
            "must be at least min_batch_size, got 8 and 9",
        ),
        ({"least_gain": 0}, "least_gain must be a number above 0, got 0"),
        ({"least_gain": 1.0}, "least_gain must be less than 1, got 1.0"),
    ],
)
def test_arguments_out_of_their_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        gs.find_batch_size(estimator_of(), data_of(), **arguments)
