"""ArrayLoader with transforms: the draw decides a sample's pixels, and nothing else does."""

import copy
import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.data import ArrayLoader, first_batches, transforms as T
from gluon_svrg.data.draw import EPOCH, IN_ORDER, LOCKED

SAMPLES, BATCH_SIZE = 22, 4
IMAGES = np.random.default_rng(0).integers(0, 256, (SAMPLES, 3, 6, 6)).astype("uint8")
LABELS = np.arange(SAMPLES)


def augment(*more):
    return T.Compose(T.RandomCrop(pad=2), T.RandomFlipLeftRight(), T.ToFloat(), *more)


def loader(transform=None, **arguments):
    arguments = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 5} | arguments
    transform = augment() if transform is None else transform
    return ArrayLoader(IMAGES, LABELS, transform=transform, **arguments)


def pixels(batches):
    """Each sample's pixels, by its label."""
    return {
        int(label): image
        for images, labels in batches
        for image, label in zip(images.asnumpy(), labels.asnumpy(), strict=True)
    }


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[label], theirs[label]) for label in ours
    )


def differ(ours, theirs):
    """Whether hardly a sample is the same."""
    return sum(np.array_equal(ours[label], theirs[label]) for label in ours) <= 4


def expected(stream, number, seed=5, transform=None):
    transform = augment() if transform is None else transform
    draw = T.Draw(seed, number, np.arange(SAMPLES), stream)
    return dict(enumerate(transform(IMAGES, draw=draw)))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_between_two_locks_every_pass_sees_the_same_pixels(shuffle, prefetch):
    data = loader(shuffle=shuffle, prefetch=prefetch)
    seen = []
    for draw in range(2):
        data.lock(draw)
        assert data.locked_draw == draw
        assert data.repeats
        snapshot = pixels(data.in_order())
        assert same(snapshot, expected(LOCKED, draw))
        for _ in range(2):  # epochs
            assert same(pixels(data), snapshot)
        assert same(pixels(data[index] for index in range(len(data))), snapshot)
        seen.append(snapshot)
    assert differ(*seen)
    data.lock(0)
    assert same(pixels(data), seen[0])


def test_unlocked_each_epoch_and_each_pass_in_order_draws_again():
    data = loader()
    assert data.locked_draw is None
    passes = []
    for epoch in range(3):
        passes.append(pixels(data.in_order()))
        assert same(passes[-1], expected(IN_ORDER, epoch))
        assert same(pixels(data[index] for index in range(len(data))), passes[-1])
        passes.append(pixels(data))
        assert same(passes[-1], expected(EPOCH, epoch))
    data.lock(0)
    passes.append(pixels(data))
    assert all(differ(a, b) for a, b in itertools.combinations(passes, 2))
    data.unlock()
    assert data.locked_draw is None
    data.set_epoch(1)
    assert same(pixels(data), passes[3])


@pytest.mark.parametrize("draw", [None, 7])
def test_batch_size_order_and_kind_of_array_do_not_matter(draw, tmp_path):
    path = tmp_path / "images.bin"
    IMAGES.tofile(path)
    memmap = np.memmap(path, dtype="uint8", mode="r", shape=IMAGES.shape)
    nd = mx.nd.array(IMAGES, dtype="uint8", ctx=mx.cpu(1))
    reference = expected(EPOCH, 0) if draw is None else expected(LOCKED, draw)
    for images, batch_size, shuffle in itertools.product(
        [IMAGES, memmap, nd], [1, 4, 7, 50], [False, True]
    ):
        data = ArrayLoader(
            images, LABELS, batch_size=batch_size, shuffle=shuffle, seed=5, transform=augment()
        )
        if draw is not None:
            data.lock(draw)
        batches = list(data)
        assert same(pixels(batches), reference)
        assert all(
            batch[0].context == (mx.cpu(1) if images is nd else mx.cpu(0)) for batch in batches
        )
        assert all(batch[1].dtype == np.int64 for batch in batches)


def test_mix_up_is_the_same_for_the_same_partition():
    mixed = augment(T.MixUp(SAMPLES))

    def arrays(data):
        return {batch.index: [array.asnumpy() for array in batch] for batch in data}

    ours, theirs = loader(mixed), loader(mixed)
    for data in (ours, theirs):
        data.lock(3)
    theirs.set_epoch(4)  # another order
    first, second = arrays(ours), arrays(theirs)
    assert first[0][1].shape == (BATCH_SIZE, SAMPLES)
    assert all(problems.same(first[index], second[index]) for index in first)
    ours.lock(4)
    assert not any(problems.same(first[k], batch) for k, batch in arrays(ours).items())


def test_a_resume_goes_on_with_the_same_pixels():
    for draw in (None, 2):
        whole, resumed = loader(), loader()
        if draw is not None:
            whole.lock(draw)
            resumed.lock(draw)
        list(whole)
        rest = list(whole)[2:]
        np.random.rand(3)
        resumed.set_epoch(1, 2)
        for ours, theirs in zip(rest, resumed, strict=True):
            assert ours.index == theirs.index
            assert problems.same([ours[0].asnumpy()], [theirs[0].asnumpy()])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iterator_under_way_keeps_its_draw(prefetch):
    data = loader(prefetch=prefetch)
    batches = iter(data)
    first = [next(batches)]
    data.lock(1)
    assert same(pixels(first + list(batches)), expected(EPOCH, 0))
    batches = data.in_order()  # begun when it is made
    data.unlock()
    assert same(pixels(batches), expected(LOCKED, 1))


