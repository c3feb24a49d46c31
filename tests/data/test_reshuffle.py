"""ArrayLoader(reshuffle=True): a new partition each epoch, and SVRG on it."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader, transforms as T
from gluon_svrg.data.draw import LOCKED
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import BatchEnd
from mxnet import gluon

SAMPLES = 22
X = np.arange(SAMPLES * 2, dtype="float64").reshape(SAMPLES, 2)
IMAGES = np.random.default_rng(0).integers(0, 256, (SAMPLES, 3, 6, 6)).astype("uint8")


def loader(*arrays, **arguments):
    arguments = {"batch_size": 4, "shuffle": True, "reshuffle": True, "seed": 5} | arguments
    return ArrayLoader(*(arrays or (X, np.arange(SAMPLES))), **arguments)


def labels(batches):
    return [tuple(batch[1].asnumpy().astype(int)) for batch in batches]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("on_disk", [False, True])
def test_each_epoch_is_a_partition_of_its_own(prefetch, on_disk, tmp_path):
    x = X
    if on_disk:
        X.tofile(tmp_path / "x")
        x = np.memmap(tmp_path / "x", "float64", "r", shape=X.shape)
    data = loader(x, np.arange(SAMPLES), prefetch=prefetch)
    epochs = []
    for _ in range(6):
        batches = list(data)
        assert all(np.array_equal(b[0].asnumpy(), X[b[1].asnumpy().astype(int)]) for b in batches)
        epochs.append(labels(batches))
        assert sorted(sum(epochs[-1], ())) == list(range(SAMPLES))
        assert sorted(map(len, epochs[-1])) == [2, 4, 4, 4, 4, 4]
    assert len({frozenset(map(frozenset, epoch)) for epoch in epochs}) == 6
    assert any(len(epoch[-1]) == 4 for epoch in epochs)  # the smaller batch comes anywhere


def test_an_epoch_is_a_function_of_seed_and_epoch():
    data, other = loader(), loader()
    expected = [labels(data) for _ in range(4)]
    for epoch in (2, 0, 3, 3, 1):
        for position in (0, 1, 5):
            other.set_epoch(epoch, position)
            in_order = labels(other.in_order())
            by_index = [tuple(other[i][1].asnumpy().astype(int)) for i in range(len(other))]
            assert in_order == by_index
            assert [in_order[i] for i in other.order(epoch)] == expected[epoch]
            assert labels(other) == expected[epoch][position:]
    assert labels(loader(seed=6)) != expected[0]


def test_two_iterators_at_once_have_their_own_epochs():
    data = loader()
    pairs = list(zip(iter(data), iter(data), strict=True))  # in turns
    data.set_epoch(0)
    for batches in zip(*pairs, strict=True):
        assert labels(batches) == labels(data)


def test_discard_leaves_out_others_each_epoch():
    data = loader(last_batch="discard")
    seen = [set(sum(labels(data), ())) for _ in range(20)]
    assert {len(s) for s in seen} == {20} == {data.num_samples}
    assert set().union(*seen) == set(range(SAMPLES))
    once = loader(last_batch="discard", reshuffle=False)
    assert len(set().union(*(set(sum(labels(once), ())) for _ in range(20)))) == 20


def test_random_numbers_stay_with_the_sample():
    flip = T.Compose(T.RandomCrop(pad=2), T.RandomFlipLeftRight())
    data = loader(IMAGES, np.arange(SAMPLES), transform=flip)
    data.lock(3)
    expected = flip(IMAGES, draw=T.Draw(5, 3, np.arange(SAMPLES), LOCKED))
    for batches in (data, data.in_order(), data):
        for images, ids in batches:
            assert np.array_equal(images.asnumpy(), expected[ids.asnumpy().astype(int)])
    assert (data.repeats, data.keeps_batches, data.can_lock) == (False, False, True)


class Weights(BatchEnd):
    def __init__(self):
        self.seen = []

    def batch_end(self, estimator, *args, **kwargs):
        self.seen.append(problems.weights_of(estimator.net))


@pytest.mark.slow
@pytest.mark.parametrize("update_freq", [1, 2])
@pytest.mark.parametrize("coefficient", [1.0, 0.5])
def test_svrg_is_the_naive_one_on_the_same_batches(update_freq, coefficient):
    problem = problems.make("mlp")
    x, y = (np.concatenate(arrays) for arrays in zip(*problem.batches, strict=True))
    data = loader(x, y)
    params = problems.weights_of(problem.net)
    by_epoch = []
    for epoch in range(4):
        data.set_epoch(epoch)
        by_epoch += [tuple(a.asnumpy() for a in batch) for batch in data]
    length = len(data)
    assert len({len(batch[0]) for batch in by_epoch}) > 1
    data.set_epoch(0)
    # The naive one has all epochs' batches one after the other, and a mean over one epoch's.
    optimizer = oracle.SGD(0.1, 0.9, 0.01)
    estimator = runs.estimator_of(problem, params={"momentum": 0.9, "wd": 0.01})
    weights = Weights()
    handler = gs.SVRGHandler(update_freq=update_freq, coefficient=coefficient)
    estimator.fit(data, epochs=4, event_handlers=[handler, weights])
    expected = naive(
        problem.gradient, params, by_epoch, length, optimizer, update_freq, coefficient
    )
    for ours, theirs in zip(weights.seen, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def naive(gradient, params, batches, length, optimizer, update_freq, alpha):
    """SVRG, whose batches are others in each epoch."""
    params = [param.copy() for param in params]
    velocity = [np.zeros_like(param) for param in params]
    trajectory = []
    for step, (x, y) in enumerate(batches):
        if step % (length * update_freq) == 0:
            snapshot = [param.copy() for param in params]
            mean = oracle.full_gradient(gradient, snapshot, batches[:length])
        at_both = gradient(params, x, y), gradient(snapshot, x, y), mean
        corrected = [g - alpha * (s - len(x) * m) for g, s, m in zip(*at_both, strict=True)]
        optimizer.step(params, velocity, corrected, len(x))
        trajectory.append([param.copy() for param in params])
    return trajectory


def estimator_of(seed=0):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(2, 3, in_channels=3), gluon.nn.Dropout(0.3), gluon.nn.Dense(3))
    net.initialize(mx.init.Normal(0.1))
    return runs.estimator_of(net, params={"momentum": 0.9})


def augmented(**arguments):
    transform = T.Compose(T.RandomCrop(pad=1), T.RandomFlipLeftRight(), T.ToFloat())
    classes = (np.arange(SAMPLES) % 3).astype("float32")
    return loader(IMAGES, classes, transform=transform, **arguments)


class StopAfter(BatchEnd):
    def __init__(self, batches):
        self.batches = batches

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batches:
            estimator.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "last_batch"), [(3, "keep"), (17, "keep"), (7, "discard")])
def test_a_resume_in_mid_epoch_goes_on_to_the_bit(tmp_path, stop, last_batch):
    def run(epochs=4, resume=None, handlers=(), folder=None):
        estimator = estimator_of(seed=1 if resume else 0)
        handlers = [gs.SVRGHandler(update_freq=2), gs.CheckpointHandler(folder), *handlers]
        data = augmented(last_batch=last_batch)
        estimator.fit(data, epochs=epochs, event_handlers=handlers, resume=resume)
        return problems.weights_of(estimator.net)

    whole = run(folder=tmp_path / "whole")
    run(folder=tmp_path / "parts", handlers=[StopAfter(stop)])
    assert problems.same(run(folder=tmp_path / "parts", resume="auto"), whole)


def test_there_is_no_table_and_the_log_says_why(caplog):
    estimator = estimator_of()
    with caplog.at_level(logging.INFO):
        estimator.fit(augmented(), epochs=1, event_handlers=[gs.SVRGHandler()])
    assert "gradient table off: reshuffle=True makes other batches each epoch" in caplog.text
    assert "not locked" not in caplog.text
    with pytest.raises(ValueError, match=r"batches that repeat .*, but reshuffle=True makes other"):
        estimator.fit(augmented(), epochs=1, event_handlers=[gs.SVRGHandler(gradient_table=True)])


def test_mix_up_has_other_partners_each_epoch_and_cannot_be_locked():
    data = loader(
        IMAGES.astype("float32"), np.arange(SAMPLES) % 3, transform=T.Compose([T.MixUp(3)])
    )
    reason = r"mixes the samples of a batch, and reshuffle=True makes other batches each epoch"
    assert not data.can_lock
    with pytest.raises(ValueError, match=reason):
        data.lock(0)
    assert "reshuffle=True makes other batches" in training_data(data).reason_not_lockable()
    fixed = loader(
        IMAGES.astype("float32"),
        np.arange(SAMPLES) % 3,
        transform=T.Compose([T.MixUp(3)]),
        reshuffle=False,
    )
    assert fixed.can_lock


def test_a_callable_that_repeats_can_be_locked():
    data = loader(transform=lambda x, y: (x * 2, y))
    assert (data.can_lock, data.repeats) == (True, False)
    assert not loader(transform=lambda x, y: (x * np.random.rand(), y)).can_lock


@pytest.mark.parametrize("before", [False, True])
def test_a_resume_needs_the_same(before):
    old, new = (training_data(loader(reshuffle=value)) for value in (before, not before))
    message = f"train_data had reshuffle={before} and now it has reshuffle={not before}: resume"
    with pytest.raises(ValueError, match=message):
        new.check_description(old.description())
    old.check_description(old.description())
    assert ("reshuffle" in old.description()) is before  # as version 0.2 wrote it


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shuffle": False}, ValueError, "reshuffle=True needs shuffle=True, got False: give both"),
        ({"reshuffle": 1}, TypeError, "reshuffle must be a bool, got 1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        loader(**arguments)
