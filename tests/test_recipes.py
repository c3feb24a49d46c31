"""Every recipe, in small: it runs, writes what it promises, and refuses what is not there."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import stdev

import cifar_data
import cifar_options
import cifar_resnet
import compare
import gan
import large_batch
import linear_regression
import mxnet as mx
import numpy as np
import object_detection
import pytest
import segmentation
import softmax_regression
import word_language_model
from interruption import EXIT_CODE
from gluon_svrg import deploy
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY
from problems import has_bfloat16

pytestmark = pytest.mark.full

RECIPES = Path(__file__).parent.parent / "recipes"
SMALL = ["--data", "synthetic", "--samples", "24", "--batch-size", "12", "--epochs", "1"]

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


def test_softmax_regression_by_the_automatic_step(tmp_path, capsys):
    arguments = ["--lr", "auto", "--epochs", "3", "--batch-size", "50", "--out", str(tmp_path)]
    runs = softmax_regression.main(arguments)
    names = [run.name for run in runs]
    assert names == ["SVRG, automatic step", "SVRG, step 4", "SGD, step 4", "SGD, decayed step"]
    automatic, by_hand = (run.rows[-1] for run in runs[:2])
    assert automatic["above_optimum"] < 2 * by_hand["above_optimum"]
    (steps,) = re.findall(r"falls from \S+, found by (\d+) steps", capsys.readouterr().out)
    # The steps of the search are counted, with 50 of the 1,500 samples each.
    evaluations = 6 + int(steps) / 30
    assert automatic["gradient_evaluations_per_sample"] == pytest.approx(evaluations)
    assert by_hand["gradient_evaluations_per_sample"] == 6


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
    ("arguments", "gradients"),
    [
        ([], 1),
        (["--svrg", "--coefficient", "0.75"], 2),  # the table keeps those of the full pass
        (["--svrg", "--devices", "2", "--optimizer", "adam", "--lr", "1e-3"], 2),
        # Locked images repeat, too.
        (["--svrg", "--alpha-decay", "0.75", "--augment", "--cutout", "8", "--lock", "require",
          "--mixup", "0.2", "--label-smoothing", "0.1"], 2),
    ],
)  # fmt: skip
def test_cifar_resnet(tmp_path, arguments, gradients):
    result = cifar_resnet.main([*SMALL, *arguments, "--out", str(tmp_path)])
    assert result.epochs_run == 1
    (row,) = read_csv(tmp_path / "history.csv")
    assert float(row["samples"]) == 24
    assert float(row["gradient_evaluations"]) == 24 * gradients
    # Soft labels have no accuracy; those of the test set are sparse.
    assert ("training accuracy" in row) == ("--mixup" not in arguments)
    assert is_picture(tmp_path / "curves.png")
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["test accuracy"] == float(row["validation accuracy"])
    assert json.loads((tmp_path / "options.json").read_text())["samples"] == 24
    page = (tmp_path / "report.html").read_text()
    assert "python recipes/cifar_resnet.py --data synthetic" in page
    assert '<th scope="col">validation accuracy</th>' in page
    assert "<dt>samples</dt><dd>24</dd>" in page  # an option


def test_the_exported_network_is_the_trained_one(tmp_path):
    small = [*SMALL, "--optimizer", "lars", "--no-decay-on-norm", "--lr", "1", "--meter"]
    result = cifar_resnet.main([*small, "--out", str(tmp_path)])
    assert result.history[-1]["variance_ratio"] > 0
    data = cifar_data.load(cifar_options.parse(small))
    (images, labels), channels = data.test, (1, 3, 1, 1)
    mean, std = (np.reshape(values, channels) for values in (data.mean, data.std))
    model = gluon_import(tmp_path / "model")
    outputs = model(mx.nd.array((images / 255 - mean) / std, dtype="float32")).asnumpy()
    right = (outputs.argmax(axis=1) == labels).mean()
    assert right == pytest.approx(result.history[-1]["validation accuracy"])
    card = deploy.read_card(tmp_path / "model")
    assert card["class_names"] == [str(digit) for digit in range(10)]
    assert card["normalization"]["mean"] == pytest.approx(data.mean)
    assert card["metrics"] == {"test accuracy": pytest.approx(right)}


def gluon_import(directory):
    return mx.gluon.SymbolBlock.imports(
        str(directory / "model-symbol.json"), ["data"], str(directory / "model-0000.params")
    )


@pytest.mark.skipif(not has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN")
def test_bfloat16(tmp_path):
    # In a process of its own, because AMP changes MXNet for good.
    done = subprocess.run(
        [sys.executable, RECIPES / "cifar_resnet.py", *SMALL, "--svrg", "--dtype", "bfloat16",
         "--out", tmp_path],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_csv(tmp_path / "history.csv")
    parameters = mx.nd.load(str(tmp_path / "model" / "model-0000.params"))
    assert {array.dtype for array in parameters.values()} == {np.float32}
    assert "amp_cast" not in (tmp_path / "model" / "model-symbol.json").read_text()


def rates(arguments, batches, points):
    options = cifar_options.parse(arguments)
    schedule = cifar_resnet.make_schedule(options, batches).schedule
    return [schedule(point / (batches * options.epochs)) for point in points]


def test_the_schedule_of_gluoncv():
    batches = 390
    points = [epoch * batches for epoch in (0, 50, 100, 149, 150, 199)]
    points.insert(2, 100 * batches - 1)
    found = rates(["--preset", "gluoncv-cifar10"], batches, points)
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_schedule_of_fashion_mnist():
    points = [0, 100, 200, 200 + (3 * 469 - 200) / 2, 3 * 469]
    found = rates(["--preset", "fashion-mnist-nag"], 469, points)
    assert found == pytest.approx([0.01, 0.055, 0.1, 0.05, 0])


def test_milestones_count_from_the_begin_of_the_run_with_a_warm_up_too():
    arguments = ["--epochs", "10", "--schedule", "step", "--milestones", "5", "--warm-up", "200"]
    found = rates(arguments, 100, [0, 200, 499, 500])
    assert found == pytest.approx([0.01, 0.1, 0.1, 0.01])


def test_a_preset_sets_defaults_that_options_override():
    options = cifar_options.parse(["--lr", "0.05", "--preset", "gluoncv-cifar10"])
    assert (options.lr, options.epochs, options.milestones) == (0.05, 200, [100, 150])
    assert (options.optimizer, options.wd, options.batch_size) == ("nag", 1e-4, 128)


@pytest.mark.parametrize("name", cifar_options.PRESETS)
def test_the_options_of_a_preset_exist(name, capsys):
    plain = vars(cifar_options.parse([]))
    options = vars(cifar_options.parse(["--preset", name]))
    assert options.keys() == plain.keys()
    for option, value in cifar_options.PRESETS[name].options.items():
        assert options[option] == value
    with pytest.raises(SystemExit, match=r"^0$"):
        cifar_options.parse(["--preset", "list"])
    assert cifar_options.PRESETS[name].expected in capsys.readouterr().out


def test_no_decay_on_norm():
    def decayed(*arguments):
        options = cifar_options.parse([*arguments, "--optimizer", "lars"])
        net = cifar_resnet.make_net(options, 1, [mx.cpu()])
        trainer = cifar_resnet.make_trainer(net, options)
        params = {param.name: param for param in trainer._params}
        norms = [name for name in params if name.endswith(("gamma", "beta", "bias"))]
        assert len(norms) > 20
        assert all(trainer.optimizer.is_exempt(name) for name in norms)
        assert trainer.optimizer.eta == 0.5
        return {params[name].wd_mult for name in norms}

    args = ["--optimizer-args", "eta=0.5"]
    assert decayed(*args) == {1}
    assert decayed("--no-decay-on-norm", *args) == {0}


@pytest.mark.parametrize("data", ["digits", pytest.param("fashion-mnist",
                                                         marks=needs_fashion_mnist)])  # fmt: skip
def test_cifar_resnet_loads_images_of_32_by_32(data):
    loaded = cifar_data.load(cifar_options.parse(["--data", data]))
    for images, labels in (loaded.train, loaded.test):
        assert images.shape == (len(labels), 1, 32, 32)
        assert images.dtype == "uint8"
        assert set(labels) == set(range(10))
    some = loaded.train[0] if data == "digits" else loaded.train[0][:, :, ::2]
    assert loaded.mean[0] == pytest.approx(some.mean() / 255, abs=2e-3)
    assert loaded.std[0] == pytest.approx((some / 255).std(), abs=2e-3)


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_cifar_resnet_reads_cifar10_from_a_folder(tmp_path, folder):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 4, 3073)).astype("uint8")
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, part in zip(names, records, strict=True):
        part.tofile(tmp_path / folder / name)
    data = cifar_data.load(cifar_options.parse(["--data", "cifar10", "--data-dir", str(tmp_path)]))
    images, labels = data.train
    assert images.shape == (20, 3, 32, 32)
    assert images[5, 1, 2, 3] == records[1, 1, 1 + 1024 + 2 * 32 + 3]
    assert np.array_equal(labels, records[:5, :, 0].ravel())
    assert data.test[0].shape == (4, 3, 32, 32)
    assert np.array_equal(data.test[1], records[5, :, 0])
    # gluoncv's transforms, on one pixel.
    (batch, _), *_ = cifar_data.loader(data, data.train, batch_size=20)
    expected = (images[5, :, 2, 3] / 255 - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    assert batch[5, :, 2, 3].asnumpy() == pytest.approx(expected, rel=1e-5)


def test_cifar10_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(SystemExit, match=r"data_batch_1.bin is missing.*--download"):
        cifar_resnet.main(["--data", "cifar10", "--data-dir", str(tmp_path)])


@pytest.mark.parametrize("error", [ConnectionError("no route"), RuntimeError("404")])
def test_a_download_that_fails_says_how_to_bring_the_files(tmp_path, monkeypatch, error):
    def fail(root):
        raise error

    monkeypatch.setattr(mx.gluon.data.vision, "CIFAR10", fail)
    with pytest.raises(SystemExit, match=r"download failed \(\w+Error\), .*network.*six \.bin"):
        cifar_resnet.main(["--data", "cifar10", "--data-dir", str(tmp_path), "--download"])


@pytest.mark.parametrize("recipe", [softmax_regression, cifar_resnet, large_batch])
def test_data_that_is_not_there_says_how_to_get_it(tmp_path, recipe):
    with pytest.raises(SystemExit, match=r"is not in .*: install Debian's package dataset-fashion"):
        recipe.main(["--data", "fashion-mnist", "--data-dir", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "resnet"], r"--preset must be one of gluoncv-cifar10, .*got 'resnet'"),
        (["--dtype", "float16"], r"float16 needs --gpu: MXNet has no float16 matrix product on"),
        (["--gpu", "--devices", "9"], r"--gpu --devices 9 needs as many GPUs, MXNet sees \d"),
        (["--max-variance-ratio", "0.3"], r"--max-variance-ratio needs --svrg"),
        (["--alpha-decay", "0.5"], r"--alpha-decay needs --svrg"),
        (["--svrg", "--alpha-decay", "1.5"], r"start must be in \[0, 1\], got 1.5"),
        (["--coefficient", "1"], r"--coefficient needs --svrg"),
        (["--update-freq", "2"], r"--update-freq needs --svrg"),
        (["--milestones", "1"], r"--milestones needs --schedule step, got --schedule cosine"),
        (["--preset", "gluoncv-cifar10", "--schedule", "constant", "--milestones", "1"],
         r"--milestones needs --schedule step, got --schedule constant"),
        (["--schedule", "step"], r"--milestones must be below --epochs 1, got \[100, 150\]"),
        (["--schedule", "step", "--epochs", "9", "--milestones", "1", "--warm-up", "9"],
         r"--milestones must come after the warm-up, got \[1\]"),
        (["--model", "cifar_resnet21_v1"], r"--model must be a CIFAR net of gluoncv"),
        (["--model", "resnet18_v1"], r"'resnet18_v1' is no net for images of 32 x 32"),
        (["--optimizer", "sgdd"], r"--optimizer sgdd: .*sgd"),
        (["--label-smoothing", "2"], r"the training data: smoothing must be .*2"),
    ],
)  # fmt: skip
def test_options_that_are_wrong_say_so_in_a_sentence(tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message):
        cifar_resnet.main([*SMALL, *arguments, "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        (cifar_options, ["--epochs", "0"], "must be an integer of at least 1, got '0'"),
        (cifar_options, ["--epochs", "1.5"], "must be an integer of at least 1, got '1.5'"),
        (cifar_options, ["--seed", "-1"], "must be an integer from 0 to 2147483647, got '-1'"),
        (cifar_options, ["--devices", "0"], "must be an integer of at least 1, got '0'"),
        (cifar_options, ["--warm-up", "-5"], "must be an integer of at least 0, got '-5'"),
        (cifar_options, ["--samples", "0"], "must be an integer of at least 1, got '0'"),
        (cifar_options, ["--batch-size", "0"], "must be an integer of at least 1, got '0'"),
        (cifar_options, ["--cutout", "50"], "must be an integer from 0 to 32, got '50'"),
        (cifar_options, ["--lr", "-1"], "must be a number above 0, got '-1'"),
        (cifar_options, ["--lr", "nan"], "must be a number above 0, got 'nan'"),
        (cifar_options, ["--lr", "fast"], "must be a number above 0, got 'fast'"),
        (cifar_options, ["--wd", "-1"], "must be a number of at least 0, got '-1'"),
        (cifar_options, ["--optimizer-args", "eta"], "must be NAME=NUMBER, .* got 'eta'"),
        (cifar_options, ["--optimizer-args", "eta=x"], "must be NAME=NUMBER, .* got 'eta=x'"),
        (cifar_options, ["--coefficient", "half"], "must be a number or auto, got 'half'"),
        (large_batch, ["--epochs", "0"], "must be an integer of at least 1, got '0'"),
        (large_batch, ["--batch-size", "0"], "must be an integer of at least 1, got '0'"),
        (large_batch, ["--seeds", "0"], "must be an integer of at least 1, got '0'"),
        (large_batch, ["--samples", "9"], "must be an integer of at least 10, got '9'"),
        (softmax_regression, ["--lr", "0"], "must be a number above 0, got '0'"),
        (softmax_regression, ["--epochs", "0"], "must be an integer of at least 1, got '0'"),
    ],
)  # fmt: skip
def test_numbers_that_are_wrong_are_refused_as_they_are_read(recipe, arguments, message, capsys):
    with pytest.raises(SystemExit):
        recipe.parse(arguments)
    assert re.search(f"argument {arguments[0]}: {message}", capsys.readouterr().err)


def test_the_milestones_of_a_preset_do_not_hinder_another_schedule():
    options = cifar_options.parse(["--preset", "gluoncv-cifar10", "--schedule", "cosine"])
    assert options.schedule == "cosine"


@pytest.mark.parametrize("place", ["model", "."])
def test_a_place_that_may_not_be_written_is_said_before_any_training(tmp_path, monkeypatch, place):
    monkeypatch.setattr(cifar_resnet.gs.Estimator, "fit", None)
    out = tmp_path / "run"
    if place == "model":
        (out / "model").mkdir(parents=True)
        (out / "model" / "notes.txt").write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(SystemExit, match=r"--out .*run: .*(holds notes.txt|File exists)"):
        cifar_resnet.main([*SMALL, "--out", str(out)])


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resume_of_another_run_changes_nothing(tmp_path):
    run = [*SMALL, "--resume", "--out", str(tmp_path)]
    cifar_resnet.main(run)
    before = files_of(tmp_path)
    with pytest.raises(SystemExit, match=r"--resume: .* does not fit this run: .*optimizer.*--out"):
        cifar_resnet.main([*run, "--epochs", "2", "--optimizer", "adam", "--lr", "1e-3"])
    assert files_of(tmp_path) == before
    cifar_resnet.main([*run, "--lr", "0.5"])  # nothing is left to be trained
    assert json.loads((tmp_path / "options.json").read_text())["lr"] == 0.1
    assert files_of(tmp_path) == before


def test_a_resume_after_the_training_writes_what_is_missing(tmp_path):
    run = [*SMALL, "--resume", "--out", str(tmp_path)]
    cifar_resnet.main(run)
    (tmp_path / "report.html").unlink()  # killed just before it was written
    cifar_resnet.main(run)
    assert (tmp_path / "report.html").is_file()


def test_cifar_resnet_goes_on(tmp_path):
    small = ["--data", "synthetic", "--samples", "32", "--batch-size", "16", "--resume", "--svrg"]
    cifar_resnet.main([*small, "--epochs", "1", "--out", str(tmp_path)])
    result = cifar_resnet.main([*small, "--epochs", "2", "--out", str(tmp_path)])
    assert [row["epoch"] for row in result.history] == [0, 1]
    assert result.history.column("gradient_evaluations") == [64, 128]
    rows = (tmp_path / "history.csv").read_text().splitlines()
    assert len(rows) == 3
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        "epoch-1-batch-2",
        "epoch-2-batch-4",
    }


def test_compare(tmp_path, capsys):
    out = str(tmp_path / "both")
    cifar_resnet.main([*SMALL, "--out", str(tmp_path / "plain")])
    runs = compare.main(
        [str(tmp_path / "plain"), "SVRG=--svrg --lr 0.2", "--common", shlex.join(SMALL),
         "--out", out]
    )  # fmt: skip
    assert [run.name for run in runs] == ["plain", "SVRG"]
    rows = read_csv(tmp_path / "both" / "table.csv")
    assert [row["gradient evaluations"] for row in rows] == ["24", "48"]
    (epoch,) = read_csv(tmp_path / "plain" / "history.csv")
    assert rows[0]["test accuracy"] == epoch["validation accuracy"]
    assert rows[0]["training loss"] == epoch["training loss"]
    assert rows[0]["seconds"] == epoch["seconds"]
    assert json.loads((tmp_path / "both" / "SVRG" / "options.json").read_text())["lr"] == 0.2
    assert is_picture(tmp_path / "both" / "compare.png")
    page = (tmp_path / "both" / "report.html").read_text()
    assert '<th scope="row">SVRG</th>' in page
    assert 'src="data:image/png;base64,iVBOR' in page
    table = (tmp_path / "both" / "table.md").read_text()
    assert table.startswith("| run | epochs | test accuracy |")
    assert table in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (["0,1,24,0.5,0.8,1", "1,1,48,0.4,,1"], ["A", "B"]),
        (["0,1,24,0.5,,1"], ["A"]),
        (["0,1,12,0.5,,0"], ["A"]),
    ],
    ids=["in its last evaluation", "in its first evaluation", "in its first epoch"],
)
def test_compare_after_ctrl_c(rows, names, tmp_path, monkeypatch):
    def main(arguments):
        folder = Path(arguments[-1])
        folder.mkdir(parents=True)
        header = "epoch,seconds,gradient_evaluations,training loss,validation accuracy,complete"
        own = ["0,1,24,0.5,0.7,1"] if folder.name == "A" else rows
        (folder / "history.csv").write_text("\n".join([header, *own]))
        (folder / "result.json").write_text("{}")
        if folder.name == "B":
            raise SystemExit(EXIT_CODE)

    monkeypatch.setattr(cifar_resnet, "main", main)
    with pytest.raises(SystemExit) as end:
        compare.main(["A=", "B=", "C=", "--out", str(tmp_path)])
    assert end.value.code == EXIT_CODE
    assert [row["run"] for row in read_csv(tmp_path / "table.csv")] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], r"'nowhere' has no history.csv: give the --out of a run"),
        (["a/b=--svrg"], r"a run's name must have letters.*got 'a/b'"),
        (["A=", "A="], r"two runs are called 'A'"),
        (["A=", "B=--dtype bfloat16"], r"runs of bfloat16 and float32 cannot share a process"),
    ],
)
def test_compare_says_what_is_wrong(tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message):
        compare.main([*arguments, "--out", str(tmp_path)])


def test_compare_adds_up_the_seconds(tmp_path):
    header = "epoch,seconds,training loss,validation accuracy"
    (tmp_path / "history.csv").write_text(f"{header}\n0,2,0.5,0.8\n1,3,0.4,0.7\n")
    with pytest.raises(SystemExit, match=r"no 'gradient_evaluations' of its last epoch"):
        compare.read("a", tmp_path)
    (tmp_path / "history.csv").write_text(
        f"{header},gradient_evaluations\n0,2,0.5,0.8,10\n1,3,0.4,0.7,20\n"
    )
    assert compare.read("a", tmp_path).row() == {
        "run": "a", "epochs": 2, "test accuracy": 0.7, "best test accuracy": 0.8,
        "training loss": 0.4, "seconds": 5.0, "gradient evaluations": 20,
    }  # fmt: skip


def test_large_batch_goes_on_where_it_was_killed(tmp_path, monkeypatch, capsys):
    sweep = ["--data", "synthetic", "--samples", "60", "--epochs", "1", "--seeds", "1"]
    sweep += ["--batch-size", "27", "--more-rates", "0", "--out", str(tmp_path)]
    (row,) = large_batch.main([*sweep, "--only", "lars"])
    assert (row["optimizer"], row["of"], row["steps"]) == ("lars", 5, 2)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(lines) == 5
    # Killed in the middle of the last line; a line of another sweep is no line of this one.
    other = json.dumps(json.loads(lines[3]) | {"epochs": 2})
    (tmp_path / "runs.jsonl").write_text("\n".join([*lines[:3], other, lines[4][:20]]))
    rows = large_batch.main(sweep)
    assert "7 runs to do" in capsys.readouterr().out
    assert [row["optimizer"] for row in rows] == ["sgd", "lars"]
    assert rows[1] == row | {"seconds a run": rows[1]["seconds a run"]}  # the same runs again
    assert is_picture(tmp_path / "large_batch.png")
    assert "<h2>All runs</h2>" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "table.md").read_text().startswith("| optimizer | batch size |")
    monkeypatch.setattr(large_batch, "train_one", None)  # nothing is left to be trained
    assert large_batch.main(sweep) == rows


def test_the_grid_of_large_batch_grows_beyond_an_edge(tmp_path, monkeypatch):
    tried = []

    def train_one(options, splits, optimizer, batch_size, lr, seed):
        tried.append((lr, seed))
        accuracy = 0.9 - abs(lr - 0.9)  # the best is beyond the greatest of the grid, 0.4
        return {
            "optimizer": optimizer, "batch_size": batch_size, "lr": lr, "seed": seed,
            **{name: vars(options)[name] for name in large_batch.SETTINGS},
            "validation_accuracy": accuracy, "test_accuracy": accuracy, "steps": 1, "seconds": 1.0,
        }  # fmt: skip

    monkeypatch.setattr(large_batch, "train_one", train_one)
    sweep = ["--data", "synthetic", "--samples", "60", "--seeds", "2", "--only", "sgd"]
    sweep += ["--batch-size", "128", "--out", str(tmp_path)]
    (row,) = large_batch.main([*sweep, "--more-rates", "1"])
    assert (row["best learning rate"], row["of"], row["at the edge"]) == (0.8, 6, "yes")
    (row,) = large_batch.main(sweep)
    assert (row["best learning rate"], row["of"], row["at the edge"]) == (0.8, 7, "no")
    assert len(tried) == len(set(tried)) == 14


def test_large_batch_chooses_by_the_validation_set():
    common = {"optimizer": "sgd", "batch_size": 128, "steps": 7, "seconds": 1.0}
    names = ("lr", "seed", "validation_accuracy", "test_accuracy")
    values = [
        *((0.1, 0, 0.7, 0.9), (0.1, 1, 0.7, 0.9)),
        *((0.2, 0, 0.9, 0.6), (0.2, 1, 0.8, 0.7)),
        *((0.4, 0, 0.95, 0.8), (0.4, 1, 0.1, 0.8)),
    ]
    results = [common | dict(zip(names, line, strict=True)) for line in values]
    (row,) = large_batch.best_rows(results)
    assert (row["best learning rate"], row["at the edge"], row["seeds"]) == (0.2, "no", 2)
    assert row["validation accuracy"] == pytest.approx(0.85)
    assert row["test accuracy"] == pytest.approx(0.65)
    assert row["spread"] == pytest.approx(stdev([0.6, 0.7]))
    (row,) = large_batch.best_rows(results[:4])
    assert row["at the edge"] == "yes"


@pytest.mark.parametrize(("optimizer", "batch_size"), [("sgd", 128), ("lars", 8192)])
def test_large_batch_has_five_learning_rates(optimizer, batch_size):
    found = large_batch.learning_rates(optimizer, batch_size)
    assert len(set(found)) == 5
    assert found[2] == {"sgd": 0.1, "lars": 16.0}[optimizer]
    assert np.divide(found[1:], found[:-1]) == pytest.approx([2] * 4)


def test_large_batch_keeps_the_validation_set_out_of_training():
    data = cifar_data.load(cifar_options.parse(["--data", "digits"]))
    (train, _), (validation, _), (test, _) = large_batch.normalised(data)
    assert [len(part) for part in (train, validation, test)] == [1350, 150, 297]
    assert np.concatenate([train, validation]).mean() == pytest.approx(0, abs=1e-4)
    # Taken together they are the training set, no image more and none twice.
    given = np.sort(data.train[0].reshape(1500, -1) @ np.arange(1024.0))
    back = (np.concatenate([train, validation]) * data.std[0] + data.mean[0]) * 255
    assert np.sort(back.reshape(1500, -1) @ np.arange(1024.0)) == pytest.approx(given, rel=1e-4)


@pytest.mark.parametrize("model", ["nope", "cifar_resnet21_v1", "resnet18_v1"])
def test_large_batch_says_that_there_is_no_such_net(model, tmp_path):
    with pytest.raises(SystemExit, match=r"--model must be a CIFAR net of gluoncv"):
        large_batch.main(["--model", model, "--data", "synthetic", "--out", str(tmp_path / "a")])
    assert not (tmp_path / "a").exists()


def launch_lines():
    for path in sorted(RECIPES.iterdir()):
        if path.suffix in (".py", ".md"):
            text = path.read_text().replace("\\\n", " ")
            for line in re.findall(r"^\s*(?:OMP\S+ )?python recipes/(.+)$", text, re.MULTILINE):
                yield path.name, line


@pytest.mark.parametrize(("file", "line"), list(launch_lines()))
def test_every_launch_line_is_one_that_the_recipe_takes(file, line):
    name, *arguments = shlex.split(line, comments=True)
    recipes = {
        "cifar_resnet.py": cifar_options, "compare.py": compare, "large_batch.py": large_batch,
        "softmax_regression.py": softmax_regression, "object_detection.py": object_detection,
        "segmentation.py": segmentation, "word_language_model.py": word_language_model,
        "gan.py": gan,
    }  # fmt: skip
    if name == "linear_regression.py" or arguments == ["--preset", "list"]:
        return  # the one parses in its main, the other ends there
    if name == "serve.py":
        recipes[name] = pytest.importorskip("serve", reason="the extra serve is not installed")
    options = recipes[name].parse(arguments)
    if name == "compare.py":
        for run in options.runs:
            if "=" in run:
                own = shlex.split(run.partition("=")[2])
                cifar_options.parse([*shlex.split(options.common), *own])


def test_every_recipe_has_its_launch_line_here_and_in_the_list():
    lines = list(launch_lines())
    for path in RECIPES.glob("*.py"):
        if "__main__" in path.read_text():  # the others are modules of these
            for file in (path.name, "README.md"):
                assert any(f == file and line.startswith(path.name) for f, line in lines), file


def test_linear_regression_tells_divergence(tmp_path, capsys):
    arguments = ["--data", "generated", "--samples", "2000", "--epochs", "1", "--batch-size", "10"]
    runs = linear_regression.main([*arguments, "--out", str(tmp_path)])
    assert runs[0] in linear_regression.diverged(runs)
    message = "SVRG has diverged: use a smaller --lr than 0.2, or a larger --batch-size than 10"
    assert message in capsys.readouterr().out


def test_linear_regression_of_generated_data_with_its_defaults(tmp_path, capsys):
    """Fewer samples and epochs than by default, and the batch size and step of the default."""
    arguments = ["--data", "generated", "--samples", "5000", "--out", str(tmp_path)]
    runs = linear_regression.main(arguments)
    assert linear_regression.diverged(runs) == []
    assert len(runs[0]) == 1 + linear_regression.DEFAULTS["generated"]["epochs"]
    assert capsys.readouterr().out.splitlines()[1] == "SVRG: 5 epochs ..."


@pytest.mark.parametrize(
    ("recipe", "defaults"),
    [
        (cifar_resnet, ["--epochs EPOCHS (default: 5)", "cifar_resnet20_v1)", "(default: 128)"]),
        (linear_regression, ["(default: diabetes: 10, generated: 1000)", "(default: 50000)"]),
        (softmax_regression, ["(default: "]),
    ],
)
def test_help_shows_the_defaults(recipe, defaults, capsys):
    with pytest.raises(SystemExit):
        recipe.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for default in defaults:
        assert default in shown
    assert "None" not in shown
