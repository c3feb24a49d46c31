"""Transforms against naive oracles, a sample at a time, with the same random numbers."""

import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.data import transforms as T
from gluon_svrg.data.transforms import Draw

N, H, W = 40, 9, 7
SAMPLES = np.random.default_rng(1).permutation(1000)[:N]
DRAW = Draw(seed=4, number=2, samples=SAMPLES)


def images(dtype="uint8", channels=3, samples=N):
    values = np.random.default_rng(0).integers(0, 256, (samples, channels, H, W))
    return values.astype(dtype) if dtype == "uint8" else (values / 255).astype(dtype)


LABELS = np.arange(N) % 10
GRAY = mx.nd.array([[[0.299, 0.587, 0.114]]])


def numbers(counter, sample, draw=DRAW):
    """A number for one sample, computed alone."""
    return Draw(draw.seed, draw.number, np.array([sample]), draw.stream, draw.position).uniform(
        counter
    )[0]


def crop(image, sample, size=(H, W), pad=4, fill=0):
    out = np.zeros((image.shape[0], *size), image.dtype)
    top = int(numbers(0, sample) * (H + 2 * pad - size[0] + 1)) - pad
    left = int(numbers(1, sample) * (W + 2 * pad - size[1] + 1)) - pad
    for i in range(size[0]):
        for j in range(size[1]):
            inside = 0 <= top + i < H and 0 <= left + j < W
            out[:, i, j] = image[:, top + i, left + j] if inside else fill
    return out


def flip(image, sample, probability=0.5):
    return image[:, :, ::-1] if numbers(0, sample) < probability else image


def cutout(image, sample, length):
    out = image.copy()
    y, x = int(numbers(0, sample) * H), int(numbers(1, sample) * W)
    y, x = y - length // 2, x - length // 2
    out[:, max(y, 0) : max(y + length, 0), max(x, 0) : max(x + length, 0)] = 0
    return out


def saturate(image, min_factor, max_factor):
    """By the formula of MXNet's `image.SaturationJitterAug`."""
    gray = image if image.shape[2] == 1 else (image * GRAY).sum(axis=2, keepdims=True)
    return image * min_factor + gray * (1 - max_factor)


def jitter(image, sample, amounts):
    """By MXNet's own operators, with the factors and the order given."""
    kinds = [mx.nd.image.random_brightness, mx.nd.image.random_contrast, saturate]
    out = mx.nd.array(image.transpose(1, 2, 0), dtype="float32")
    for k in sorted(range(3), key=lambda k: numbers(3 + k, sample)):
        if amounts[k]:
            low = max(0, 1 - amounts[k])
            factor = low + (1 + amounts[k] - low) * numbers(k, sample)
            out = kinds[k](out, min_factor=factor, max_factor=factor)
    return out.asnumpy().transpose(2, 0, 1)


ORACLES = [
    (T.RandomCrop(), crop, {}),
    (T.RandomCrop(pad=0), crop, {"pad": 0}),
    (T.RandomCrop(5, pad=0), crop, {"size": (5, 5), "pad": 0}),
    (T.RandomCrop((11, 4), pad=2, fill=7), crop, {"size": (11, 4), "pad": 2, "fill": 7}),
    (T.RandomFlipLeftRight(), flip, {}),
    (T.RandomFlipLeftRight(0.2), flip, {"probability": 0.2}),
    (T.RandomFlipLeftRight(1), flip, {"probability": 1}),
    (T.RandomFlipLeftRight(0), flip, {"probability": 0}),
    (T.Cutout(1), cutout, {"length": 1}),
    (T.Cutout(4), cutout, {"length": 4}),
    (T.Cutout(20), cutout, {"length": 20}),
]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("transform", "oracle", "arguments"), ORACLES)
def test_geometry_bit_for_bit(transform, oracle, arguments, channels, dtype):
    given = images(dtype, channels)
    copy = given.copy()
    result, labels = transform(given, LABELS, draw=DRAW)
    expected = [oracle(x, s, **arguments) for x, s in zip(given, SAMPLES, strict=True)]
    assert problems.same([result], [np.stack(expected)])
    assert result.dtype == given.dtype
    assert labels is LABELS
    assert np.array_equal(given, copy)  # not changed in place


