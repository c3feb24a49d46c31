"""What the workers of the tests of data do: see tests/cluster.py."""

import itertools
import logging
import random

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.data import ArrayLoader, WorkerBatchSampler, transforms as T
from gluon_svrg.data.training_data import training_data
from mxnet import gluon

SAMPLES, SIZE = 23, 7  # the last batch has 2: of three workers one has no row
RNG = np.random.RandomState(0)
X = RNG.normal(size=(SAMPLES, 1, 5, 5))
Y = RNG.normal(size=(SAMPLES, 2))
W = RNG.uniform(0.5, 1, SAMPLES)
SLICES = [slice(begin, begin + SIZE) for begin in range(0, SAMPLES, SIZE)]


class Again:
    """Iterable again, and nothing more; shuffles by NumPy's generator."""

    def __iter__(self):
        for i in np.random.permutation(len(SLICES)):
            yield X[SLICES[i]], Y[SLICES[i]]


def arrays(*given, **arguments):
    settings = {"batch_size": SIZE, "shuffle": True, "seed": 3} | arguments
    return lambda: ArrayLoader(*(given or (X, Y)), **settings)


def data_loader(**arguments):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), **arguments)


def own_data_loader():
    sampler = WorkerBatchSampler(gluon.data.RandomSampler(SAMPLES), SIZE)
    return data_loader(batch_sampler=sampler)


KINDS = {
    "shuffled": arrays(),
    "a batch for two": arrays(batch_size=2),
    "reshuffled": arrays(reshuffle=True, transform=T.RandomFlipLeftRight()),
    "transformed": arrays(transform=T.Compose(T.RandomCrop(pad=1), T.Cutout(2)), prefetch=1),
    "list": lambda: [(mx.nd.array(X[s], dtype="float64"), Y[s]) for s in SLICES],
    "dicts with weights": lambda: [
        {"data": X[s], "label": Y[s], "sample_weight": W[s]} for s in SLICES
    ],
    "DataLoader": lambda: data_loader(batch_size=SIZE, shuffle=True),
    "WorkerBatchSampler": own_data_loader,
    "NDArrayIter": lambda: mx.io.NDArrayIter(X, Y, SIZE),
    "iterable": Again,
}


def trained(kind, with_svrg):
    """Return weights, figures and predictions of a run."""
    mx.random.seed(5)
    np.random.seed(5)
    net = gluon.nn.Dense(2)
    net.initialize(mx.init.Normal(0.3))
    net.cast("float64")
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.02, "momentum": 0.9})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    data, val_data = KINDS[kind](), KINDS["dicts with weights"]()
    handlers = [gs.SVRGHandler()] if with_svrg else []
    result = estimator.fit(data, val_data, epochs=3, event_handlers=handlers, verbose=0)
    outputs = estimator.predict(X).asnumpy()
    return [
        *(param.data().asnumpy() for param in net.collect_params().values()),
        np.array([row["training loss"] for row in result.history]),
        np.array([row["validation loss"] for row in result.history]),
        outputs,
    ]


def all_kinds():
    """Return how far each kind of data is from one process, by kind and method."""
    own = workers.current()
    differences = {}
    for number, (kind, with_svrg) in enumerate(itertools.product(KINDS, (False, True))):
        together = trained(kind, with_svrg)
        digests = own.all_gather_object([a.tobytes().hex() for a in together], "weights")
        assert all(digest == digests[0] for digest in digests), kind
        if number % own.size == own.rank:
            with workers.single_process():
                alone = trained(kind, with_svrg)
            differences[f"{kind}, SVRG {with_svrg}"] = max(
                float(np.abs(ours - expected).max())
                for ours, expected in zip(together, alone, strict=True)
            )
    return differences


def seed_of_the_first():
    """Return the seed of a loader whose seed is drawn, and what is told."""
    np.random.seed(workers.current().rank)
    loader = ArrayLoader(X, Y, batch_size=SIZE, shuffle=True)
    drawn = loader.seed
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gluon_svrg.estimator").addHandler(handler)
    for data in (loader, data_loader(batch_size=SIZE)):
        net = gluon.nn.Dense(2)
        net.initialize()
        net.cast("float64")
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
        estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
        estimator.fit(data, loader, epochs=1, verbose=2)
    return [drawn, loader.seed, [line for line in lines if "batch_size is" in line]]


def _hand_sharded(own):
    rows = slice(own.rank, None, own.size)
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X[rows][:6], Y[rows][:6]), 4)


def _unseeded(own):
    class Sampler(gluon.data.SequentialSampler):
        def __iter__(self):
            return iter(np.random.default_rng(own.rank).permutation(SAMPLES).tolist())

    return Sampler(SAMPLES)


def disagree():
    """Return, for each case, what this worker says of data that differ on the first worker."""
    own = workers.current()
    r = min(1, own.rank)
    cases = {
        "kind": lambda: arrays()() if r else KINDS["list"](),
        "batch size": lambda: arrays(batch_size=5 - r)(),
        "seed": lambda: arrays(seed=3 + r)(),
        "seed given to one": lambda: arrays(seed=3 if r else None)(),
        "arrays": lambda: arrays(X + r, Y)(),
        "length": lambda: KINDS["list"]()[r:],
        "contents": lambda: KINDS["list"]()[:: 1 - 2 * r],
        "iterable of other length": lambda: iter_of(KINDS["list"]()[r:]),
        "sharded by hand": lambda: _hand_sharded(own),
        "unseeded": lambda: data_loader(batch_size=SIZE, sampler=_unseeded(own)),
        "unseeded sampler": lambda: data_loader(
            batch_sampler=WorkerBatchSampler(_unseeded(own), SIZE)
        ),
        "alike": lambda: arrays(seed=None)(),
    }
    said = {}
    for name, make in cases.items():
        np.random.seed(r)  # a seed that is drawn differs
        data = make()
        np.random.seed(0)  # as `fit` has it
        try:
            said[name] = [
                None if is_empty(batch) else batch[-1].asnumpy().tolist()
                for batch in training_data(data).sharded(own).iterate_epoch(0)
            ]
        except ValueError as error:
            said[name] = str(error)
    return said


class Noisy(gluon.data.ArrayDataset):
    """Draws from NumPy's and Python's generators for each sample that is loaded."""

    def __getitem__(self, index):
        np.random.standard_normal(3)
        random.random()
        return super().__getitem__(index)


def noisy():
    """Return the labels of each pass over a dataset that draws, as this worker has them."""
    own = workers.current()
    np.random.seed(own.rank)
    sampler = WorkerBatchSampler(gluon.data.RandomSampler(SAMPLES), SIZE)
    loader = gluon.data.DataLoader(Noisy(X, Y), batch_sampler=sampler)
    data = training_data(loader).sharded(own)
    return [
        [
            row
            for b in data.iterate_epoch(epoch)
            if not is_empty(b)
            for row in b[1].asnumpy().tolist()
        ]
        for epoch in range(3)
    ]


def iter_of(batches):
    class Unknown:
        def __iter__(self):
            return iter(batches)

    return Unknown()


def all_of_it():
    return [all_kinds(), seed_of_the_first(), disagree(), noisy()]
