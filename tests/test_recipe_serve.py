"""recipes/serve.py, asked by real clients over HTTP."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from http_load import connect, load, npy, post
from mxnet import gluon
from mxnet.gluon import nn

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn")

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parent.parent / "recipes" / "serve.py"
JSON = "application/json"


class TwoOfEach(gluon.HybridBlock):
    """Two inputs, two outputs."""

    def hybrid_forward(self, F, x, y):
        return F.broadcast_add(x, y), (x * 2, None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), nn.Activation("relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier(magnitude=6))
    x = np.random.default_rng(0).normal(size=(5, 3, 16, 16)).astype("float32")
    path = tmp_path_factory.mktemp("models") / "model"
    names = ["ant", "bee", "cat"]
    normalization = deploy.Normalization([0.5] * 3, [0.25] * 3)
    return deploy.export(net, path, x, normalization=normalization, class_names=names)


@pytest.fixture(scope="module")
def samples():
    return np.random.default_rng(1).normal(size=(40, 3, 16, 16)).astype("float32")


@contextmanager
def served(model, *options):
    """The process of the service, and its address."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(model), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        try:
            line = process.stdout.readline()
            assert line.startswith("http://"), process.stderr.read()
            yield process, line.split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    assert process.returncode in (0, -signal.SIGTERM)


def ask_once(url, array):
    connection = connect(url)
    try:
        return post(connection, "/predict", npy(array))
    finally:
        connection.close()


@pytest.fixture(scope="module")
def url(model):
    with served(model, "--max-bytes", "100000", "--max-batch", "16", "--top", "2") as (_, url):
        yield url


@pytest.fixture
def connection(url):
    connection = connect(url)
    yield connection
    connection.close()


def test_64_clients_get_the_right_answers(model, samples):
    expected = deploy.Predictor(model, engine="mxnet")(samples)
    with served(model) as (_, url):
        latencies, answers, errors = load(url, samples, clients=64, seconds=4)
    assert errors == []
    assert len(answers) == len(latencies) > 200
    for index, outputs in answers:
        np.testing.assert_allclose(outputs, expected[index], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["mxnet", "onnxruntime"])
def test_each_engine(engine, model, samples):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    with served(model, "--engine", engine) as (_, url):
        connection = connect(url)
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read())
        status, answer = post(connection, "/predict", npy(samples))
        connection.close()
    assert health["status"] == "ok"
    assert health["engine"] == engine
    assert health["class_names"] == ["ant", "bee", "cat"]
    assert status == 200
    expected = deploy.Predictor(model, engine="mxnet")(samples)
    np.testing.assert_allclose(answer["predict"], expected, rtol=1e-4, atol=1e-5)


def test_json_arrays_and_images(connection, model, samples):
    predictor = deploy.Predictor(model, engine="mxnet")
    for given in (samples[0], samples[:2]):
        body = json.dumps({"data": given.tolist()})
        for kind, content in ((JSON, body), ("application/x-npy", npy(given))):
            status, answer = post(connection, "/predict", content, kind)
            assert status == 200
            np.testing.assert_allclose(answer["predict"], predictor(given), rtol=1e-4, atol=1e-5)
            _, answer = post(connection, "/classes", content, kind)
            rows = predictor.classes(given, top=2)
            rows, found = (
                ([rows], [answer["classes"]]) if given.ndim == 3 else (rows, answer["classes"])
            )
            for row, others in zip(rows, found, strict=True):
                assert [c["name"] for c in others] == [c.name for c in row]
                assert [c["probability"] for c in others] == pytest.approx(
                    [c.probability for c in row], rel=1e-4
                )


