"""Every worker's part of the data: together they are the whole, batch by batch, bit for bit."""

import itertools

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.batch import is_empty, sample_axis
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.data import ArrayLoader, Batch, WorkerBatchSampler, transforms as T
from gluon_svrg.data.sharding import Shard
from gluon_svrg.data.training_data import ShardedBatches, batches_of, shard, training_data
from gluon_svrg.workers import SingleProcess
from mxnet import gluon

SAMPLES, SIZE = 23, 5  # the last batch has 3, fewer than the most workers here
RNG = np.random.RandomState(0)
X = RNG.randint(0, 256, (SAMPLES, 3, 6, 6)).astype("uint8")
Y = RNG.randint(0, 10, SAMPLES).astype("float32")
W = RNG.uniform(size=SAMPLES).astype("float32")


class Several(SingleProcess):
    """One of several workers, all of which have given what this one gives."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size

    def all_gather_object(self, value, label):
        return [value] * self.size

    def broadcast_object(self, value, label):
        return value


class OwnTransform(T.RandomTransform):
    """Draws for the batch as a whole: another row beside it, other numbers."""

    def apply(self, arrays, draw):
        noise = draw.generator().normal(size=arrays[0].shape)
        return [arrays[0] + noise.astype("float32"), *arrays[1:]]


class Again:
    """Iterable again, and nothing more; shuffles by NumPy's generator."""

    def __iter__(self):
        for i in np.random.permutation(6):
            yield mx.nd.array(X[4 * i : 4 * i + 4]), mx.nd.array(Y[4 * i : 4 * i + 4])


def loader(*arrays, **arguments):
    given = {"batch_size": SIZE, "shuffle": True, "seed": 3} | arguments
    return lambda workers: ArrayLoader(*(arrays or (X, Y)), **given)


def cut(make):
    """Return a list of batches, by what makes one of rows."""
    return lambda workers: [make(slice(i, i + SIZE)) for i in range(0, SAMPLES, SIZE)]


def data_loader(workers):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), SIZE, shuffle=True)


def own_data_loader(workers, size=SIZE, last_batch="keep"):
    dataset = gluon.data.ArrayDataset(X, Y)
    sampler = WorkerBatchSampler(gluon.data.RandomSampler(SAMPLES), size, last_batch, workers)
    return gluon.data.DataLoader(dataset, batch_sampler=sampler)


def on_disk(workers):
    file = np.memmap("/dev/zero", dtype="uint8", mode="r", shape=(SAMPLES, 4))
    return ArrayLoader(file, Y, batch_size=SIZE, shuffle=True, seed=1)


AUGMENTED = T.Compose(
    T.RandomCrop(pad=1),
    T.RandomFlipLeftRight(),
    T.ToFloat(),
    T.RandomColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
    T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)),
    T.Cutout(3),
    T.OneHot(10, 0.1),
)
MIXED = T.Compose(T.ToFloat(), T.MixUp(10))

KINDS = {
    "arrays": loader(),
    "arrays in order": loader(shuffle=False),
    "NDArrays in order": loader(mx.nd.array(X), mx.nd.array(Y), shuffle=False),
    "several inputs": loader((X, {"w": W}), {"a": Y, "b": W}),
    "discard": loader(last_batch="discard"),
    "reshuffle": loader(reshuffle=True),
    "transform": loader(transform=AUGMENTED),
    "transform and prefetch": loader(transform=AUGMENTED, prefetch=2, reshuffle=True),
    "mixed": loader(transform=MIXED),
    "mixed and reshuffle": loader(transform=MIXED, reshuffle=True),
    "own transform": loader(X.astype("float32"), Y, transform=OwnTransform()),
    "callable": loader(transform=lambda x, y: (x.astype("float32") - 1, y + 0)),
    "memmap": on_disk,
    "one array": loader(W),
    "list": cut(lambda rows: (mx.nd.array(X[rows]), mx.nd.array(Y[rows]))),
    "tuple of lists": lambda workers: tuple(
        cut(lambda rows: [mx.nd.array(X[rows]), mx.nd.array(Y[rows])])(workers)
    ),
    "NumPy": cut(lambda rows: (X[rows], Y[rows], W[rows])),
    "dicts": cut(
        lambda rows: {
            "data": {"x": mx.nd.array(X[rows]), "w": W[rows]},
            "label": Y[rows],
            "sample_weight": mx.nd.array(W[rows]),
        }
    ),
    "weights of elements": cut(
        lambda rows: (X[rows], Y[rows], np.ones((1, 4), dtype="float32") * W[0])
    ),
    "sparse": cut(lambda rows: (mx.nd.array(X[rows, 0, 0]).tostype("csr"), mx.nd.array(Y[rows]))),
    "DataLoader": data_loader,
    "WorkerBatchSampler": own_data_loader,
    "NDArrayIter": lambda workers: mx.io.NDArrayIter(X, Y, SIZE),
    "NDArrayIter that shuffles": lambda workers: mx.io.NDArrayIter(X, Y, SIZE, shuffle=True),
    "iterable": lambda workers: Again(),
}


