"""Small generated files and data sets, where scripts would download them.

Everything is made from a seed of its own. What is not known here ends the script with the name of
the file that it asks for.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import struct
import sys
import tarfile
import tempfile
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import gluon_svrg  # noqa: F401  # the first import: MXNet does not import without it
import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.contrib.data import text as contrib_text

Files = dict[str, bytes]

WORDS = """
    the time traveller said that a machine moves in space and we cannot see it but his friends were
    of another mind so they asked him how far he had come with all this is good film was bad one
    which nobody laughs go run hi wow help stop wait hello i you
""".split()  # noqa: SIM905


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def sentences(number: int, least: int = 4, most: int = 12) -> list[str]:
    draw = rng()
    return [
        " ".join(draw.choice(WORDS, draw.integers(least, most + 1))) for _ in range(number)
    ]  # fmt: skip


def picture(kind: str = ".jpg", size: tuple[int, int] = (64, 64), seed: int = 0) -> bytes:
    import cv2

    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype="uint8")
    return cv2.imencode(kind, pixels)[1].tobytes()


def zipped(files: Files) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tarred(files: Files, mode: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


# The files, by their names.


def time_machine() -> bytes:
    return "\n".join(sentences(800, 8, 14)).encode()


def airfoil() -> bytes:
    rows = rng().normal(size=(1503, 6))
    return "\n".join("\t".join(f"{value:.6f}" for value in row) for row in rows).encode()


def houses(has_price: bool) -> bytes:
    draw = rng()
    names = ["Id", "MSSubClass", "MSZoning", "LotArea", "OverallQual", "Street", "SaleCondition"]
    lines = [",".join([*names, *(["SalePrice"] if has_price else [])])]
    for number in range(200):
        row = [number, draw.integers(20, 190), draw.choice(["RL", "RM", "NA"])]
        row += [draw.integers(2000, 20000), draw.integers(1, 10)]
        row += [draw.choice(["Pave", "Grvl"]), draw.choice(["Normal", "Family"])]
        row += [draw.integers(100000, 400000)] if has_price else []
        lines.append(",".join(map(str, row)))
    return "\n".join(lines).encode()


def translations() -> bytes:
    english = sentences(700, 1, 4)
    lines = [f"{text.capitalize()}.\t{text[::-1].capitalize()} !" for text in english]
    return zipped({"fra-eng/fra.txt": "\n".join(lines).encode()})


def penn_treebank() -> bytes:
    text = "\n".join(sentences(600)).encode()
    return zipped({f"ptb/ptb.{part}.txt": text for part in ("train", "valid", "test")})


def wikitext(token_file: str = "wiki.{}.tokens") -> bytes:
    lines = [" . ".join(sentences(5, 4, 9)[i % 3 :]) + " ." for i in range(120)]
    text = "\n \n".join(f" {line} " for line in lines).encode()
    folder = "wikitext-2/"
    return zipped({folder + token_file.format(p): text for p in ("train", "valid", "test")})


def glove(dimensions: int) -> bytes:
    draw = rng()
    lines = [
        " ".join([word, *(f"{value:.4f}" for value in draw.normal(size=dimensions))])
        for word in sorted(set(WORDS))
    ]
    return "\n".join(lines).encode()


def film_reviews() -> bytes:
    texts = sentences(192, 20, 60)
    names = [f"aclImdb/{part}/{label}" for part in ("train", "test") for label in ("pos", "neg")]
    files = {f"{names[i % 4]}/{i}.txt": text.encode() for i, text in enumerate(texts)}
    return tarred(files, "w:gz")


def snli() -> bytes:
    draw, texts = rng(), sentences(800)
    labels = ["entailment", "contradiction", "neutral"]
    lines = ["gold_label\tsentence1_binary_parse\tsentence2_binary_parse"]
    lines += [
        f"{draw.choice(labels)}\t( {texts[i]} )\t( {texts[i + 1]} )"
        for i in range(0, len(texts), 2)
    ]
    text = "\n".join(lines).encode()
    return zipped({f"snli_1.0/snli_1.0_{part}.txt": text for part in ("train", "test")})


def movie_lens() -> bytes:
    draw = rng()
    rows = [
        f"{user}\t{item}\t{draw.integers(1, 6)}\t{draw.integers(1, 10**6)}"
        for user in range(1, 41)
        for item in sorted({*draw.integers(1, 61, 14), (user - 1) % 60 + 1, (user + 19) % 60 + 1})
    ]
    return zipped({"ml-100k/u.data": "\n".join(rows).encode()})


def clicks() -> bytes:
    draw = rng()
    lines = ["\t".join(map(str, [draw.integers(2), *draw.integers(0, 5, 34)])) for _ in range(600)]
    text = "\n".join(lines).encode()
    return zipped({f"ctr/{part}.csv": text for part in ("train", "test")})


def bananas() -> bytes:
    draw, files = rng(), {}
    for part in ("bananas_train", "bananas_val"):
        lines = ["img_name,label,xmin,ymin,xmax,ymax"]
        for number in range(6):
            left, top = draw.integers(0, 150, 2)
            files[f"banana-detection/{part}/images/{number}.png"] = picture(
                ".png", (256, 256), number
            )
            lines.append(f"{number}.png,0,{left},{top},{left + 80},{top + 80}")
        files[f"banana-detection/{part}/label.csv"] = "\n".join(lines).encode()
    return zipped(files)


def voc() -> bytes:
    import cv2

    files, root = {}, "VOCdevkit/VOC2012/"
    for number in range(8):
        mask = np.zeros((330, 490, 3), "uint8")
        mask[50:150, 60:200] = (0, 0, 128)  # BGR: the first class
        files[f"{root}JPEGImages/{number}.jpg"] = picture(".jpg", (330, 490), number)
        files[f"{root}SegmentationClass/{number}.png"] = cv2.imencode(".png", mask)[1].tobytes()
    names = "\n".join(map(str, range(8))).encode()
    for part in ("train", "val"):
        files[f"{root}ImageSets/Segmentation/{part}.txt"] = names
    return tarred(files, "w")


def folders_of_pictures(*folders: str, number: int = 8, size: tuple[int, int] = (64, 64)) -> Files:
    return {
        f"{folder}/{i}.jpg": picture(".jpg", size, i) for folder in folders for i in range(number)
    }


def segmented() -> bytes:
    root = "BSDS500-master/BSDS500/data"
    folders = [f"{root}/images/{part}" for part in ("train", "test", "val")]
    files = folders_of_pictures(*folders, size=(321, 481))
    return zipped(files | {f"{root}/groundTruth/train/0.mat": b""})


def hot_dogs() -> bytes:
    kinds = [f"hotdog/{p}/{k}" for p in ("train", "test") for k in ("hotdog", "not-hotdog")]
    return zipped(folders_of_pictures(*kinds, number=12, size=(260, 260)))


def labelled(root: str, kind: str, labels: list[str], size: tuple[int, int]) -> bytes:
    """A competition's folder: pictures by number for training and testing, labels in a table."""
    files = {
        f"{root}/{part}/{i + 1}.{kind}": picture(f".{kind}", size, i)
        for part in ("train", "test") for i in range(110)
    }  # fmt: skip
    rows = [f"{i + 1},{labels[i % len(labels)]}" for i in range(110)]
    name = "trainLabels.csv" if "cifar" in root else "labels.csv"
    files[f"{root}/{name}"] = "\n".join(["id,label", *rows]).encode()
    return zipped(files)


