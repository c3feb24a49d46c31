"""Whether data is locked, and why not."""

import random

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.data import ArrayLoader, transforms as T
from gluon_svrg.data.training_data import reason_not_lockable
from mxnet import gluon

pytestmark = pytest.mark.full

X, Y = np.random.default_rng(0).random((20, 3, 8, 8)).astype("float32"), np.arange(20.0)
DRAWS = (
    "its transform draws other numbers each time, from NumPy's or MXNet's generator or its own; "
    "use gluon_svrg.data.ArrayLoader with gluon_svrg.data.transforms"
)


def array_loader(transform):
    return ArrayLoader(X, Y, batch_size=4, shuffle=True, transform=transform)


def data_loader(transform=None, **arguments):
    dataset = gluon.data.ArrayDataset(X, Y)
    if transform is not None:
        dataset = dataset.transform_first(transform)
    return gluon.data.DataLoader(dataset, batch_size=4, **arguments)


def gluon_flip():
    return gluon.data.vision.transforms.RandomFlipLeftRight()


def numpy_crop(x):
    return x[:, np.random.randint(3) :][:, :5]


def python_flip(x):
    return x[..., ::-1] if random.random() < 0.5 else x


def draws_and_forgets(x):
    np.random.rand()
    return x


class Samples(gluon.data.Dataset):
    """Samples of every kind of value."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"x": [X[index], float("nan")], "name": str(index), "other": object()}, np.float32(1)


class Empty(Samples):
    """No sample."""

    def __len__(self):
        return 0


LOCKED = {
    "list": lambda: [(mx.nd.ones(2), mx.nd.ones(2))],
    "tuple": lambda: ((mx.nd.ones(2), mx.nd.ones(2)),),
    "arrays": lambda: array_loader(None),
    "random transforms": lambda: array_loader(T.Compose(T.RandomCrop(), T.MixUp(20))),
    "a transform": lambda: array_loader(T.Normalize(0, 1)),
    "a callable that repeats": lambda: array_loader(lambda x, y: (x * 2, y)),
    "dataset": data_loader,
    "shuffled": lambda: data_loader(shuffle=True),
    "transform that repeats": lambda: data_loader(lambda x: x * 2),
    "every kind of value": lambda: gluon.data.DataLoader(Samples(), 1),
    "empty": lambda: gluon.data.DataLoader(Empty(), 1),
}
NOT_LOCKED = {
    "callable with NumPy": lambda: array_loader(lambda x, y: (x * float(np.random.rand()), y)),
    "gluon": lambda: data_loader(lambda x: gluon_flip()(mx.nd.array(x.transpose(1, 2, 0)))),
    "numpy": lambda: data_loader(numpy_crop),
    "python": lambda: data_loader(python_flip),
    "draws and forgets": lambda: data_loader(draws_and_forgets),
    "shuffled too": lambda: data_loader(numpy_crop, shuffle=True),
}


@pytest.mark.parametrize("name", LOCKED)
def test_locked(name):
    assert reason_not_lockable(LOCKED[name]()) == ""


@pytest.mark.parametrize("name", NOT_LOCKED)
def test_not_locked(name):
    assert reason_not_lockable(NOT_LOCKED[name]()) == DRAWS


@pytest.mark.parametrize("data", [range(3), iter([]), mx.nd.ones(3)], ids=["range", "iter", "nd"])
def test_what_cannot_be_told(data):
    kind = type(data).__name__
    expected = f"whether a {kind} gives the same samples each time cannot be told; use gluon_svrg"
    assert reason_not_lockable(data).startswith(expected)


@pytest.mark.parametrize("name", [*LOCKED, *NOT_LOCKED])
def test_the_generators_are_left_as_they_were(name):
    data = {**LOCKED, **NOT_LOCKED}[name]()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    reason_not_lockable(data)
    assert random.getstate() == python_state
    assert all(
        np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state, strict=True)
    )


def test_a_few_samples_are_tried_out_a_few_times():
    seen = []

    class Watched(gluon.data.SimpleDataset):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    loader = gluon.data.DataLoader(Watched(list(range(100))), 10, shuffle=True)
    assert reason_not_lockable(loader) == ""
    assert sorted(set(seen)) == [0, 25, 50, 75]
    assert len(seen) == 24
