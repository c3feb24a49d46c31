"""What a run asks of its data, by a table over all kinds of data."""

import itertools
import random
import re

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.data import ArrayLoader, Batch, first_batches, transforms as T
from gluon_svrg.data.restore import isolate_rng
from gluon_svrg.data.training_data import batches_of, check_data, length_of, training_data
from mxnet import gluon

SAMPLES, BATCH_SIZE = 22, 4
X = np.arange(2 * SAMPLES, dtype="float32").reshape(-1, 1, 1, 2)
Y = np.arange(SAMPLES, dtype="float32")


class Again:
    """Iterable again, and nothing more; shuffles by NumPy's generator."""

    def __iter__(self):
        for i in np.random.permutation(6):
            yield mx.nd.array(X[4 * i : 4 * i + 4]), mx.nd.array(Y[4 * i : 4 * i + 4])


def batches():
    return [
        (mx.nd.array(X[i : i + BATCH_SIZE]), mx.nd.array(Y[i : i + BATCH_SIZE]))
        for i in range(0, SAMPLES, BATCH_SIZE)
    ]


def index_of(data, batch, position):
    return batch.index if data.has_batch_index else position


def array_loader(**arguments):
    return ArrayLoader(X, Y, **{"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3} | arguments)


def data_loader(**arguments):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), BATCH_SIZE, **arguments)


def ndarray_iter(**arguments):
    return mx.io.NDArrayIter(X, Y, **{"batch_size": BATCH_SIZE} | arguments)


class OwnIter(mx.io.DataIter):
    """A DataIter of the user's own, which has no batch size and pads its last batch."""

    def __init__(self):
        super().__init__()
        self._next = None

    def reset(self):
        self._next = 0

    def next(self):
        begin = self._next
        if begin >= SAMPLES:
            raise StopIteration
        self._next += BATCH_SIZE
        rows = np.arange(begin, begin + BATCH_SIZE)
        pad = max(0, begin + BATCH_SIZE - SAMPLES)
        rows %= SAMPLES
        return mx.io.DataBatch([mx.nd.array(X[rows])], [mx.nd.array(Y[rows])], pad or None)


def flip_some(data, label):
    return data * (1 if random.random() < 0.5 else -1), label


KINDS = {
    "list": batches,
    "tuple": lambda: tuple(batches()),
    "loader": array_loader,
    "loader in order": lambda: array_loader(shuffle=False),
    "loader, prefetch": lambda: array_loader(transform=lambda x, y: (x, y), prefetch=2),
    "loader, random": lambda: array_loader(transform=T.RandomFlipLeftRight()),
    "loader, own draws": lambda: array_loader(transform=flip_some),
    "data loader": data_loader,
    "data loader, shuffled": lambda: data_loader(shuffle=True),
    "iterable": Again,
    "NDArrayIter": ndarray_iter,
    "NDArrayIter, shuffled": lambda: ndarray_iter(shuffle=True),
    "NDArrayIter, discard": lambda: ndarray_iter(last_batch_handle="discard"),
    "own iterator": OwnIter,
}
LOADERS = [name for name in KINDS if name.startswith("loader")]
ITERATORS = [name for name in KINDS if "Iter" in name or name == "own iterator"]
# Each batch is equal each time, and has an index.
REPEAT = ["list", "tuple", "loader", "loader in order", "loader, prefetch", "NDArrayIter"]
REPEAT += ["NDArrayIter, discard"]
INDEXED = [*REPEAT, "loader, random", "loader, own draws"]

by_kind = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(autouse=True)
def _seeds():
    np.random.seed(0)
    random.seed(0)


def make(name):
    return training_data(KINDS[name]())


def rows(batch):
    return [np.asarray(part.asnumpy()).tolist() for part in batch]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def labels(some):
    return [batch[1].asnumpy().astype(int).tolist() for batch in some]


def generators():
    return repr(np.random.get_state(legacy=False)["state"]["key"].tolist()), random.getstate()


def expected_samples(name):
    return 20 if name == "NDArrayIter, discard" else SAMPLES