FILES: dict[str, Callable[[], bytes]] = {
    "timemachine.txt": time_machine,
    "airfoil_self_noise.dat": airfoil,
    "kaggle_house_pred_train.csv": lambda: houses(True),
    "kaggle_house_pred_test.csv": lambda: houses(False),
    "fra-eng.zip": translations,
    "ptb.zip": penn_treebank,
    "wikitext-2-v1.zip": wikitext,
    "aclImdb_v1.tar.gz": film_reviews,
    "snli_1.0.zip": snli,
    "ml-100k.zip": movie_lens,
    "ctr.zip": clicks,
    "banana-detection.zip": bananas,
    "VOCtrainval_11-May-2012.tar": voc,
    "hotdog.zip": hot_dogs,
    "pokemon.zip": lambda: zipped(folders_of_pictures("pokemon/a", "pokemon/b", number=40)),
    "kaggle_cifar10_tiny.zip": lambda: labelled(
        "kaggle_cifar10_tiny", "png", ["cat", "dog", "ship"], (32, 32)
    ),
    "kaggle_dog_tiny.zip": lambda: labelled(
        "kaggle_dog_tiny", "jpg", ["boxer", "pug", "husky"], (260, 260)
    ),
    "master.zip": segmented,
    "test_images.tar.gz": lambda: tarred(
        folders_of_pictures("test_images", number=16, size=(300, 400)), "w:gz"
    ),
    "train.csv": lambda: houses(True),
    "test.csv": lambda: houses(False),
    **{
        f"glove.6B.{n}d.zip": functools.partial(
            lambda n: zipped({f"glove.6B.{n}d/vec.txt": glove(n)}), n
        )
        for n in (50, 100)
    },
}


class NotGenerated(Exception):
    """The script asks for a file that is not known here."""


def content_of(url: str) -> bytes:
    name = url.rpartition("/")[2].partition("?")[0]
    if name not in FILES:
        # A picture is a picture, and a symbol or weights are a pretrained network.
        if name.endswith((".jpg", ".jpeg", ".png")):
            return picture(Path(name).suffix, (300, 400))
        raise NotGenerated(f"would download {name}")
    return FILES[name]()


def download(url, path=None, overwrite=False, sha1_hash=None, retries=5, verify_ssl=True):
    """Stands in for mxnet.gluon.utils.download."""
    name = url.rpartition("/")[2]
    target = Path(name if path is None else path)
    target = target / name if target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.write_bytes(content_of(url))
    return str(target)


def download_for_tests(url, fname=None, dirname=None, overwrite=False, retries=5):
    """Stands in for mxnet.test_utils.download."""
    target = Path(dirname or ".") / (fname or url.rpartition("/")[2])
    return download(url, target)