def test_the_seed_of_a_random_transform():
    def seeds():
        gs.seed_everything(3)
        return [loader(seed=None, shuffle=False).seed for _ in range(2)]

    first, second = seeds()
    assert first != second
    assert seeds() == [first, second]
    assert loader(T.ToFloat(), seed=None, shuffle=False).seed is None
    data = loader(seed=None, shuffle=False)
    assert same(pixels(data), expected(EPOCH, 0, seed=data.seed))
    assert differ(pixels(loader(seed=6)), pixels(loader(seed=5)))


def test_nothing_is_drawn_from_the_global_generators():
    data = loader()
    state = np.random.get_state()[1:3]
    mx.random.seed(1)
    list(data)
    after = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(1)
    assert np.array_equal(after, mx.nd.random.uniform(shape=(3,)).asnumpy())
    assert all(np.array_equal(a, b) for a, b in zip(state, np.random.get_state()[1:3], strict=True))


@pytest.mark.parametrize(
    ("transform", "is_random", "can_lock", "repeats"),
    [
        (None, False, True, True),
        (T.ToFloat(), False, True, True),
        (T.Compose(T.ToFloat(), T.OneHot(SAMPLES)), False, True, True),
        (T.RandomFlipLeftRight(), True, True, False),
        (augment(), True, True, False),
        (lambda x, y: (x.astype("float32"), y), False, True, True),
        (lambda x, y: (x * int(np.random.randint(9)), y), False, False, False),
    ],
)
def test_what_it_says_of_itself(transform, is_random, can_lock, repeats):
    data = ArrayLoader(IMAGES, LABELS, batch_size=4, transform=transform)
    assert data.is_random is is_random
    assert data.can_lock is can_lock
    assert data.repeats is repeats
    if can_lock:
        data.lock(0)
        assert data.repeats
        data.unlock()
        assert data.repeats is repeats


def test_the_locked_loader_without_a_random_transform_is_as_ever():
    data = ArrayLoader(IMAGES, LABELS, batch_size=4)
    first = list(data)
    data.lock(3)
    assert all(a is b for a, b in zip(data, first, strict=True))


def test_a_loader_that_draws_by_itself_cannot_be_locked():
    def draw(x, y):
        return x * int(np.random.randint(9)), y

    data = loader(draw)
    with pytest.raises(
        ValueError, match=r"transform, <function .*, draws .* cannot be locked: giv"
    ):
        data.lock(0)
    assert data.locked_draw is None


@pytest.mark.parametrize(("draw", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_draw_is_a_non_negative_integer(draw, error):
    data = loader()
    data.lock(2)
    message = (
        f"draw must be a non-negative integer, got {draw}: the augmentation of every sample depends"
    )
    with pytest.raises(error, match=message):
        data.lock(draw)
    assert data.locked_draw == 2


@pytest.mark.parametrize("prefetch", [0, 2])
def test_first_batches_have_the_augmentation_of_epoch_0(prefetch):
    data = loader(prefetch=prefetch)
    epoch_0 = pixels(data)
    taken = first_batches(data, 3)
    assert [batch.index for batch in taken] == data.order(0)[:3]
    assert all(np.array_equal(x, epoch_0[label]) for label, x in pixels(taken).items())
    assert data.epoch == 1
    data.lock(2)
    locked = expected(LOCKED, 2)
    assert all(np.array_equal(x, locked[k]) for k, x in pixels(first_batches(data, 2)).items())


@pytest.mark.parametrize("last_batch", ["keep", "discard"])
def test_lengths_and_indices_are_as_without_a_transform(last_batch):
    data = loader(last_batch=last_batch)
    assert data.num_samples == (22 if last_batch == "keep" else 20)
    assert len(pixels(data)) == data.num_samples
    assert data[-1].index == len(data) - 1
    assert data[-1][0].shape[1:] == (3, 6, 6)
    assert same(pixels(copy.copy(data).in_order()), pixels(data.in_order()))


def test_a_single_array():
    data = ArrayLoader(IMAGES, batch_size=4, transform=augment(), seed=5)
    whole = np.concatenate([batch[0].asnumpy() for batch in data])
    assert problems.same([whole], [np.stack(list(expected(EPOCH, 0).values()))])


def test_arrays_of_another_byte_order():
    images = (IMAGES / 255).astype(">f4")
    data = ArrayLoader(images, batch_size=4, transform=T.RandomFlipLeftRight(), seed=5)
    reference = expected(EPOCH, 0, transform=T.RandomFlipLeftRight())
    flipped = np.stack(list(reference.values())) / 255
    whole = np.concatenate([batch[0].asnumpy() for batch in data])
    np.testing.assert_allclose(whole, flipped, rtol=1e-6)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_a_transform_reaches_the_loop(prefetch):
    data = loader(T.RandomCrop(20, pad=0), prefetch=prefetch)
    with pytest.raises(ValueError, match="RandomCrop cannot cut 20 x 20 pixels"):
        list(data)


def test_the_estimator_trains_on_mixed_batches():
    net = mx.gluon.nn.Dense(3)
    net.initialize(mx.init.Xavier())
    transform = augment(T.OneHot(3, 0.1), T.MixUp(3))
    data = ArrayLoader(IMAGES, LABELS % 3, batch_size=8, shuffle=True, transform=transform)
    estimator = gs.Estimator(
        net,
        mx.gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False),
        train_metrics=mx.metric.Loss(),
        trainer=mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
    )
    estimator.logger.handlers.clear()
    history = estimator.fit(data, epochs=2).history
    assert [row["samples"] for row in history] == [SAMPLES] * 2
