"""MXNet's DataIters: each sample once in each pass, whatever fills up their batches."""

import gc
import itertools
import re
import warnings
import weakref

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.data import Batch, data_iter, first_batches
from gluon_svrg.data.training_data import batches_of, training_data


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def ids(some):
    """Label by label, which is the sample's number."""
    return [batch[1].asnumpy().astype(int).tolist() for batch in some]


def samples_of(some):
    return sorted(flat(ids(some)))


MADE = []


@pytest.fixture(autouse=True)
def _read_to_the_end():
    """MXNet 1.9.1 crashes if a LibSVMIter is freed while its thread still reads ahead."""
    yield
    for iterator in MADE:
        for _ in iterator:
            pass
    MADE.clear()


def kept(iterator):
    MADE.append(iterator)
    return iterator


def svm_file(folder, samples):
    """Sample i has the value i + 1 in the column i modulo 5, and the label i."""
    path = folder / "data.svm"
    path.write_text("".join(f"{i} {i % 5}:{i + 1}\n" for i in range(samples)))
    return kept(mx.io.LibSVMIter(data_libsvm=str(path), data_shape=(5,), batch_size=4))


def csv_file(folder, samples, **arguments):
    np.savetxt(folder / "data.csv", np.arange(samples, dtype="float32")[:, None] + 1)
    np.savetxt(folder / "label.csv", np.arange(samples, dtype="float32")[:, None])
    files = {"data_csv": str(folder / "data.csv"), "label_csv": str(folder / "label.csv")}
    shapes = {"data_shape": (1,), "label_shape": (1,)}
    return kept(mx.io.CSVIter(**files, **shapes, batch_size=4, **arguments))


def record_file(folder, samples, **arguments):
    """Images of one colour, which is i + 1."""
    index, path = str(folder / "data.idx"), str(folder / "data.rec")
    record = mx.recordio.MXIndexedRecordIO(index, path, "w")
    for i in range(samples):
        image = np.full((8, 8, 3), i + 1, "uint8")
        header = mx.recordio.IRHeader(0, float(i), i, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # MXNet's use of NumPy's tostring
            packed = mx.recordio.pack_img(header, image, quality=3, img_fmt=".png")
        record.write_idx(i, packed)
    record.close()
    files = {"path_imgrec": path, "path_imgidx": index}
    quiet = {"preprocess_threads": 1, "verbose": False}
    return kept(
        mx.io.ImageRecordIter(**files, data_shape=(3, 8, 8), batch_size=4, **quiet, **arguments)
    )


CXX = {
    "LibSVMIter": svm_file,
    "CSVIter": csv_file,
    "CSVIter, no round_batch": lambda *a: csv_file(*a, round_batch=False),
    "ImageRecordIter": record_file,
    "ImageRecordIter, shuffled": lambda *a: record_file(*a, shuffle=True, seed=3),
}
SHUFFLED = "ImageRecordIter, shuffled"


def value_of(batch):
    """The number that a sample has in its data, too."""
    data = batch[0].asnumpy().reshape(len(batch[1]), -1)
    return data.max(axis=1).astype(int) - 1


@pytest.mark.parametrize("samples", [8, 10, 11, 30, 93])
@pytest.mark.parametrize("name", CXX)
def test_each_pass_has_each_sample_once(name, samples, tmp_path):
    """Also where MXNet's own passes leave out what came early, or say padding that is none."""
    data = training_data(CXX[name](tmp_path, samples))
    for epoch in range(7):
        # Kept: the iterator writes into its own arrays again.
        seen = list(data.iterate_epoch(epoch))
        assert samples_of(seen) == list(range(samples))
        assert all(np.array_equal(value_of(b), b[1].asnumpy().ravel()) for b in seen)
        assert [batch.index for batch in seen] == list(range(len(seen)))
        if name != SHUFFLED:
            order = flat(ids(seen))
            turn = order.index(0)
            assert order[turn:] + order[:turn] == list(range(samples))


def test_what_mxnet_does_by_itself(tmp_path):
    """The samples that fill up a pass are left out of the next."""
    iterator = svm_file(tmp_path, 10)
    first = [(batch.label[0].asnumpy().astype(int).tolist(), batch.pad) for batch in iterator]
    assert first == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0), ([8, 9, 0, 1], 2)]
    iterator.reset()
    second = [batch.label[0].asnumpy().astype(int).tolist() for batch in iterator]
    assert second == [[2, 3, 4, 5], [6, 7, 8, 9]]


@pytest.mark.parametrize("samples", [8, 10, 93])
@pytest.mark.parametrize("name", CXX)
def test_a_pass_that_was_left_early(name, samples, tmp_path):
    data = training_data(CXX[name](tmp_path, samples))
    for number in (1, 0, 2, 1, 2):
        left = list(itertools.islice(data.iterate_epoch(0), number))
        assert len(left) == number
        assert len(data.first_batches(1)) == 1
        assert samples_of(data.in_order()) == list(range(samples))