@pytest.mark.slow
@by_kind
def test_an_epoch_has_each_sample_once(name):
    data = make(name)
    for epoch in range(3):
        seen = list(data.iterate_epoch(epoch))
        found = sorted(flat(labels(seen)))
        assert len(set(found)) == len(found) == expected_samples(name)
        assert set(found) <= set(range(SAMPLES))
        assert sum(len(batch[0]) for batch in seen) == expected_samples(name)
        assert data.num_batches in (None, len(seen))
        assert data.num_samples in (None, expected_samples(name))


@pytest.mark.slow
@by_kind
def test_nothing_is_drawn_before_the_first_batch(name):
    data = make(name)
    before = generators()
    taken = data.iterate_epoch(1)
    assert generators() == before
    assert next(taken) is not None


# The one cannot be resumed, and says so; batches of the other draw, so that their generators have
# to be put back once more when these are asked for.
RESUMED = [name for name in KINDS if name not in ("NDArrayIter, shuffled", "loader, own draws")]


@pytest.mark.full
@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("done", [1, 3, 5])
def test_a_resume_in_an_epoch_has_the_rest_of_it(name, done):
    """With the generators of the epoch's begin at the call, and whatever they are later."""
    data = make(name)
    state = np.random.get_state()
    whole = [rows(batch) for batch in data.iterate_epoch(2)]
    again = make(name)
    np.random.set_state(state)
    rest = again.iterate_epoch(2, done)
    np.random.seed(99)
    assert [rows(batch) for batch in rest] == whole[done:]