@pytest.mark.parametrize(
    "amounts", [(0.4, 0, 0), (0, 0.4, 0), (0, 0, 0.4), (0.4, 0.3, 0.2), (3, 0, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_jitter_against_mxnets_operators(amounts, channels):
    given = images("float32", channels)
    result = T.RandomColorJitter(*amounts)(given, draw=DRAW)
    expected = [jitter(x, s, amounts) for x, s in zip(given, SAMPLES, strict=True)]
    np.testing.assert_allclose(result, np.stack(expected), rtol=1e-4, atol=1e-5)
    # uint8: the same, rounded and clipped once.
    whole = T.RandomColorJitter(*amounts)(images("uint8", channels), draw=DRAW)
    assert whole.dtype == np.uint8
    np.testing.assert_allclose(whole, np.clip(result * 255, 0, 255), atol=0.51)


def test_mxnets_operator_for_saturation_takes_blue_for_gray():
    """Why the oracle above is another: if this fails, MXNet has mended it."""
    image = mx.nd.random.uniform(shape=(4, 4, 3))
    result = mx.nd.image.random_saturation(image, min_factor=0, max_factor=0).asnumpy()
    blue = 0.114 * image[:, :, 2:].asnumpy()
    np.testing.assert_allclose(result, np.repeat(blue, 3, axis=2), rtol=1e-5)


def test_colour_jitter_uses_every_order():
    orders = {
        tuple(np.argsort([numbers(3 + k, sample) for k in range(3)])) for sample in range(100)
    }
    assert len(orders) == 6


def test_to_float_and_normalize():
    given = images("uint8")
    result = T.ToFloat()(given)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, given / 255, rtol=1e-6)
    np.testing.assert_allclose(T.ToFloat(2)(given), given * 2.0)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 4.0])
    expected = np.stack(
        [(result[:, c].astype("float64") - mean[c]) / std[c] for c in range(3)], axis=1
    )
    np.testing.assert_allclose(T.Normalize(mean, tuple(std))(result), expected, atol=1e-6)
    np.testing.assert_allclose(T.Normalize(0.5, 2)(result), (result - 0.5) / 2, atol=1e-6)
    np.testing.assert_allclose(T.Normalize(5, [1, 2, 4])(given)[:, 2], (given[:, 2] - 5.0) / 4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("uint8", "float32"), ("float16", "float16"), ("float32", "float32"), ("float64", "float64")],
)
def test_the_dtype_that_normalize_gives(given, expected):
    assert T.Normalize([0, 0, 0], 1)(images(given)).dtype == expected


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("smoothing", [0, 0.1, 1])
def test_one_hot(dtype, smoothing):
    x = images()
    same, labels = T.OneHot(10, smoothing)(x, LABELS.astype(dtype))
    assert same is x
    assert labels.dtype == np.float32
    expected = np.full((N, 10), smoothing / 10)
    for row, label in enumerate(LABELS):
        expected[row, label] += 1 - smoothing
    np.testing.assert_allclose(labels, expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mix_up_against_its_formula(alpha, dtype):
    x = images(dtype)
    mixed, labels = T.MixUp(10, alpha)(x, LABELS, draw=DRAW)
    generator = DRAW.generator()
    share, shift = generator.beta(alpha, alpha, N), generator.integers(1, N)
    for i in range(N):
        partner = (i + shift) % N
        expected = share[i] * x[i] + (1 - share[i]) * x[partner]
        np.testing.assert_allclose(mixed[i], expected, atol=2e-3 if dtype == "float16" else 1e-6)
        row = np.zeros(10)
        row[LABELS[i]] += share[i]
        row[LABELS[partner]] += 1 - share[i]
        np.testing.assert_allclose(labels[i], row, atol=1e-6)
    assert mixed.dtype == dtype
    assert labels.dtype == np.float32


def test_mix_up_of_soft_labels_and_of_a_single_sample():
    smooth = T.OneHot(10, 0.1)
    x, labels = T.Compose(smooth, T.MixUp(10))(images("float32"), LABELS, draw=DRAW.at(0))
    hard = T.Compose(T.ToFloat(1.0), T.MixUp(10))(
        (images("float32") * 0).astype("uint8"), LABELS, draw=DRAW
    )[1]
    np.testing.assert_allclose(labels, hard * 0.9 + 0.01, atol=1e-6)
    alone = Draw(0, 0, np.array([3]))
    x = images("float32", samples=1)
    mixed, labels = T.MixUp(10)(x, np.array([4]), draw=alone)
    np.testing.assert_allclose(mixed, x, rtol=1e-6)
    np.testing.assert_allclose(labels, np.eye(10)[[4]], atol=1e-6)


def test_mix_ups_partner_is_never_the_sample_itself():
    x = np.zeros((4, 1, 1, 1), "float32")
    for number in range(50):
        draw = Draw(0, number, np.arange(4))
        labels = T.MixUp(4)(x, np.arange(4), draw=draw)[1]
        assert ((labels > 0).sum(axis=1) == 2).all()


def test_crop_offsets_cover_all_places_alike():
    samples = 16_200
    x = np.zeros((samples, 1, 9, 9), "uint8")
    x[:, 0, 4, 4] = 1
    where = np.argwhere(T.RandomCrop(pad=4)(x, draw=Draw(0, 0, np.arange(samples))))
    assert len(where) == samples  # the middle is always inside
    counts = np.zeros((9, 9))
    np.add.at(counts, (where[:, 2], where[:, 3]), 1)
    chi_square = ((counts - samples / 81) ** 2 / (samples / 81)).sum()
    assert 25 < chi_square < 160  # 80 degrees of freedom


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_so_many_are_flipped(probability):
    x = np.tile(np.array([0, 1], "uint8"), (10_000, 1, 1, 1))
    flipped = T.RandomFlipLeftRight(probability)(x, draw=Draw(0, 0, np.arange(10_000)))
    assert abs(flipped[:, 0, 0, 0].mean() - probability) < 0.025  # 5 standard deviations


def test_cutouts_centre_covers_all_pixels_alike():
    x = np.ones((10_000, 1, 5, 5), "uint8")
    holes = 1 - T.Cutout(1)(x, draw=Draw(0, 0, np.arange(10_000)))
    assert (holes.sum(axis=(1, 2, 3)) == 1).all()
    assert abs(holes.sum(axis=(0, 1)) / 400 - 1).max() < 0.25  # 5 standard deviations


def test_compose_is_one_after_the_other_each_with_its_own_numbers():
    parts = [T.RandomFlipLeftRight(), T.RandomCrop(), T.RandomFlipLeftRight(), T.ToFloat()]
    x = images()
    expected = x
    for position, part in enumerate(parts):
        expected = part(expected, draw=DRAW.at(position))
    for compose in (
        T.Compose(*parts),
        T.Compose(parts),
        T.Compose(T.Compose(parts[:2]), *parts[2:]),
    ):
        assert problems.same([compose(x, draw=DRAW)], [expected])
        assert compose.is_random
        assert len(compose.transforms) == 4
    assert not T.Compose(T.ToFloat(), T.OneHot(3)).is_random
    assert T.Compose()(x) is x
    # Two flips with the same numbers would cancel out.
    assert not np.array_equal(T.Compose(parts[0], parts[2])(x, draw=DRAW), x)


TRANSFORMS = [
    T.RandomCrop(),
    T.RandomFlipLeftRight(),
    T.RandomColorJitter(0.1, 0.1, 0.1),
    T.Cutout(3),
    T.MixUp(10),
    T.OneHot(10),
    T.Normalize(0, 1),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda x: type(x).__name__)
def test_ndarrays_come_back_as_such_on_their_context(transform):
    x = images("float32")
    expected = transform(x, LABELS, draw=DRAW)
    given = mx.nd.array(x, ctx=mx.cpu(1)), mx.nd.array(LABELS, dtype="int64", ctx=mx.cpu(1))
    results = transform(*given, draw=DRAW)
    for result, array in zip(results, expected, strict=True):
        assert type(result) is mx.nd.NDArray
        assert result.context == mx.cpu(1)
        assert result.dtype == array.dtype
        assert problems.same([result.asnumpy()], [array])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda x: type(x).__name__)