def images(shape: tuple[int, ...], classes: int, number: int, seed: int):
    """Images and their labels: noise on a pattern of the class, so that networks learn them."""
    patterns = rng().integers(0, 200, (classes, *shape))
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, number).astype("int32")
    pixels = patterns[labels] + draw.integers(0, 56, (number, *shape))
    return pixels.astype("uint8"), labels


TRAINING, TESTING = 640, 32


def get_data(shape: tuple[int, ...], classes: int):
    """Return a `_get_data` for a data set of the vision package."""

    def method(self):
        is_train = self._train
        pixels, labels = images(shape, classes, TRAINING if is_train else TESTING, int(is_train))
        array = mx.np.array if mx.util.is_np_array() else mx.nd.array
        self._data = array(pixels, dtype="uint8")
        self._label = labels

    return method


def get_mnist(path=None):
    """Stands in for mxnet.test_utils.get_mnist."""
    found = {}
    for split, number in (("train", TRAINING), ("test", TESTING)):
        pixels, labels = images((28, 28, 1), 10, number, int(split == "train"))
        found[f"{split}_data"] = pixels.transpose(0, 3, 1, 2).astype("float32") / 255
        found[f"{split}_label"] = labels.astype("float32")
    return found


def get_mnist_iterator(batch_size, input_shape, num_parts=1, part_index=0, path=None):
    found = get_mnist()
    return tuple(
        mx.io.NDArrayIter(
            found[f"{split}_data"].reshape((-1, *input_shape)), found[f"{split}_label"],
            min(batch_size, TESTING), shuffle=False,
        )
        for split in ("train", "test")
    )  # fmt: skip


def write_idx(folder: Path) -> None:
    """Write MNIST's files, for scripts that read them themselves."""
    for name, number, seed in (("train", TRAINING, 1), ("t10k", TESTING, 0)):
        pixels, labels = images((28, 28, 1), 10, number, seed)
        head = struct.pack(">IIII", 2051, number, 28, 28)
        for file, data in (
            (f"{name}-images-idx3-ubyte", head + pixels.tobytes()),
            (f"{name}-labels-idx1-ubyte",
             struct.pack(">II", 2049, number) + labels.astype("uint8").tobytes()),
        ):  # fmt: skip
            (folder / file).write_bytes(data)
            (folder / f"{file}.gz").write_bytes(gzip.compress(data))


def pretrained(name: str, root: str | None = None) -> str:
    """Stands in for a download of weights: those of a network just initialised."""
    is_numpy_mode = mx.util.is_np_array()
    mx.npx.reset_np()
    net = gluon.model_zoo.vision.get_model(name)
    net.initialize()
    net(mx.nd.zeros((1, 3, 299, 299) if "inception" in name else (1, 3, 224, 224)))
    path = str(Path(tempfile.mkdtemp(prefix="upstream-"), f"{name}.params"))
    net.save_parameters(path)
    if is_numpy_mode:
        mx.npx.set_np()
    return path


def older_pandas() -> None:
    """Let pandas take what it took when the scripts were written."""
    try:
        import pandas as pd
    except ImportError:
        return
    pd.set_option("future.infer_string", False)  # texts are objects
    read_csv, get_dummies = pd.read_csv, pd.get_dummies

    def with_separator(path, sep=",", **settings):
        return read_csv(path, sep=sep, **settings)

    def as_numbers(data, **settings):
        return get_dummies(data, **({"dtype": float} | settings))

    pd.DataFrame.as_matrix = pd.Series.as_matrix = lambda frame: frame.to_numpy()
    pd.read_csv, pd.get_dummies = with_separator, as_numbers


def fake_requests() -> types.ModuleType:
    module = types.ModuleType("requests")

    class Response:
        status_code, ok = 200, True

        def __init__(self, url: str) -> None:
            self.content = content_of(url)

        def iter_content(self, chunk_size: int = 1024):
            yield self.content

        def json(self):
            return json.loads(self.content)

    module.get = lambda url, **_: Response(url)
    return module


def put_in_place(folder: Path) -> None:
    """Put all of it where scripts would download."""
    vision = gluon.data.vision
    for name, shape, classes in (
        ("MNIST", (28, 28, 1), 10), ("FashionMNIST", (28, 28, 1), 10), ("CIFAR10", (32, 32, 3), 10),
    ):  # fmt: skip
        getattr(vision.datasets, name)._get_data = get_data(shape, classes)
    vision.datasets.CIFAR100._get_data = get_data((32, 32, 3), 100)
    mx.test_utils.get_mnist, mx.test_utils.get_mnist_iterator = get_mnist, get_mnist_iterator
    for module in (
        gluon.utils, vision.datasets, gluon.model_zoo.model_store, contrib_text
    ):  # fmt: skip
        module.download = download
    gluon.model_zoo.model_store.get_model_file = pretrained
    mx.test_utils.download = download_for_tests
    sys.modules["requests"] = fake_requests()
    older_pandas()
    with contextlib.suppress(ImportError):
        import IPython.display

        IPython.display.set_matplotlib_formats = lambda *_: None  # of older versions
    (folder / "mxnet").mkdir(exist_ok=True)
    write_idx(folder / "work")