@pytest.mark.slow
@by_kind
@pytest.mark.parametrize("done", [7, 30])
def test_too_few_batches_are_an_error(name, done):
    data = make(name)
    if name in LOADERS:
        assert list(data.iterate_epoch(0, done)) == []
        return
    number = 5 if name == "NDArrayIter, discard" else 6
    message = (
        f"train_data has {number} batches in this epoch and the checkpoint was written after "
        f"{done} of them: resume with the data that it was written with"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        data.iterate_epoch(0, done)


@pytest.mark.slow
@by_kind
def test_the_index_of_a_batch(name):
    data = make(name)
    assert data.is_indexed == (name in INDEXED)
    for position, batch in enumerate(data.iterate_epoch(0)):
        index = index_of(data, batch, position)
        if name in LOADERS:
            assert index == batch.index
        else:
            assert index == position
        if name in REPEAT:
            assert rows(data.batch(index)) == rows(batch)
    for index, batch in enumerate(data.in_order()):
        assert name in REPEAT or name not in INDEXED or index_of(data, batch, index) == index
        if name in REPEAT:
            assert rows(data.batch(index)) == rows(batch)
    if name in INDEXED:
        last = data.num_batches - 1
        assert labels([data.batch(-1)]) == labels([data.batch(last)])
        assert data.num_batches == last + 1
        with pytest.raises(IndexError):
            data.batch(last + 1)
    else:
        with pytest.raises(TypeError, match="cannot give batch 0 by itself"):
            data.batch(0)


@pytest.mark.slow
@by_kind
def test_what_repeats_is_equal_each_time(name):
    data = make(name)
    assert (data.reason_not_repeatable() == "") == (name in REPEAT)
    if name not in REPEAT:
        return
    first = {index_of(data, b, i): b for i, b in enumerate(data.iterate_epoch(0))}
    for some in (data.in_order(), data.iterate_epoch(1), data.iterate_epoch(5)):
        for position, batch in enumerate(some):
            index = index_of(data, batch, position)
            assert rows(batch) == rows(first[index])
            is_same = all(a is b for a, b in zip(batch, first[index], strict=True))
            assert is_same == data.keeps_batches


REASONS = {
    "loader, random": "the loader's transform gives something else each time",
    "loader, own draws": "the loader's transform gives something else each time",
    "data loader": "a DataLoader does not promise that its batches repeat",
    "data loader, shuffled": "a DataLoader does not promise that its batches repeat",
    "iterable": "a Again does not promise that its batches repeat",
    "NDArrayIter, shuffled": (
        "an NDArrayIter with shuffle=True divides the samples differently in each epoch"
    ),
    "own iterator": "an OwnIter does not promise that its batches repeat",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONS)
def test_why_it_may_not_repeat(name):
    assert make(name).reason_not_repeatable() == REASONS[name]


def test_an_ndarrayiter_of_several_or_sparse_arrays_promises_less():
    sparse = mx.nd.array(X.reshape(-1, 2)).tostype("csr")
    for iterator in (
        mx.io.NDArrayIter({"a": X, "b": X}, Y, BATCH_SIZE),
        mx.io.NDArrayIter(X, None, BATCH_SIZE),
        mx.io.NDArrayIter(sparse, Y, BATCH_SIZE, last_batch_handle="discard"),
    ):
        assert "pairs of one data and one label array" in (
            training_data(iterator).reason_not_repeatable()
        )


@pytest.mark.slow
@by_kind
def test_locking(name):
    data = make(name)
    can_lock = name in [*INDEXED, "NDArrayIter, shuffled"] and name != "loader, own draws"
    assert data.can_lock == can_lock
    assert data.locked_draw is None
    if not can_lock:
        with pytest.raises(ValueError, match="lock"):
            data.lock(4)
        data.unlock()
        return
    assert data.reason_not_lockable() == ""
    data.lock(4)
    assert data.locked_draw == (4 if name in LOADERS else None)
    if name == "loader, random":
        by_index = [{b.index: rows(b) for b in data.iterate_epoch(epoch)} for epoch in (0, 1)]
        assert by_index[0] == by_index[1] == {b.index: rows(b) for b in data.in_order()}
    data.unlock()
    assert data.locked_draw is None


def test_an_epoch_that_was_begun_has_the_lock_of_its_first_batch():
    """The full pass, which locks, may come between the call and the first batch."""
    data = make("loader, random")
    taken = data.iterate_epoch(3)
    data.lock(1)
    seen = {b.index: rows(b) for b in taken}
    assert seen == {b.index: rows(b) for b in data.in_order()}


def test_an_array_loader_is_told_the_epoch_at_once():
    loader = array_loader()
    training_data(loader).iterate_epoch(7)
    assert loader.epoch == 7


@pytest.mark.full
@by_kind
def test_first_batches_leave_no_trace(name):
    data = make(name)
    unchanged = make(name)
    for some in (data, unchanged):
        np.random.seed(0)
        list(some.iterate_epoch(0))
    np.random.seed(1)
    state = generators()
    taken = data.first_batches(3)
    assert len(taken) == 3
    assert generators() == state
    if name in ("NDArrayIter, shuffled", "loader, own draws"):
        random.seed(0)
    np.random.seed(2)
    ours = labels(data.iterate_epoch(1))
    np.random.seed(2)
    theirs = labels(unchanged.iterate_epoch(1))
    if name != "NDArrayIter, shuffled":  # each of the two was shuffled when it was made
        assert ours == theirs


@pytest.mark.slow
@by_kind
def test_the_public_first_batches_are_those(name):
    made = KINDS[name]()
    with isolate_rng():
        ours = first_batches(made, 2)
    theirs = training_data(made).first_batches(2)
    assert [rows(batch) for batch in ours] == [rows(batch) for batch in theirs]
    assert len(first_batches(made, 100)) == (5 if name == "NDArrayIter, discard" else 6)


def test_an_ndarrayiter_can_be_looked_at_in_an_epoch():
    data = make("NDArrayIter, shuffled")
    epoch = data.iterate_epoch(0)
    begin = labels([next(epoch)])
    looked = labels(data.first_batches(6))
    assert labels(data.in_order()) == looked
    assert begin + labels(epoch) == looked


def message_of_0_1(own, saved):
    """The message of version 0.1, which had two kinds of data."""
    if set(own) != set(saved):
        kinds = ["an ArrayLoader" if "seed" in d else "no ArrayLoader" for d in (saved, own)]
        return (
            f"its train_data was {kinds[0]} and now it is {kinds[1]}: resume with the data that "
            "it was written with"
        )
    name, value = next((name, value) for name, value in own.items() if value != saved[name])
    return (
        f"its train_data had {name}={saved[name]!r} and now it has {name}={value!r}: resume with "
        "the data that it was written with"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("loader", {"samples": 22, "batch_size": 4, "shuffle": True, "seed": 3}),
        ("loader in order", {"samples": 22, "batch_size": 4, "shuffle": False, "seed": None}),
        ("loader, random", {"samples": 22, "batch_size": 4, "shuffle": True, "seed": 3}),
        ("list", {"batches": 6}),
        ("tuple", {"batches": 6}),
        ("data loader", {"batches": 6}),
        ("iterable", {"batches": None}),
    ],
)
def test_the_description_is_that_of_version_0_1(name, description):
    assert make(name).description() == description
    loader = array_loader(shuffle=False, transform=T.RandomFlipLeftRight())
    assert training_data(loader).description()["seed"] == 3