def test_one_iterator_in_several_hands(tmp_path):
    """`fit` and repeated `evaluate` all know what was read of it."""
    iterator = svm_file(tmp_path, 10)
    for _ in range(5):
        assert samples_of(batches_of(iterator, "val_data")) == list(range(10))
    assert samples_of(training_data(iterator).iterate_epoch(0)) == list(range(10))
    assert sum(map(len, ids(first_batches(iterator, 100)))) == 10


@pytest.mark.slow
def test_nothing_of_an_iterator_is_held():
    iterator = mx.io.NDArrayIter(np.arange(8.0), np.arange(8.0), 4)
    list(training_data(iterator).iterate_epoch(0))
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["NDArrayIter", "LibSVMIter"])
def test_two_passes_at_the_same_time_are_an_error(name, tmp_path):
    iterator = (
        svm_file(tmp_path, 10)
        if name == "LibSVMIter"
        else mx.io.NDArrayIter(np.arange(10.0), np.arange(10.0), 4)
    )
    epoch = training_data(iterator, "train_data").iterate_epoch(0)
    next(epoch)
    next(batches_of(iterator, "val_data"))
    message = "train_data was read from its beginning again before this pass over it was at its end"
    with pytest.raises(ValueError, match=message):
        next(epoch)


def test_an_iterator_that_was_read_from_is_found_out(tmp_path):
    iterator = svm_file(tmp_path, 10)
    for _ in iterator:  # so that its next pass leaves out two samples
        pass
    data = training_data(iterator)
    assert len(list(data.iterate_epoch(0))) == 2
    message = (
        "train_data had 8 samples in its first epoch, and now 3 batches of 4 with 2 samples of "
        "padding: something else has read from an MXDataIter; create a new one"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        list(data.iterate_epoch(1))


def test_sparse_batches_stay_sparse(tmp_path):
    data = training_data(svm_file(tmp_path, 10))
    assert data.reason_not_lockable() == ""
    dense = np.zeros((10, 5))
    dense[np.arange(10), np.arange(10) % 5] = np.arange(10) + 1
    for epoch in range(3):
        for batch in data.iterate_epoch(epoch):
            assert isinstance(batch, Batch)
            assert batch[0].stype == "csr"
            rows = batch[1].asnumpy().astype(int)
            assert np.array_equal(batch[0].asnumpy(), dense[rows])
        assert data.reason_not_lockable() == ""


@pytest.mark.parametrize("name", CXX)
def test_what_cannot_be_known_is_not_promised(name, tmp_path):
    data = training_data(CXX[name](tmp_path, 10))
    assert data.kind == "an MXDataIter"
    assert data.num_batches is data.num_samples is None
    assert not data.is_indexed
    assert not data.can_lock
    assert data.reason_not_repeatable() == "an MXDataIter does not promise that its batches repeat"
    assert data.description() == {"iterator": "MXDataIter", "batch_size": 4, "samples": None}
    if name != "LibSVMIter":
        assert data.reason_not_lockable() == (
            "whether an MXDataIter gives the same samples each time cannot be told; use "
            "gluon_svrg.data.ArrayLoader, or a list of batches"
        )
    message = (
        "train_data is an MXDataIter, of which cannot be known whether it gives the same batches "
        "after a resume: it may shuffle with a generator of its own, or carry samples from epoch "
        "to epoch; with a CheckpointHandler, use a gluon_svrg.data.ArrayLoader, a "
        "gluon.data.DataLoader, or an mx.io.NDArrayIter that does not shuffle"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        data.check_can_resume()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("handle", ["pad", "discard"])
@pytest.mark.parametrize(("samples", "size"), [(8, 4), (10, 4), (3, 3), (3, 8), (17, 5)])
def test_an_ndarrayiter_against_plain_arrays(samples, size, handle, shuffle):
    if handle == "discard" and samples < size:
        return
    x = np.random.default_rng(0).normal(size=(samples, 2, 3)).astype("float32")
    data = training_data(
        mx.io.NDArrayIter(x, np.arange(samples), size, shuffle, last_batch_handle=handle)
    )
    number = samples if handle == "pad" else samples - samples % size
    assert (data.num_samples, data.num_batches) == (number, -(-number // size))
    for epoch in range(3):
        batches = list(data.iterate_epoch(epoch))
        assert [len(batch[0]) for batch in batches] == [
            min(size, number - i) for i in range(0, number, size)
        ]
        order = flat(ids(batches))
        assert len(set(order)) == number
        assert shuffle or order == list(range(number))
        assert np.array_equal(np.concatenate([b[0].asnumpy() for b in batches]), x[order])


def test_an_ndarrayiter_shuffles_by_numpys_generator():
    def orders():
        np.random.seed(3)
        iterator = mx.io.NDArrayIter(np.arange(30.0), np.arange(30.0), 4, shuffle=True)
        data = training_data(iterator)
        return [flat(ids(data.iterate_epoch(epoch))) for epoch in range(3)]

    first = orders()
    assert first == orders()
    assert first[0] != first[1] != first[2]


def test_samples_that_roll_over_are_not_cut_off():
    iterator = mx.io.NDArrayIter(np.arange(10.0), np.arange(10.0), 4, last_batch_handle="roll_over")
    data = training_data(iterator)
    assert data.num_batches is data.num_samples is None
    assert "divides the samples differently" in data.reason_not_repeatable()
    assert [ids(data.iterate_epoch(epoch)) for epoch in range(3)] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ]


def test_another_batch_axis():
    """Of data T x N x C: the axis that the iterator's layout names."""
    x = np.arange(2 * 5 * 3, dtype="float32").reshape(5, 2, 3)
    iterator = mx.io.NDArrayIter(x, x, 2, layout="NTC")
    assert [b[0].shape[0] for b in training_data(iterator).iterate_epoch(0)] == [2, 2, 1]
    own = Own([x.transpose(1, 0, 2)], [mx.nd.arange(5)], 1)
    own.provide_data = [mx.io.DataDesc("data", (2, 5, 3), layout="TNC")]
    ((data, label),) = training_data(own).iterate_epoch(0)
    assert data.shape == (2, 4, 3)
    assert label.shape == (4,)


class Own(mx.io.DataIter):
    """One batch, of these arrays."""

    def __init__(self, data, label, pad=0):
        super().__init__()
        self._batch = mx.io.DataBatch([mx.nd.array(x) for x in data], label, pad)
        self._is_done = False

    def reset(self):
        self._is_done = False

    def next(self):
        if self._is_done:
            raise StopIteration
        self._is_done = True
        return self._batch


def test_several_arrays_or_none():
    x = mx.nd.arange(4)
    ((data, label),) = training_data(Own([x, x + 1], [x, x, x])).iterate_epoch(0)
    assert [part.asnumpy().tolist() for part in data] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert len(label) == 3
    for labels in (None, []):
        ((data, label),) = training_data(Own([x], labels)).iterate_epoch(0)
        assert data.shape == (4,)
        assert label == ()


def test_a_wrapper_of_a_c_iterator_goes_around(tmp_path):
    """There the padding is the first samples of the next pass: nothing is cut off."""
    for wrapped in (
        mx.io.ResizeIter(svm_file(tmp_path, 10), 5, reset_internal=False),
        mx.io.ResizeIter(record_file(tmp_path, 10), 5, reset_internal=False),
    ):
        seen = ids(training_data(wrapped).iterate_epoch(0))
        assert flat(seen) == [*range(10), *range(10)]


def test_a_subclass_of_ndarrayiter_may_do_anything():
    class Doubled(mx.io.NDArrayIter):
        def next(self):
            batch = super().next()
            return mx.io.DataBatch([2 * batch.data[0]], batch.label, batch.pad)

    data = training_data(Doubled(np.arange(10.0), np.arange(10.0), 4))
    assert isinstance(data, data_iter.DataIterData)
    assert not data.is_indexed
    for epoch in range(2):
        seen = list(data.iterate_epoch(epoch))
        assert samples_of(seen) == list(range(10))
        assert all(np.array_equal(b[0].asnumpy(), 2 * b[1].asnumpy()) for b in seen)


@pytest.mark.parametrize("kind", ["NDArrayIter", "LibSVMIter"])
def test_the_full_gradient_is_the_mean_over_the_samples(kind, tmp_path):
    """Against NumPy, in every pass: no sample counts twice, as padding would make it."""
    net = mx.gluon.nn.Dense(1, in_units=5, use_bias=False)
    net.initialize(mx.init.One())
    x = np.zeros((10, 5), "float32")
    x[np.arange(10), np.arange(10) % 5] = np.arange(10) + 1
    iterator = (
        svm_file(tmp_path, 10) if kind == "LibSVMIter" else mx.io.NDArrayIter(x, np.arange(10), 4)
    )
    backward = problems.backward_of(
        lambda data: net(data.tostype("default")), mx.gluon.loss.L2Loss()
    )
    expected = x.T @ (x @ np.ones(5) - np.arange(10)) / 10
    snapshot = gs.Snapshot(net)
    snapshot.take()
    for _ in range(4):
        full = snapshot.full_gradient(backward, training_data(iterator).in_order())
        assert full.samples == 10
        (mean,) = full.means.values()
        # float32 gradients, added in float64.
        assert np.allclose(mean.asnumpy().ravel(), expected, rtol=1e-6)