def test_another_draw_gives_others_and_the_same_the_same(transform):
    x = images("float32")

    def result(number):
        return transform(x, LABELS, draw=Draw(0, number, SAMPLES))

    assert problems.same(result(1), result(1))
    assert problems.same(result(1), result(2)) is not transform.is_random


@pytest.mark.parametrize("transform", TRANSFORMS[:4], ids=lambda x: type(x).__name__)
def test_a_sample_gets_the_same_in_any_company(transform):
    x = images("float32")
    whole = transform(x, draw=DRAW)
    some = np.array([17, 3, 5])
    part = transform(x[some], draw=Draw(DRAW.seed, DRAW.number, SAMPLES[some]))
    assert problems.same([part], [whole[some]])


X, F = images(), images("float32")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: T.RandomCrop(pad=-1), ValueError, "pad must be a non-negative integer, got -1"),
        (lambda: T.RandomCrop(pad=1.5), TypeError, "pad must be a non-negative integer, got 1.5"),
        (lambda: T.RandomCrop(0), ValueError, "size must be a positive integer, got 0: the"),
        (lambda: T.RandomCrop((1, 2, 3)), ValueError, "one or two integers, got (1, 2, 3): height"),
        (lambda: T.RandomCrop("3"), TypeError, "size must be a positive integer, got '3'"),
        (lambda: T.RandomCrop(fill="0"), TypeError, "fill must be a number, got '0': what the"),
        (lambda: T.RandomFlipLeftRight(1.5), ValueError, "number in [0, 1], got 1.5: an image is"),
        (lambda: T.RandomFlipLeftRight(True), TypeError, "number in [0, 1], got True"),
        (lambda: T.RandomColorJitter(-0.1), ValueError, "brightness must be a number of at least"),
        (lambda: T.RandomColorJitter(0, "a"), TypeError, "contrast must be a number of at least 0"),
        (lambda: T.RandomColorJitter(0, 0, -1), ValueError, "saturation must be a number of at le"),
        (lambda: T.Cutout(0), ValueError, "length must be a positive integer, got 0: the square's"),
        (lambda: T.MixUp(0), ValueError, "classes must be a positive integer, got 0: the number"),
        (lambda: T.MixUp(10, 0), ValueError, "alpha must be a number above 0, got 0: lambda is"),
        (lambda: T.OneHot(2.0), TypeError, "classes must be a positive integer, got 2.0"),
        (lambda: T.OneHot(2, -0.1), ValueError, "smoothing must be a number in [0, 1], got -0.1"),
        (lambda: T.OneHot(2, "0.1"), TypeError, "smoothing must be a number in [0, 1], got '0.1'"),
        (lambda: T.ToFloat(0), ValueError, "scale must be a number above 0, got 0: values are"),
        (
            lambda: T.Normalize("a", 1),
            TypeError,
            "mean must be a number or one per channel, got 'a'",
        ),
        (
            lambda: T.Normalize(0, [[1]]),
            ValueError,
            "std must be a number or one per channel, got [",
        ),
        (
            lambda: T.Normalize(0, np.nan),
            ValueError,
            "std must be a number or one per channel, got",
        ),
        (
            lambda: T.Normalize([], 1),
            ValueError,
            "mean must be a number or one per channel, got []",
        ),
        (lambda: T.Normalize(0, [1, 0]), ValueError, "std must be positive, got [1, 0]: use 1"),
        (
            lambda: T.Normalize([0, 0], [1] * 3),
            ValueError,
            "the same number of channels, got [0, 0] an",
        ),
        (lambda: T.Compose(T.Cutout(1), abs), TypeError, "<built-in function abs>: derive a trans"),
        (lambda: T.Compose([T.Cutout]), TypeError, "derive a transform of your own from Transfor"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("transform", "arrays", "error", "message"),
    [
        (T.RandomCrop(), [X[0]], ValueError, f"N x C x H x W, got shape (3, {H}, {W}): give"),
        (T.ToFloat(), [X[:, 0]], ValueError, "with x[:, None], and put channels first"),
        (T.Cutout(1), [X.astype("int32")], ValueError, "got int32: convert them with x.astype('ui"),
        (T.RandomCrop(20), [X], ValueError, "20 x 20 pixels out of 17 x 15 (with pad=4): use a sm"),
        (T.RandomCrop((9, 8), 0), [X], ValueError, "9 x 8 pixels out of 9 x 7 (with pad=0): use"),
        (T.RandomCrop(fill=256), [X], ValueError, "uint8 images with 256: use an integer from 0"),
        (T.RandomCrop(fill=0.5), [X], ValueError, "with 0.5: use an integer from 0 to 255, or put"),
        (T.RandomColorJitter(1), [X[:, :2]], ValueError, "1 or 3 channels, got 2 (shape ("),
        (T.MixUp(10), [X, LABELS], ValueError, "takes float images, got uint8: put ToFloat before"),
        (T.MixUp(10), [F], ValueError, "MixUp takes images and labels, got 1 array: give the load"),
        (T.OneHot(10), [F], ValueError, "OneHot takes images and labels, got 1 array"),
        (T.MixUp(5), [F, LABELS], ValueError, "MixUp takes labels from 0 to 4, got 5: they are"),
        (T.OneHot(10), [F, LABELS - 1], ValueError, "OneHot takes labels from 0 to 9, got -1: th"),
        (T.OneHot(10), [F, LABELS / 2], ValueError, "takes labels from 0 to 9, got 0.5: they"),
        (T.OneHot(10), [F, np.eye(10)[LABELS]], ValueError, "soft already: put OneHot before MixU"),
        (T.MixUp(9), [F, np.eye(10)[LABELS]], ValueError, "of shape (N,) or (N, 9), got (40, 10)"),
        (T.ToFloat(), [F], ValueError, "ToFloat takes uint8 images, got float32: they are float"),
        (T.Normalize([0, 0], 1), [F], ValueError, "of 2 channels, got images of 3 (shape (40, 3,"),
        (T.Cutout(1), [], ValueError, "Cutout got no array: give the arrays of a batch, images"),
        (T.Cutout(1), [[1]], TypeError, "NumPy arrays or NDArrays, got a list: make it an array"),
    ],
)
def test_what_a_transform_cannot_take(transform, arrays, error, message):
    with pytest.raises(error, match=re.escape(message)):
        transform(*arrays, draw=DRAW)


