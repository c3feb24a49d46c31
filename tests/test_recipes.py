"""Every recipe, in small: it runs, writes what it promises, and refuses what is not there."""

import csv
import os

import cifar_resnet
import linear_regression
import mxnet as mx
import numpy as np
import pytest
import softmax_regression
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY

needs_fashion_mnist = pytest.mark.skipif(
    not os.path.isdir(FASHION_MNIST_DIRECTORY),
    reason="Fashion-MNIST is not there: install Debian's package dataset-fashion-mnist",
)


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def is_picture(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_softmax_regression(tmp_path, capsys):
    runs = softmax_regression.main(["--epochs", "4", "--batch-size", "50", "--out", str(tmp_path)])
    svrg, sgd, decayed = (run.rows for run in runs)
    budgets = [rows[-1]["gradient_evaluations_per_sample"] for rows in (svrg, sgd, decayed)]
    assert budgets == [8, 8, 8]  # with the table two gradients a sample and epoch
    rows = read_csv(tmp_path / "metrics.csv")
    assert len(rows) == 5 + 9 + 9
    assert float(rows[4]["above_optimum"]) == svrg[-1]["above_optimum"]
    assert is_picture(tmp_path / "curves.png")
    printed = capsys.readouterr().out
    assert "SVRG, step 4" in printed
    assert f"{svrg[-1]['held_out_accuracy']:.1%} of all 297 are right" in printed
    model = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "model-symbol.json"), ["data"], str(tmp_path / "model-0000.params")
    )
    x = softmax_regression.load("digits", "").x_held_out
    data = mx.nd.array(x, dtype="float64")
    assert np.array_equal(model(data).asnumpy(), runs[0].net(data).asnumpy())


@needs_fashion_mnist
def test_softmax_regression_on_fashion_mnist(tmp_path):
    arguments = ["--data", "fashion-mnist", "--batch-size", "2000", "--epochs", "1"]
    runs = softmax_regression.main([*arguments, "--l2", "0.1", "--out", str(tmp_path)])
    assert runs[0].rows[-1]["held_out_accuracy"] > 0.6


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epochs", "3"],
        ["--data", "generated", "--samples", "500", "--epochs", "2", "--batch-size", "50"],
    ],
)
def test_linear_regression(tmp_path, arguments):
    svrg, sgd, decayed = linear_regression.main([*arguments, "--out", str(tmp_path)])
    assert svrg[-1]["gradient_evaluations_per_sample"] == sgd[-1]["gradient_evaluations_per_sample"]
    assert 0 < svrg[-1]["above_optimum"] < svrg[0]["above_optimum"]
    assert len(read_csv(tmp_path / "metrics.csv")) == len(svrg) + len(sgd) + len(decayed)
    assert is_picture(tmp_path / "curves.png")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--svrg", "--coefficient", "0.75"],
        ["--svrg", "--devices", "2", "--optimizer", "adam", "--lr", "1e-3"],
    ],
)
def test_cifar_resnet(tmp_path, arguments):
    small = ["--data", "synthetic", "--samples", "24", "--batch-size", "12", "--epochs", "1"]
    result = cifar_resnet.main([*small, *arguments, "--out", str(tmp_path)])
    assert result.epochs_run == 1
    (row,) = read_csv(tmp_path / "history.csv")
    assert float(row["samples"]) == 24
    assert is_picture(tmp_path / "curves.png")
    assert (tmp_path / "model-symbol.json").is_file()


@pytest.mark.parametrize("data", ["digits", pytest.param("fashion-mnist",
                                                         marks=needs_fashion_mnist)])  # fmt: skip
def test_cifar_resnet_loads_images_of_32_by_32(data):
    for images, labels in cifar_resnet.load(cifar_resnet.parse(["--data", data])):
        assert images.shape == (len(labels), 1, 32, 32)
        assert images.dtype == "uint8"
        assert set(labels) == set(range(10))


def test_cifar_resnet_reads_cifar10_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 4, 3073)).astype("uint8")
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name, part in zip(names, records, strict=True):
        part.tofile(tmp_path / name)
    options = cifar_resnet.parse(["--data", "cifar10", "--data-dir", str(tmp_path)])
    (images, labels), (test_images, test_labels) = cifar_resnet.load(options)
    assert images.shape == (20, 3, 32, 32)
    assert images[5, 1, 2, 3] == records[1, 1, 1 + 1024 + 2 * 32 + 3]
    assert np.array_equal(labels, records[:5, :, 0].ravel())
    assert test_images.shape == (4, 3, 32, 32)
    assert np.array_equal(test_labels, records[5, :, 0])


def test_cifar10_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(SystemExit, match=r"data_batch_1.bin is missing.*--download"):
        cifar_resnet.main(["--data", "cifar10", "--data-dir", str(tmp_path)])


@pytest.mark.parametrize("recipe", [softmax_regression, cifar_resnet])
def test_data_that_is_not_there_says_how_to_get_it(tmp_path, recipe):
    with pytest.raises(SystemExit, match=r"is not in .*: install Debian's package dataset-fashion"):
        recipe.main(["--data", "fashion-mnist", "--data-dir", str(tmp_path / "nowhere")])


def test_cifar_resnet_goes_on(tmp_path):
    small = ["--data", "synthetic", "--samples", "32", "--batch-size", "16", "--resume", "--svrg"]
    cifar_resnet.main([*small, "--epochs", "1", "--out", str(tmp_path)])
    result = cifar_resnet.main([*small, "--epochs", "2", "--out", str(tmp_path)])
    assert [row["epoch"] for row in result.history] == [0, 1]
    rows = (tmp_path / "history.csv").read_text().splitlines()
    assert len(rows) == 3
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        "epoch-1-batch-2",
        "epoch-2-batch-4",
    }
