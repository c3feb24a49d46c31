"""Image files and arrays of pixels, to the network's input."""

import struct
import sys
import zlib

import numpy as np
import pytest
from gluon_svrg import deploy
from PIL import Image, ImageFile

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.25, 0.5, 0.2])


def expected(pixels):
    return ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


@pytest.fixture
def predictor(model):
    return deploy.Predictor.load(model)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{index}.png" for index in range(len(PIXELS))]
    for path, pixels in zip(paths, PIXELS, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def test_files_and_arrays_give_the_same_input(predictor, files):
    for images in (files, [str(path) for path in files], list(PIXELS), PIXELS, iter(files)):
        batch = predictor.read_images(images)
        assert batch.dtype == np.float32
        np.testing.assert_allclose(batch, expected(PIXELS), atol=1e-5)


def test_one_image_and_many(predictor, files):
    many = predictor.predict_images(files)
    np.testing.assert_allclose(many, predictor(expected(PIXELS)), atol=1e-5)
    for one in (files[1], str(files[1]), PIXELS[1]):
        np.testing.assert_allclose(predictor.predict_images(one), many[1], atol=1e-5)


def test_grey_images(grey, tmp_path):
    predictor = deploy.Predictor.load(grey)
    pixels = PIXELS[0, :, :, 0]
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    wanted = (pixels - 0.5) / 0.25  # scale 1
    for image in (tmp_path / "grey.png", pixels, pixels[:, :, None]):
        np.testing.assert_allclose(predictor.read_images(image)[0, 0], wanted, rtol=1e-5)
    bigger = np.full((16, 12), 7, "uint8")
    assert (predictor.read_images(bigger, resize=True) == np.float32(26)).all()


def test_a_jpeg(predictor, tmp_path):
    Image.new("RGB", (6, 8), (200, 100, 50)).save(tmp_path / "a.jpg")
    wanted = expected(np.full((1, 8, 6, 3), (200, 100, 50)))
    np.testing.assert_allclose(predictor.read_images(tmp_path / "a.jpg"), wanted, atol=0.05)


def test_resize(predictor, tmp_path):
    Image.fromarray(PIXELS[0]).resize((12, 16)).save(tmp_path / "big.png")
    with Image.open(tmp_path / "big.png") as image:
        pixels = np.asarray(image)
        wanted = np.asarray(image.resize((6, 8), Image.Resampling.BILINEAR))
    for given in (tmp_path / "big.png", pixels):
        batch = predictor.read_images(given, resize=True)
        np.testing.assert_allclose(batch, expected(wanted[None]), atol=1e-5)


def a_file(make):
    """Return a function that makes a bad file in a folder and gives its path."""

    def write(folder):
        path = folder / "bad.png"
        make(path)
        return path

    return write


def cut(path):
    Image.fromarray(PIXELS[0]).save(path)
    path.write_bytes(path.read_bytes()[:60])


def of_size(width, height):
    """Return a function that writes the header of a PNG of grey pixels, and few of its pixels."""

    def make(path):
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        content = b"\x89PNG\r\n\x1a\n"
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 9)), (b"IEND", b"")):
            content += struct.pack(">I", len(data)) + kind + data
            content += struct.pack(">I", zlib.crc32(kind + data))
        path.write_bytes(content)

    return make


BAD = {
    "size": (
        a_file(lambda p: Image.new("RGB", (8, 6)).save(p)),
        ValueError,
        r"bad.png' is 8 x 6 pixels, the model takes 6 x 8 \(width x height\): crop it, or ask for",
    ),
    "grey": (
        a_file(lambda p: Image.new("L", (6, 8)).save(p)),
        ValueError,
        r"bad.png' has the mode 'L', the model takes 'RGB': convert it with PIL's image.convert",
    ),
    "alpha": (a_file(lambda p: Image.new("RGBA", (6, 8)).save(p)), ValueError, "the mode 'RGBA'"),
    "palette": (a_file(lambda p: Image.new("P", (6, 8)).save(p)), ValueError, "the mode 'P'"),
    "gif": (
        a_file(lambda p: Image.new("RGB", (6, 8)).save(p, format="GIF")),
        ValueError,
        "cannot be read as an image",
    ),
    "text": (a_file(lambda p: p.write_text("a cat")), ValueError, "cannot be read as an image"),
    "empty file": (a_file(lambda p: p.write_bytes(b"")), ValueError, "cannot be read as an image"),
    "cut": (
        a_file(cut),
        ValueError,
        "bad.png' cannot be read as an image .*: give an undamaged JPEG",
    ),
    "no file": (lambda folder: folder / "no.png", ValueError, "there is no image file '.*no.png'"),
    "folder": (lambda folder: folder, ValueError, "there is no image file"),
    "float": (lambda _: PIXELS[0] / 255, TypeError, "pixels must be uint8, 0 to 255, got float64"),
    "array size": (lambda _: PIXELS[0][:, :5], ValueError, "is 5 x 8 pixels, the model takes 6 x"),
    "axes": (
        lambda _: PIXELS[0, :, :, 0],
        ValueError,
        r"the shape \(height, width, 3\), got \(8, ",
    ),
    "first": (lambda _: PIXELS[0].transpose(2, 0, 1), ValueError, "channels last"),
    "no image": (lambda _: [], ValueError, "images is empty: give at least one image"),
    "bomb": (a_file(of_size(40000, 40000)), ValueError, "bad.png' has too many pixels to be read"),
    "large": (a_file(of_size(12000, 9000)), ValueError, "bad.png' has too many pixels to be read"),
    "nothing": (lambda _: None, TypeError, "images must be a path, .*, got a NoneType: give the"),
    "object": (lambda _: [3], TypeError, "must be a path or a uint8 NumPy array, got a int"),
}


@pytest.mark.parametrize("fills_in", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_images(case, fills_in, predictor, tmp_path, monkeypatch):
    # To import gluoncv sets it, for the whole process.
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", fills_in)
    make, error, message = BAD[case]
    with pytest.raises(error, match=message):
        predictor.predict_images(make(tmp_path))


def test_a_model_without_normalization(net, x, tmp_path):
    predictor = deploy.Predictor.load(deploy.export(net, tmp_path / "plain", x))
    with pytest.raises(ValueError, match="the model was exported without normalization"):
        predictor.predict_images(PIXELS)


@pytest.mark.parametrize("resize", [False, True])
def test_without_pillow(predictor, files, monkeypatch, resize):
    monkeypatch.setitem(sys.modules, "PIL", None)
    image = np.zeros((4, 4, 3), "uint8") if resize else files[0]
    with pytest.raises(ImportError, match=r"file or resize=True needs .*'gluon-svrg\[deploy\]'"):
        predictor.predict_images(image, resize=resize)
    assert predictor.predict_images(PIXELS).shape == (3, 3)  # no file, no Pillow


@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_read_upright(orientation, resize, model, tmp_path):
    """The camera writes the pixels as they lay on its sensor, and how it was held."""
    size = (12, 16) if resize else (6, 8)
    upright = Image.fromarray(PIXELS[0]).resize(size)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of Image.Transpose
    stored = upright if orientation == 1 else upright.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    upright.save(tmp_path / "b.png")
    predictor = deploy.Predictor(model)
    one, other = (predictor.read_images(tmp_path / n, resize=resize) for n in ("a.png", "b.png"))
    assert np.array_equal(one, other)