def test_a_random_transform_needs_a_draw():
    with pytest.raises(ValueError, match=r"RandomCrop draws random numbers and got no draw: use"):
        T.RandomCrop()(X)


class DropsLabels(T.Transform):
    """One of a user's own that loses an array."""

    def apply(self, arrays, draw):
        return arrays[:1]


def test_a_transform_of_ones_own_returns_every_array():
    with pytest.raises(ValueError, match=r"apply must return .*\[40, 40\], got \[40\]: return eve"):
        DropsLabels()(X, LABELS)


class _ReturnsNothing(T.Transform):
    def apply(self, arrays, draw):
        return None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: T.RandomColorJitter(brightness=np.inf),
            ValueError,
            "saturation must be finite, got .inf, 0.0, 0.0.",
        ),
        (
            lambda: T.RandomFlipLeftRight()(np.zeros((2, 1, 3, 3)), draw=0),
            TypeError,
            "draw must be a Draw, got 0",
        ),
        (
            lambda: _ReturnsNothing()(np.zeros((2, 1, 3, 3))),
            TypeError,
            "_ReturnsNothing.apply must return a list of arrays, got a NoneType",
        ),
    ],
)
def test_more_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def channels_last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def pipelines(layout):
    """Each image transform, and all in a row, for images of this layout."""
    alone = [
        T.RandomCrop(layout=layout),
        T.RandomCrop((11, 4), pad=2, fill=7, layout=layout),
        T.RandomFlipLeftRight(0.5, layout),
        T.RandomColorJitter(0.4, 0.3, 0.2, layout),
        T.Cutout(4, layout),
        T.ToFloat(),
        T.Normalize([0.1, 0.2, 0.3], [1, 2, 4], layout),
    ]
    everything = T.Compose(*alone[2:], T.OneHot(10, 0.1), T.MixUp(10))
    return [*alone, everything]


