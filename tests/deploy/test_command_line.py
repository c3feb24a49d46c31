"""python -m gluon_svrg.deploy, and the benchmark."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import __main__ as command_line
from gluon_svrg.deploy.benchmark import format_timings
from gluon_svrg.deploy.eager import OperatorByOperator
from gluon_svrg.deploy.model_dir import read_model
from PIL import Image

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

WAYS = [
    *("eager", "hybridized", "static", "int8"),
    *("predictor, mxnet", "predictor, onnxruntime", "onnxruntime"),
]


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return str(tmp_path / "image.png")


def test_predict(model, image, capsys):
    assert command_line.main(["predict", str(model), image, image, "--top", "2"]) == 0
    predictor = deploy.Predictor.load(model)
    (best, second) = predictor.classes(predictor.read_images(image)[0], top=2)
    line = f"{image}: {best.name} {best.probability:.3f}, {second.name} {second.probability:.3f}\n"
    assert capsys.readouterr().out == 2 * line


def test_predict_as_json(model, image, capsys):
    assert command_line.main(["predict", str(model), image, "--top", "3", "--json"]) == 0
    ((row,),) = [json.loads(capsys.readouterr().out)]
    assert row["image"] == image
    assert {entry["name"] for entry in row["classes"]} == {"ant", "bee", "cat"}
    assert sum(entry["probability"] for entry in row["classes"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "{image}"], "there is no model directory 'nowhere'"),
        (["{model}", "no.png"], "there is no image file 'no.png'"),
        (["{model}", "{big}"], "is 12 x 16 pixels, the model takes 6 x 8"),
        (["{model}", "{image}", "--top", "9"], "top is 9, the model has 3 classes"),
    ],
)
def test_errors_are_one_sentence(arguments, message, model, image, tmp_path, capsys):
    Image.new("RGB", (12, 16)).save(tmp_path / "big.png")
    places = {"model": model, "image": image, "big": tmp_path / "big.png"}
    assert command_line.main(["predict", *(a.format(**places) for a in arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert message in output.err


def test_resize(model, tmp_path, capsys):
    Image.new("RGB", (12, 16)).save(tmp_path / "big.png")
    arguments = ["predict", str(model), str(tmp_path / "big.png"), "--resize"]
    assert command_line.main(arguments) == 0


@pytest.mark.full
def test_as_a_process(model, image):
    command = [sys.executable, "-m", "gluon_svrg.deploy", "predict", str(model)]
    good = subprocess.run([*command, image], capture_output=True, text=True, check=True)
    assert good.stdout.startswith(f"{image}: ")
    bad = subprocess.run([*command, "no.png"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr == "error: there is no image file 'no.png': give a JPEG or PNG file\n"


def test_export_onnx(model, tmp_path, capsys):
    path = str(tmp_path / "model.onnx")
    assert command_line.main(["export-onnx", str(model), path]) == 0
    assert "outputs within" in capsys.readouterr().out
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_quantize(model, x, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", x)
    arguments = ["quantize", str(model), str(tmp_path / "int8")]
    assert command_line.main([*arguments, "--calibration", str(tmp_path / "data.npz")]) == 0
    assert "calibrated on 5 samples" in capsys.readouterr().out
    assert deploy.read_card(tmp_path / "int8")["precision"] == "int8"


def compressed_badly(path):
    np.savez_compressed(path, np.zeros(1000))
    content = bytearray(path.read_bytes())
    content[60:100] = b"?" * 40
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("one.npy", lambda path: np.save(path, np.zeros((2, 3, 8, 6), "f"))),
        ("bad.npz", lambda path: path.write_bytes(b"PK\3\4garbage")),
        ("damaged.npz", compressed_badly),
        ("empty.npz", lambda path: path.write_bytes(b"")),
        ("text.npz", lambda path: path.write_text("numbers")),
        ("objects.npz", lambda path: np.savez(path, np.array([{}]))),
    ],
)
def test_calibration_data_that_is_no_archive(name, write, model, tmp_path, capsys):
    path = tmp_path / name
    write(path)
    arguments = ["quantize", str(model), str(tmp_path / "int8"), "--calibration", str(path)]
    assert command_line.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {str(path)!r} is not an .npz of arrays of numbers (")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_benchmark(model, capsys):
    arguments = ["bench", str(model), "--batch", "1", "3", "--seconds", "0.05"]
    assert command_line.main(arguments) == 0
    machine, _, *table = capsys.readouterr().out.splitlines()
    assert "mxnet 1.9.1" in machine
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:]]
    assert [row[:2] for row in rows] == [[batch, way] for batch in ("1", "3") for way in WAYS]
    for _, way, *figures in rows:
        p50, p99, throughput, ratio = (float(figure.replace(",", "")) for figure in figures)
        assert 0 < p50 <= p99
        assert throughput > 0
        assert ratio == 1 or way != "hybridized"


def test_benchmark_says_what_cannot_run(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    timings = deploy.benchmark(model, batches=[1], seconds=0.01)
    missing = [timing for timing in timings if not timing.calls]
    assert [timing.name for timing in missing] == ["predictor, onnxruntime", "onnxruntime"]
    for timing in missing:
        assert "pip install 'gluon-svrg[onnx]'" in timing.reason
        assert timing.reason in format_timings(timings)


def test_benchmark_takes_an_int8_model(model, x, tmp_path):
    deploy.quantize(model, tmp_path / "int8", x)
    timings = deploy.benchmark(model, [2], 0.01, int8_directory=tmp_path / "int8")
    assert [timing.name for timing in timings if timing.calls] == WAYS
    with pytest.raises(ValueError, match="is of int8: give the float32 model, and this one as"):
        deploy.benchmark(tmp_path / "int8")


def test_benchmark_goes_on_without_an_int8_model_that_fails(model, x, tmp_path, capsys):
    deploy.quantize(model, tmp_path / "int8", x)
    (weights,) = (tmp_path / "int8").glob("*.params")
    weights.write_bytes(weights.read_bytes()[:-1])
    arguments = ["bench", str(model), "--batch", "1", "--seconds", "0.01"]
    assert command_line.main([*arguments, "--int8", str(tmp_path / "int8")]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[1] for row in rows] == WAYS
    failed = [row for row in rows if not row[2].replace(".", "").isdigit()]
    assert [row[1] for row in failed] == ["int8"]
    assert "is not as it was written" in failed[0][2]


def test_benchmark_refuses_what_is_not_its_int8(model, grey, tmp_path):
    with pytest.raises(ValueError, match=r"int8_directory .* has a model of float32: give the di"):
        deploy.benchmark(model, [1], 0.01, int8_directory=model)
    other = np.random.default_rng(0).normal(size=(4, 1, 8, 6)).astype("float32")
    deploy.quantize(grey, tmp_path / "int8", other)
    with pytest.raises(
        ValueError, match=r"int8_directory .* another net, its inputs are \[.*\] an"
    ):
        deploy.benchmark(model, [1], 0.01, int8_directory=tmp_path / "int8")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batches": []}, ValueError, "batches is empty"),
        ({"batches": [0]}, ValueError, "batches must be a positive integer, got 0"),
        ({"batches": 1}, TypeError, "batches must be a sequence of integers, got 1"),
        ({"batches": "12"}, TypeError, "batches must be a sequence of integers, got '12'"),
        ({"seconds": 0}, ValueError, "seconds must be a number above 0, got 0"),
    ],
)
def test_benchmark_errors(options, error, message, model):
    with pytest.raises(error, match=message):
        deploy.benchmark(model, **options)


def test_eager_computes_the_same(nested, tmp_path):
    x, y = np.ones((2, 3), "float32"), np.ones((2, 4), "float32")
    path = deploy.export(nested, tmp_path / "model", (x, y))
    (a, (b, _, (c,))), (d, e) = deploy.Predictor.load(path)(x, y)
    model = read_model(path)
    outputs = OperatorByOperator(model.symbol, model.params, model.card["inputs"])([x, y])
    for one, other in zip(outputs, (a, b, c, d, e), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_second_quantize_says_its_own_option(model, x, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", x)
    arguments = ["quantize", str(model), str(tmp_path / "int8"), "--calibration"]
    arguments.append(str(tmp_path / "data.npz"))
    assert command_line.main(arguments) == 0
    assert command_line.main(arguments) == 2
    assert "exists already: replace it with --overwrite, or give" in capsys.readouterr().err
    assert command_line.main([*arguments, "--overwrite"]) == 0


def test_export_onnx_on_a_sample(model, x, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", x)
    arguments = ["export-onnx", str(model), str(tmp_path / "model.onnx"), "--sample"]
    assert command_line.main([*arguments, "none.npz"]) == 2
    assert (
        capsys.readouterr().err == "error: there is no file 'none.npz': write it with numpy.savez\n"
    )
    assert command_line.main([*arguments, str(tmp_path / "data.npz")]) == 0
    np.savez(tmp_path / "bad.npz", x[:, :2])
    assert command_line.main([*arguments, str(tmp_path / "bad.npz")]) == 2
    assert "data must have the shape (N, 3, 8, 6)" in capsys.readouterr().err


def test_ctrl_c_is_one_line(model, image, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(deploy.Predictor, "classes", interrupted)
    assert command_line.main(["predict", str(model), image]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.full
def test_ctrl_c_while_mxnet_is_imported_is_one_line(tmp_path):
    (tmp_path / "mxnet.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "gluon_svrg.deploy", "predict", "model", "image.png"]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
