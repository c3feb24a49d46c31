"""The augmentation of a sample, its dropout mask and BatchNorm, from one snapshot to the next."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from gluon_svrg.data.transforms import (
    Compose,
    Cutout,
    MixUp,
    Normalize,
    RandomColorJitter,
    RandomCrop,
    RandomFlipLeftRight,
    ToFloat,
)
from gluon_svrg.events import BatchBegin, EpochBegin, GradientReady
from mxnet import gluon
from mxnet.gluon import nn

SAMPLES, BATCH = 40, 8
RANDOM = {
    "crop": RandomCrop(pad=2),
    "flip": RandomFlipLeftRight(),
    "jitter": RandomColorJitter(0.3, 0.3, 0.3),
    "cutout": Cutout(3),
}


def loader_of(*transforms, shuffle=True):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SAMPLES, 3, 6, 6)).astype("uint8")
    labels = rng.integers(0, 3, SAMPLES).astype("float32")
    steps = [*transforms, ToFloat(), Normalize([0.5] * 3, [0.2] * 3)]
    return ArrayLoader(
        images, labels, batch_size=BATCH, shuffle=shuffle, seed=4, transform=Compose(*steps)
    )


def estimator_of(lr=0.0, layer=None, loss=None):
    gs.seed_everything(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=3, activation="relu"))
    if layer is not None:
        net.add(layer)
    net.add(nn.Dense(3, in_units=64))
    net.initialize(mx.init.Normal(0.2))
    return runs.estimator_of(
        net, loss or gluon.loss.SoftmaxCELoss(), mx.metric.Loss("loss"), lr=lr, logger="test_locked"
    )


class Pixels(EpochBegin, BatchBegin):
    """Keeps the pixels of each batch of each epoch, by the batch's number."""

    def __init__(self):
        self.epochs = []

    def epoch_begin(self, estimator, *args, **kwargs):
        self.epochs.append({})

    def batch_begin(self, estimator, *args, **kwargs):
        batch = kwargs["batch"]
        self.epochs[-1][batch.index] = [array.asnumpy() for array in batch]


class SeenByThePass:
    """Notes the pixels of every batch that goes through the network's forward pass."""

    def __init__(self, estimator):
        self.images = []
        processor = estimator.batch_processor
        fit_batch = processor.fit_batch

        def noted(estimator, batch, axis=0):
            self.images.append(batch[0].asnumpy())
            return fit_batch(estimator, batch, axis)

        processor.fit_batch = noted