@pytest.mark.parametrize("place", range(len(pipelines(None))))
@pytest.mark.parametrize("as_ndarray", [False, True])
def test_channels_last_is_channels_first_transposed_to_the_bit(place, as_ndarray):
    first, last = pipelines("NCHW")[place], pipelines("NHWC")[place]
    for seed in range(3):
        x = np.random.default_rng(seed).integers(0, 256, (N, 3, H, W)).astype("uint8")
        draw = Draw(seed, 5, SAMPLES)
        expected, expected_labels = first(x, LABELS, draw=draw)
        given = channels_last(x)
        if as_ndarray:
            given = mx.nd.array(given, dtype="uint8")
        result, labels = last(given, LABELS, draw=draw)
        result = result.asnumpy() if as_ndarray else result
        assert problems.same([result, labels], [channels_last(expected), expected_labels])
        assert problems.same(
            first(x, LABELS, draw=draw), pipelines(None)[place](x, LABELS, draw=draw)
        )


@pytest.mark.parametrize("transform", pipelines(None)[:5] + pipelines(None)[6:7])
def test_images_with_channels_last_are_refused(transform):
    message = rf"got shape \(40, {H}, {W}, 3\), which looks like N x H x W x C: give layout='NHWC'"
    with pytest.raises(ValueError, match=message):
        transform(channels_last(X), draw=DRAW)
    loader = gs.data.ArrayLoader(channels_last(X), LABELS, batch_size=N, transform=transform)
    with pytest.raises(ValueError, match=message):
        loader[0]