def parts_of(make, size, axis=0):
    """Return the data of each worker; nothing of one is another's."""
    parts = []
    for rank in range(size):
        workers = Several(rank, size)
        np.random.seed(1)
        parts.append(training_data(make(workers)).sharded(workers, axis))
    return parts


def whole_of(make):
    np.random.seed(1)
    return training_data(make(SingleProcess()))


def drawn(function, *args):
    """Return what is drawn with NumPy's generator as it is on all workers, as a list."""
    np.random.seed(2)
    return list(function(*args))


def bits(array):
    if isinstance(array, mx.nd.NDArray):
        return array.asnumpy()
    return np.asarray(array)


def check(whole, parts, axis=0, shares=None):
    """Assert that the parts of one batch are the whole, with its index and its structure."""
    for part in parts:
        if isinstance(whole, Batch):
            assert part.index == whole.index
        if not is_empty(part):
            assert type(part) is type(whole)
    leaves = [tree_leaves(part) for part in parts if not is_empty(part)]
    for i, leaf in enumerate(tree_leaves(whole)):
        expected, own = bits(leaf), [bits(part[i]) for part in leaves]
        if expected.shape[0] == 1 != len(own[0]) or (expected.ndim == 2 and len(expected) == 1):
            assert all(np.array_equal(array, expected) for array in own)  # a row for all
            continue
        joined = np.concatenate(own, sample_axis(expected, axis))
        assert joined.dtype == expected.dtype
        assert joined.tobytes() == expected.tobytes()
        assert joined.shape == expected.shape


def check_all(whole, parts, axis=0):
    assert len({len(batches) for batches in (whole, *parts)}) == 1
    for batch, *own in zip(whole, *parts, strict=True):
        check(batch, own, axis)


def test_rows_of_a_batch():
    for size, samples in itertools.product(range(1, 10), range(21)):
        rows = [Shard(rank, size).rows(samples) for rank in range(size)]
        lengths = [row.stop - row.start for row in rows]
        assert [row.start for row in rows[1:]] == [row.stop for row in rows[:-1]]
        assert (rows[0].start, rows[-1].stop) == (0, samples)
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) == 0 or samples >= size


def test_one_worker_has_the_data_themselves():
    data = training_data(KINDS["list"](SingleProcess()))
    assert data.sharded(SingleProcess()) is data


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", KINDS)
def test_parts_are_the_whole(name, size):
    make = KINDS[name]
    whole, parts = whole_of(make), parts_of(make, size)
    for part in parts:
        assert (part.num_batches, part.num_samples) == (whole.num_batches, whole.num_samples)
        assert part.description() == whole.description()
        assert (part.kind, part.can_lock, part.keeps_batches, part.is_indexed) == (
            whole.kind,
            whole.can_lock,
            whole.keeps_batches,
            whole.is_indexed,
        )
    # A DataIter that shuffles does so in place: each begins with the order of the one before.
    for epoch, done in [(0, 0), (1, 0), (1, 2)]:
        check_all(
            drawn(whole.iterate_epoch, epoch, done),
            [drawn(part.iterate_epoch, epoch, done) for part in parts],
        )
    check_all(drawn(whole.in_order), [drawn(part.in_order) for part in parts])
    check_all(drawn(whole.first_batches, 2), [drawn(part.first_batches, 2) for part in parts])
    if whole.is_indexed:
        for index in (0, 2, -1):
            check(whole.batch(index), [part.batch(index) for part in parts])
    if whole.can_lock:
        for data in (whole, *parts):
            data.lock(7)
            assert data.locked_draw == whole.locked_draw
        check_all(drawn(whole.iterate_epoch, 2), [drawn(part.iterate_epoch, 2) for part in parts])
        for data in (whole, *parts):
            data.unlock()
        check_all(drawn(whole.iterate_epoch, 3), [drawn(part.iterate_epoch, 3) for part in parts])