def equal(ours, theirs):
    return all(problems.same(ours[index], theirs[index]) for index in range(SAMPLES // BATCH))


@pytest.mark.parametrize("name", RANDOM)
def test_between_two_snapshots_the_pixels_are_the_same(name):
    pixels = Pixels()
    estimator_of().fit(
        loader_of(RANDOM[name]), epochs=6, event_handlers=[pixels, gs.SVRGHandler(update_freq=3)]
    )
    first = pixels.epochs
    assert equal(first[0], first[1])
    assert equal(first[0], first[2])
    assert not equal(first[2], first[3])
    assert equal(first[3], first[4])
    # Nearly every sample is drawn again, not some.
    changed = [
        (a != b).any()
        for i in first[2]
        for a, b in zip(first[2][i][0], first[3][i][0], strict=True)
    ]
    assert np.mean(changed) > 0.3


@pytest.mark.parametrize("name", RANDOM)
def test_the_full_pass_sees_the_pixels_of_the_epoch(name):
    estimator = estimator_of()
    seen, pixels = SeenByThePass(estimator), Pixels()
    handler = gs.SVRGHandler(gradient_table=True)
    estimator.fit(loader_of(RANDOM[name]), epochs=1, event_handlers=[pixels, handler])
    in_pass = dict(enumerate(seen.images[: SAMPLES // BATCH]))  # by index, before the epoch
    assert all(np.array_equal(in_pass[i], pixels.epochs[0][i][0]) for i in in_pass)


def test_without_svrg_every_epoch_draws_again():
    for handlers in ([], [gs.SVRGHandler(coefficient=0)], [gs.SVRGHandler(lock="off")]):
        pixels = Pixels()
        estimator_of().fit(loader_of(RANDOM["crop"]), epochs=2, event_handlers=[pixels, *handlers])
        assert not equal(*pixels.epochs)


def test_the_run_after_svrg_draws_again():
    data, pixels = loader_of(RANDOM["crop"]), Pixels()
    handlers = [pixels, gs.SVRGHandler(update_freq=5, stop_epoch=2)]
    estimator_of().fit(data, epochs=4, event_handlers=handlers)
    epochs = pixels.epochs
    assert equal(epochs[0], epochs[1])
    assert not equal(epochs[1], epochs[2])
    assert not equal(epochs[2], epochs[3])
    assert data.locked_draw is None


class Gradients(GradientReady):
    """Adds up the gradients of an epoch."""

    def __init__(self):
        self.priority = -2500  # after SVRG, before the step
        self.sums = None

    def gradient_ready(self, estimator, *args, **kwargs):
        grads = [
            param.grad().asnumpy().astype("float64")
            for param in estimator.net.collect_params().values()
            if param.grad_req != "null"
        ]
        self.sums = grads if self.sums is None else [a + b for a, b in zip(self.sums, grads)]  # noqa: B905


@pytest.mark.parametrize("gradient_table", [True, False])
@pytest.mark.parametrize("layer", [None, "dropout", "batchnorm"])
@pytest.mark.parametrize("name", [*RANDOM, "mixup"])
def test_the_corrected_gradient_stays_unbiased(name, layer, gradient_table):
    """At a step of 0 its mean over the batches is the full gradient: nothing has moved."""
    soft = name == "mixup"
    transforms = [RandomFlipLeftRight()] if soft else [RANDOM[name]]
    data = loader_of(*transforms)
    if soft:
        data = ArrayLoader(
            *data._maker._arrays,
            batch_size=BATCH,
            shuffle=True,
            seed=4,
            transform=Compose(*transforms, ToFloat(), MixUp(3)),
        )
    loss = gluon.loss.SoftmaxCELoss(sparse_label=not soft)
    layers = {"dropout": nn.Dropout(0.5), "batchnorm": nn.BatchNorm(in_channels=4)}
    estimator = estimator_of(layer=layers.get(layer), loss=loss)
    gradients, means = Gradients(), []
    if not gradient_table:
        # The weights do not move, so a gradient at the snapshot is the batch's own, and cancels:
        # what says something is the sum of them before the correction, which is E[c].
        gradients.priority = -4000

    class Means(GradientReady):
        priority = -2600

        def gradient_ready(self, estimator, *args, **kwargs):
            full = estimator.trainer.full_gradient
            means[:] = [
                full[param.name][0].asnumpy()
                for param in estimator.net.collect_params().values()
                if param.grad_req != "null"
            ]

    handler = gs.SVRGHandler(gradient_table=gradient_table, lock="require")
    estimator.fit(data, epochs=1, event_handlers=[handler, Means(), gradients])
    mean_of_corrected = [total / SAMPLES for total in gradients.sums]
    assert problems.relative_difference(mean_of_corrected, means) < 1e-5


def test_without_the_lock_it_is_biased():
    """The contrast to the test above: the pass has drawn other numbers than the epoch."""
    estimator = estimator_of()
    raw, means = [], []

    class Raw(GradientReady):
        priority = -4000  # before SVRG

        def gradient_ready(self, estimator, *args, **kwargs):
            params = estimator.net.collect_params().values()
            raw.append([param.grad().asnumpy() for param in params])
            full = estimator.trainer.full_gradient
            means[:] = [full[param.name][0].asnumpy() for param in params]

    handlers = [Raw(), gs.SVRGHandler(lock="off")]
    estimator.fit(loader_of(RANDOM["crop"]), epochs=1, event_handlers=handlers)
    # E[c] is the mean of the epoch's gradients, since the weights have not moved.
    epoch = [sum(grads) / SAMPLES for grads in zip(*raw, strict=True)]
    assert problems.relative_difference(epoch, means) > 0.01


def plain_random(images, labels):
    flip = np.random.rand(len(images)) < 0.5
    images = images.asnumpy().astype("float32")
    images[flip] = images[flip][..., ::-1]
    return mx.nd.array(images / 255), labels


def random_batch(samples):
    images = mx.nd.array(np.stack([image for image, _ in samples]))
    return images * np.random.rand(), mx.nd.array([label for _, label in samples])


def data_loader(transform, **arguments):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(16, 3, 6, 6)).astype("float32")
    dataset = gluon.data.ArrayDataset(images, np.zeros(16, "float32"))
    return gluon.data.DataLoader(dataset.transform_first(transform), 8, **arguments)


UNLOCKED = {
    "callable": lambda: ArrayLoader(
        np.zeros((16, 3, 6, 6), "uint8") + np.arange(6, dtype="uint8"),
        np.zeros(16, "float32"),
        batch_size=8,
        transform=plain_random,
    ),
    "DataLoader": lambda: data_loader(lambda x: x + np.random.rand()),
    "batchify_fn": lambda: data_loader(lambda x: x, batchify_fn=random_batch),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", UNLOCKED)
def test_a_transform_that_is_not_locked(kind, caplog):
    handlers = [gs.SVRGHandler(lock="require")]
    with pytest.raises(
        ValueError, match="lock='require', but train_data cannot be locked: its tran"
    ):
        estimator_of().fit(UNLOCKED[kind](), epochs=1, event_handlers=handlers)
    caplog.set_level(logging.WARNING)
    estimator_of().fit(UNLOCKED[kind](), epochs=2, event_handlers=[gs.SVRGHandler()])
    warnings = [m for m in caplog.messages if "train_data cannot be locked" in m]
    assert len(warnings) == 1
    assert "the corrected gradient is biased" in warnings[0]
    caplog.clear()
    estimator_of().fit(UNLOCKED[kind](), epochs=1, event_handlers=[gs.SVRGHandler(lock="off")])
    assert not caplog.messages


@pytest.mark.slow
def test_what_needs_no_lock(caplog):
    caplog.set_level(logging.WARNING)
    batches = [data_loader(lambda x: x), list(loader_of(RANDOM["crop"]))]
    for data in batches:
        handlers = [gs.SVRGHandler(lock="require")]
        estimator_of().fit(data, epochs=1, event_handlers=handlers)
    assert not caplog.messages


@pytest.mark.slow
def test_a_dataset_without_a_length(caplog):
    class Counted(gluon.data.Dataset):
        def __getitem__(self, index):
            return np.ones((3, 6, 6), "float32") * index, np.float32(0)

    sampler = gluon.data.BatchSampler(gluon.data.SequentialSampler(16), 8)
    data = gluon.data.DataLoader(Counted(), batch_sampler=sampler)
    estimator_of().fit(data, epochs=1, event_handlers=[gs.SVRGHandler()])
    assert any("a Counted, which has no length" in message for message in caplog.messages)


def test_a_roll_back_out_of_a_locked_epoch(tmp_path):
    """From epoch 1, which is locked, into epoch 0, which is not: its batches are its own again."""

    class RollsBack(BatchBegin):
        done = False

        def batch_begin(self, estimator, *args, **kwargs):
            if estimator.position.batch == 5 and not self.done:
                self.done = True
                estimator.roll_back("to see what comes")

    whole, pixels, data = Pixels(), Pixels(), loader_of(RANDOM["crop"])
    estimator_of().fit(loader_of(RANDOM["crop"]), epochs=1, event_handlers=[whole])
    handlers = [
        pixels,
        RollsBack(),
        gs.SVRGHandler(start_epoch=1),
        gs.CheckpointHandler(tmp_path, every_n_epochs=None, every_n_batches=3),
    ]
    estimator_of().fit(data, epochs=2, event_handlers=handlers)
    for index in data.order(0)[3:]:
        assert problems.same(pixels.epochs[1][index], whole.epochs[0][index])
    assert len(pixels.epochs) == 3


def test_a_table_needs_the_lock():
    with pytest.raises(ValueError, match=r"gradient_table=True needs .*, but lock='off'"):
        estimator_of().fit(
            loader_of(), epochs=1, event_handlers=gs.SVRGHandler(gradient_table=True, lock="off")
        )