def test_a_description_of_a_data_iter():
    assert make("NDArrayIter").description() == {
        "iterator": "NDArrayIter",
        "batch_size": 4,
        "samples": 22,
    }
    assert make("own iterator").description() == {
        "iterator": "OwnIter",
        "batch_size": 0,
        "samples": None,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    list(itertools.product(KINDS, ["loader", "list", "iterable", "NDArrayIter"])),
)
def test_a_description_is_checked(name, other):
    data, saved = make(name), make(other).description()
    data.check_description(data.description())
    if saved == data.description():
        data.check_description(saved)
        return
    with pytest.raises(ValueError, match="resume with the data that it was written with") as caught:
        data.check_description(saved)
    if name not in ITERATORS and other != "NDArrayIter":
        assert str(caught.value) == message_of_0_1(data.description(), saved)


@pytest.mark.parametrize(
    ("saved", "name", "message"),
    [
        ("list", "loader", "its train_data was no ArrayLoader and now it is an ArrayLoader:"),
        ("loader", "NDArrayIter", "its train_data was an ArrayLoader and now it is no ArrayLoader"),
        ("list", "NDArrayIter", "its train_data was no DataIter and now it is a DataIter:"),
        ("NDArrayIter", "list", "its train_data was a DataIter and now it is no DataIter:"),
        (
            "NDArrayIter",
            "NDArrayIter, discard",
            "its train_data had samples=22 and now it has samples=20: resume with the data",
        ),
        (
            "loader",
            "loader in order",
            "its train_data had shuffle=True and now it has shuffle=False: resume with the data",
        ),
    ],
)
def test_messages_of_a_description(saved, name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(name).check_description(make(saved).description())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (
            lambda: data_loader(last_batch="rollover"),
            "train_data has last_batch='rollover', which carries samples from epoch to epoch, and "
            "a checkpoint cannot hold them: use last_batch='keep' or 'discard'",
        ),
        (
            lambda: ndarray_iter(last_batch_handle="roll_over"),
            "train_data has last_batch_handle='roll_over', which carries samples from epoch to "
            "epoch, and a checkpoint cannot hold them: use 'pad' or 'discard'",
        ),
        (
            lambda: ndarray_iter(shuffle=True),
            "train_data is an NDArrayIter with shuffle=True, which shuffles what the epoch before "
            "has left, and a checkpoint does not hold that order: use a "
            "gluon_svrg.data.ArrayLoader or a gluon.data.DataLoader, which shuffle too",
        ),
        (
            OwnIter,
            "train_data is an OwnIter, of which cannot be known whether it gives the same batches "
            "after a resume",
        ),
    ],
)
def test_what_cannot_be_resumed(make_it, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        training_data(make_it()).check_can_resume()


@pytest.mark.slow
@by_kind
def test_what_can_be_resumed(name):
    if name not in ("NDArrayIter, shuffled", "own iterator"):
        make(name).check_can_resume()


@pytest.mark.slow
@by_kind
def test_validation_batches_are_those_of_an_iteration(name):
    made = KINDS[name]()
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        ours = labels(batches_of(made, "val_data"))
        assert sorted(flat(ours)) == list(range(expected_samples(name)))
    loader, other = array_loader(), array_loader()
    assert labels(batches_of(loader, "val_data")) == labels(iter(other))
    assert loader.epoch == other.epoch == 1


BAD = {
    "generator": (
        lambda: (batch for batch in batches()),
        "must be iterable again each epoch, got <generator object",
        "which is gone after one pass: give a DataLoader, or make a list of it",
    ),
    "number": (
        lambda: 3,
        "must be an iterable of (data, label) batches, got 3: give a DataLoader, a list of",
    ),
    "nothing": (lambda: None, "must be an iterable of (data, label) batches, got None: give a"),
    "empty list": (list, "is empty: give at least one batch"),
    "empty loader": (lambda: gluon.data.DataLoader([], 4), "is empty: give at least one batch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("factory", [training_data, batches_of, check_data])
def test_what_is_no_data(name, factory):
    make_it, *parts = BAD[name]
    with pytest.raises(ValueError, match=f"^my_data {re.escape(parts[0])}") as caught:
        factory(make_it(), "my_data")
    assert all(part in str(caught.value) for part in parts)


def test_an_iterator_without_a_batch_is_empty():
    iterator = mx.io.NDArrayIter(X[:3], Y[:3], BATCH_SIZE, last_batch_handle="discard")
    with pytest.raises(ValueError, match="train_data is empty: give at least one batch"):
        training_data(iterator)


def test_lengths():
    assert [length_of(x) for x in ([1, 2], (), Again(), 3, gluon.data.Dataset())] == [
        2,
        0,
        None,
        None,
        None,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    assert make(name).kind == {
        "list": "a list",
        "tuple": "a tuple",
        "data loader": "a DataLoader",
        "data loader, shuffled": "a DataLoader",
        "iterable": "a Again",
        "own iterator": "an OwnIter",
    }.get(name, "an ArrayLoader" if name in LOADERS else "an NDArrayIter")


def test_generators_are_left_as_they_were_after_an_exception():
    before = generators()

    def fail():
        with isolate_rng():
            np.random.rand(3)
            random.random()
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert generators() == before


def test_batch_has_one_home():
    from gluon_svrg.arrays import batch
    from gluon_svrg.data import loader

    assert batch.Batch is loader.Batch is Batch


CASES = [
    (samples, size, shuffle, last, seed)
    for samples, size in [(1, 1), (5, 2), (16, 4), (17, 4), (23, 7), (9, 20)]
    for shuffle in (False, True)
    for last in ("keep", "discard")
    for seed in (0, 1, 2**40)
    if last == "keep" or samples >= size
]


@pytest.mark.parametrize(("samples", "size", "shuffle", "last", "seed"), CASES)
def test_properties_of_an_array_loaders_order(samples, size, shuffle, last, seed):
    def made():
        return training_data(
            ArrayLoader(
                np.arange(samples), batch_size=size, shuffle=shuffle, last_batch=last, seed=seed
            )
        )

    data = made()
    number = -(-samples // size) if last == "keep" else samples // size
    partition = [rows(data.batch(i)) for i in range(number)]
    flat = sorted(x for (part,) in partition for x in part)
    assert data.num_batches == number
    assert data.num_samples == len(flat) == len(set(flat))
    assert last == "discard" or flat == list(range(samples))
    for epoch in (0, 1, 7):
        order = [batch.index for batch in data.iterate_epoch(epoch)]
        assert sorted(order) == list(range(number))  # a permutation
        assert shuffle or order == sorted(order)
        # Whatever was visited before, and in another process.
        fresh = made()
        for done in range(number + 1):
            rest = list((data if done % 2 else fresh).iterate_epoch(epoch, done))
            assert [batch.index for batch in rest] == order[done:]
            assert [rows(batch) for batch in rest] == [partition[i] for i in order[done:]]