@pytest.mark.parametrize("size", [2, 3])
def test_samples_along_another_axis(size):
    def sequences(workers):
        return [
            (mx.nd.array(np.swapaxes(X[rows, 0], 0, 1)), mx.nd.array(Y[rows]), np.ones((1, 1)))
            for rows in (slice(0, 5), slice(5, 6), slice(6, 9))
        ]

    def arrays(workers):  # 6 steps of 23 samples, 4 steps a batch
        return ArrayLoader(np.swapaxes(X[:, 0], 0, 1).copy(), batch_size=4)

    for make in (sequences, arrays):
        check_all(
            drawn(whole_of(make).iterate_epoch, 0),
            [drawn(part.iterate_epoch, 0) for part in parts_of(make, size, 1)],
            axis=1,
        )


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("last_batch", ["keep", "discard"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 23, 50])
def test_worker_batch_sampler(batch_size, last_batch, size):
    if batch_size > SAMPLES and last_batch == "discard":
        pytest.skip("no batch")
    whole = gluon.data.BatchSampler(gluon.data.SequentialSampler(SAMPLES), batch_size, last_batch)
    samplers = [
        WorkerBatchSampler(SAMPLES, batch_size, last_batch, Several(rank, size))
        for rank in range(size)
    ]
    own = [iter(list(sampler)) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(list(s)) for s in samplers]
    assert {sampler.num_batches for sampler in samplers} == {len(whole)}
    for index, batch in enumerate(whole):
        parts = [next(o) for o, s in zip(own, samplers, strict=True) if s.has_samples(index)]
        assert list(itertools.chain(*parts)) == batch
    data = [own_data_loader(Several(r, size), batch_size, last_batch) for r in range(size)]
    for rank, part in enumerate(data):
        sharded = training_data(part).sharded(Several(rank, size))
        assert len(drawn(sharded.iterate_epoch, 0)) == sharded.num_batches == len(whole)


def test_a_worker_without_a_row_has_an_empty_batch():
    first, _, _ = parts_of(cut(lambda rows: (X[rows][:1], Y[rows][:1])), 3)
    batches = list(first.iterate_epoch(0, 1))
    assert all(map(is_empty, batches))
    assert [batch.index for batch in batches] == [1, 2, 3, 4]
    lone = parts_of(loader(batch_size=2), 3)[0]
    assert {is_empty(batch) for batch in lone.iterate_epoch(0)} == {True}
    assert sorted(batch.index for batch in lone.iterate_epoch(1)) == list(range(12))


@pytest.mark.parametrize("name", ["list", "arrays in order", "arrays", "dicts"])
def test_parts_that_are_kept_are_the_same_objects(name):
    data = KINDS[name](None)
    workers = Several(1, 2)
    part = training_data(data).sharded(workers)
    again = part.sharded(workers)
    first = {i: tree_leaves(part.batch(i)) for i in range(part.num_batches)}
    for batches in (part.in_order(), again.in_order(), again.first_batches(9)):
        for position, batch in enumerate(batches):
            index = batch.index if part.has_batch_index else position
            leaves = tree_leaves(batch)
            assert all(a is b for a, b in zip(leaves, first[index], strict=True))
    assert part.batch(-1) is part.batch(part.num_batches - 1)


def test_a_list_whose_batches_are_exchanged():
    data = KINDS["list"](None)
    part = training_data(data).sharded(Several(1, 2))
    before = list(part.in_order())
    data.reverse()
    check_all(data[::-1], [[b[: len(b)] for b in data[::-1]]])
    assert before[0][1].asnumpy().tolist() == part.batch(4)[1].asnumpy().tolist()


def test_only_own_rows_are_transformed():
    seen = []

    class Watched(T.ToFloat):
        def apply(self, arrays, draw):
            seen.append(len(arrays[0]))
            return super().apply(arrays, draw)

    part = parts_of(loader(transform=Watched()), 5)[4]
    list(part.iterate_epoch(0))
    assert seen == [1] * 5
    view = parts_of(KINDS["NDArrays in order"], 2)[1].batch(0)[0]
    assert view.shape[0] == 3


def test_the_loader_of_the_user_stays_as_it_is():
    own = loader()(None)
    before = list(own.in_order())
    part = training_data(own).sharded(Several(0, 2))
    list(part.iterate_epoch(4))
    part.lock(3)
    assert (own.epoch, own.locked_draw, own.seed) == (5, 3, 3)
    part.unlock()
    for batch, again in zip(before, own.in_order(), strict=True):
        assert batch is again