def test_an_image(connection, model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    status, answer = post(connection, "/classes", file.getvalue(), "image/png")
    assert status == 200
    predictor = deploy.Predictor(model)
    best = predictor.classes(predictor.read_images([pixels])[0], top=2)
    assert [c["name"] for c in answer["classes"]] == [c.name for c in best]


def header(shape):
    """An .npy whose header promises more than there is."""
    file = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + b"1234"


def with_nan():
    array = np.zeros((3, 16, 16), "float32")
    array[1, 2, 3] = np.nan
    return npy(array)


WRONG = {
    "no JSON": (JSON, b"abc", 422, "the body is no JSON"),
    "a list": (JSON, b"[1, 2]", 422, r"must be an object of the inputs \['data'\]"),
    "another name": (JSON, b'{"x": 1}', 422, r"must be an object of the inputs \['data'\]"),
    "text": (JSON, b'{"data": "a"}', 422, "an input is no array of numbers"),
    "unequal lists": (JSON, b'{"data": [[1], [2, 3]]}', 422, "an input is no array of numbers"),
    "deep": (JSON, b'{"data": ' + b"[" * 50_000, 422, "the body is no JSON"),
    "a shape": (
        JSON,
        b'{"data": [1]}',
        422,
        r"\(3, 16, 16\), or \(N, 3, 16, 16\) for N .* \(1,\)",
    ),
    "NaN": ("application/x-npy", with_nan(), 422, r"data has nan in sample 0, at \(1, 2, 3\): rep"),
    "words": ("application/x-npy", npy(np.full((3, 16, 16), "a")), 422, "data is of <U1: send"),
    "no array": ("application/x-npy", b"abc", 422, "the body is no array of numpy.save"),
    "a great shape": ("application/x-npy", header((2**40,)), 422, "is no array of numpy.save"),
    "objects": ("application/x-npy", npy(np.array(["a"])), 422, "data must have the shape"),
    "no samples": (
        "application/x-npy",
        npy(np.zeros((0, 3, 16, 16))),
        422,
        "not 0: send at",
    ),
    "many samples": (
        "application/x-npy",
        npy(np.zeros((17, 3, 16, 16), "u1")),
        413,
        "not 17: send",
    ),
    "no image": ("image/png", b"abc", 422, "^the image cannot be read as an image"),
    "a page": ("text/html", b"abc", 415, "the content type 'text/html' is not read: use"),
    "a great body": (JSON, b" " * 100_001, 413, "the body has more than 100000 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence(name, connection, samples):
    kind, body, code, message = WRONG[name]
    status, answer = post(connection, "/predict", body, kind)
    assert status == code
    assert re.search(message, answer["detail"])
    assert "\n" not in answer["detail"]
    connection.close()
    assert post(connection, "/predict", npy(samples[0]))[0] == 200  # the service goes on


def test_a_great_body_without_its_length(connection):
    parts = (b" " * 10_000 for _ in range(1000))
    status, answer = post(connection, "/predict", parts, JSON)
    assert status == 413
    assert "more than 100000 bytes" in answer["detail"]


def test_other_addresses_and_methods(connection):
    for method, path, code in (("GET", "/predict", 405), ("GET", "/nothing", 404)):
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        assert response.status == code


def test_more_requests_than_may_wait(model, samples):
    with served(model, "--max-waiting", "1", "--max-wait", "1500") as (_, url):
        statuses = []

        def ask():
            statuses.append(ask_once(url, samples[0])[0])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 503}


def test_a_request_that_fails_does_not_take_others_along(tmp_path):
    """Only running it shows that a token is not in the vocabulary; MXNet takes another one."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnx")
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 4), nn.Dense(2))
    net.initialize(mx.init.Normal(1))
    tokens = np.random.default_rng(0).integers(0, 10, (5, 7)).astype("int32")
    model = deploy.export(net, tmp_path / "model", tokens, onnx=True)
    expected = deploy.Predictor(model)(tokens)
    found = {}
    with served(model, "--max-wait", "300") as (_, url):

        def ask(index):
            row = tokens[index] if index < 5 else np.full(7, 10, "int32")
            found[index] = ask_once(url, row)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    status, answer = found.pop(5)
    assert status == 422
    assert "onnxruntime cannot run the model" in answer["detail"]
    for index, (status, answer) in found.items():
        assert status == 200
        np.testing.assert_allclose(answer["predict"], expected[index], rtol=1e-4, atol=1e-5)


def test_several_inputs_and_nested_outputs(tmp_path):
    random = np.random.default_rng(0)
    pair = [random.normal(size=(4, n)).astype("float32") for n in (3, 1)]
    model = deploy.export(TwoOfEach(), tmp_path / "model", pair, input_names=["a", "b"])
    with served(model) as (_, url):
        connection = connect(url)
        for x, y in ([*pair], [pair[0][0], pair[1][0]]):
            body = json.dumps({"b": y.tolist(), "a": x.tolist()})
            status, answer = post(connection, "/predict", body, JSON)
            assert status == 200
            total, (twice, nothing) = answer["predict"]
            np.testing.assert_allclose(total, x + y, rtol=1e-5)
            np.testing.assert_allclose(twice, x * 2, rtol=1e-5)
            assert nothing is None
        status, answer = post(connection, "/predict", npy(pair[0]))
        assert status == 422
        assert "the model has 2 inputs: send JSON" in answer["detail"]
        unequal = json.dumps({"a": pair[0].tolist(), "b": pair[1][:3].tolist()})
        status, answer = post(connection, "/predict", unequal, JSON)
        assert status == 422
        assert "b has 3 samples and a has 4: send the same number" in answer["detail"]
        status, answer = post(connection, "/classes", body, JSON)
        assert status == 422
        assert "which are not classes" in answer["detail"]
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_requests_that_are_there_at_a_signal_are_answered(number, model, samples):
    expected = deploy.Predictor(model)(samples[0])
    with served(model, "--max-wait", "1000") as (process, url):
        timer = threading.Timer(0.3, process.send_signal, [number])
        timer.start()
        status, answer = ask_once(url, samples[0])
        assert status == 200
        np.testing.assert_allclose(answer["predict"], expected, rtol=1e-4, atol=1e-5)
        process.wait(timeout=30)
        with pytest.raises(ConnectionRefusedError):
            ask_once(url, samples[0])


def test_what_keeps_it_from_starting_is_one_sentence(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for arguments, message in (
            ([str(tmp_path)], f"error: model.json is missing in the model directory '{tmp_path}'"),
            ([str(model), "--engine", "x"], "error: engine must be 'auto', 'mxnet' or 'onnxrunti"),
            ([str(model), "--port", port], f"error: cannot listen on 127.0.0.1:{port} ("),
            ([str(model), "--top", "4"], "error: --top is 4, the model has 3 classes: ask for f"),
            ([str(model), "--max-batch", "0"], "serve.py: error: argument --max-batch: must be an"),
        ):
            command = [sys.executable, "-W", "ignore", str(SCRIPT), *arguments]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ended.returncode == 2
            assert ended.stderr.splitlines()[-1].startswith(message)
            assert "Traceback" not in ended.stderr