def test_images_with_channels_first_are_refused_with_layout_nhwc():
    with pytest.raises(ValueError, match=r"got shape \(40, 3, 9, 7\), .* N x C x H x W: leave"):
        T.Cutout(2, "NHWC")(X, draw=DRAW)


def test_what_a_layout_may_be_and_that_narrow_images_have_one():
    with pytest.raises(ValueError, match="layout must be 'NCHW' or 'NHWC', got 'HWC'"):
        T.RandomFlipLeftRight(layout="HWC")
    narrow = np.arange(2 * 12 * 5 * 3, dtype="float32").reshape(2, 12, 5, 3)
    with pytest.raises(ValueError, match="or say layout='NCHW' if the images are that narrow"):
        T.RandomFlipLeftRight(1)(narrow, draw=Draw(0, 0, np.arange(2)))
    flipped = T.RandomFlipLeftRight(1, "NCHW")(narrow, draw=Draw(0, 0, np.arange(2)))
    assert np.array_equal(flipped, narrow[..., ::-1])


def test_a_mirrored_image_with_channels_last_keeps_its_colours():
    x = channels_last(X)
    flip = T.RandomFlipLeftRight(1.0, layout="NHWC")
    batch, _ = gs.data.ArrayLoader(x, LABELS, batch_size=N, transform=flip)[0]
    assert np.array_equal(batch.asnumpy(), x[:, :, ::-1])