def test_the_seed_that_was_drawn_is_the_first_workers():
    class Second(Several):
        def broadcast_object(self, value, label):
            return 3

    own = ArrayLoader(X, Y, batch_size=SIZE, shuffle=True)
    given = loader()(None)
    list(own)  # whose batches are kept
    part = training_data(own).sharded(Second(1, 2))
    assert own.seed == 3
    check_all(list(given.in_order()), [list(own.in_order())])
    check_all(
        list(given.in_order()), [list(parts_of(loader(), 2)[0].in_order()), list(part.in_order())]
    )
    assert part.description() == training_data(given).description()


def test_evaluation_data():
    batches = [list(batches_of(KINDS["list"](None), "val_data", Several(r, 3))) for r in range(3)]
    check_all(KINDS["list"](None), batches)
    assert len(list(batches_of(KINDS["list"](None), "val_data"))) == 5


@pytest.mark.parametrize("name", KINDS)
def test_a_hand_written_loop_in_one_process_has_all_batches(name):
    np.random.seed(1)
    batches = shard(KINDS[name](SingleProcess()))
    whole = whole_of(KINDS[name])
    if whole.num_batches is not None:
        assert len(batches) == whole.num_batches
    for _ in range(2):
        check_all(drawn(whole.iterate_once), [drawn(iter, batches)])
    assert list(map(type, shard(batches))) == list(map(type, batches))


def test_a_hand_written_loop_needs_a_row_for_each_worker():
    batches = ShardedBatches(parts_of(loader(shuffle=False, batch_size=11), 2)[0])
    rows = iter(batches)
    assert [len(next(rows)[0]) for _ in range(2)] == [5, 5]
    with pytest.raises(ValueError, match=r"no sample of batch 2 .* last_batch='discard'"):
        next(rows)


def test_sharded_data_are_restored():
    """Trial steps read this worker's rows, and leave the position as it was."""
    for name in ("NDArrayIter", "NDArrayIter that shuffles", "list", "arrays", "DataLoader"):
        whole, (first, second) = whole_of(KINDS[name]), parts_of(KINDS[name], 2)
        with whole.restored() as epoch, first.restored() as upper, second.restored() as lower:
            check_all(drawn(epoch, 0), [drawn(upper, 0), drawn(lower, 0)])


@pytest.mark.full
def test_what_is_told():
    workers = Several(0, 4)
    text = training_data(data_loader(None)).sharded(workers).describe_sharding(workers)
    assert "4 workers: each loads whole batches of a DataLoader" in text
    assert "WorkerBatchSampler" in text
    for make in (own_data_loader, loader()):
        text = training_data(make(workers)).sharded(workers).describe_sharding(workers)
        assert text.startswith("4 workers: each trains on its part of every batch of a")


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ((X, "label"), "holds a str, which has no axis of samples"),
        (object(), "an object cannot be divided between workers"),
        ((X, mx.nd.array([1.0])[0]), "same number of samples"),
        ((X, np.float32(3)), "which has no axis of samples"),
        ((X, Y[:-1]), r"along axis 0 .*\(22,\)\]: look at how"),
        ((mx.nd.array(X[:, 0, 0]).tostype("row_sparse"), Y), "'row_sparse', which has no slices"),
        ((), "has no arrays"),
        ((X, Y[:1]), "same number of samples"),
    ],
)
def test_batches_that_cannot_be_shared_out(batch, reason):
    with pytest.raises(ValueError, match=reason):
        Shard(0, 2).take(batch, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"batch_size": 2, "last_batch": "rollover"}, ValueError, "the same number of batches"),
        ({"batch_size": 2, "last_batch": "no"}, ValueError, "must be 'keep' or 'discard'"),
        ({"batch_size": 2, "sampler": 0}, ValueError, "sampler must be"),
    ],
)
def test_arguments_of_the_sampler(arguments, error, message):
    with pytest.raises(error, match=message):
        WorkerBatchSampler(**{"sampler": 4} | arguments)


def test_a_sampler_with_another_length():
    class Short(gluon.data.SequentialSampler):
        def __len__(self):
            return 7

    with pytest.raises(ValueError, match="yields 4 indices and has the length 7"):
        list(WorkerBatchSampler(Short(4), 2))


@pytest.mark.slow
def test_a_sampler_for_other_workers():
    data = training_data(own_data_loader(SingleProcess()))
    with pytest.raises(ValueError, match="is for worker 0 of 1, and this is worker 1 of 2"):
        data.sharded(Several(1, 2))
