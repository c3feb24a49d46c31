"""recipes/serve.py, asked by real clients over HTTP."""

import hashlib
import io
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
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

pytestmark = [pytest.mark.full, pytest.mark.long]

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
def served(model, *options, descriptors=1024):
    """The process of the service, and its address. The number of its open files is limited."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(model), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard)),
    ) as process:  # fmt: skip
        try:
            line = process.stdout.readline()
            assert line.startswith("http://"), process.stderr.read()
            yield process, line.split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    assert errors == ""  # no line for what a client does
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
    card = json.loads((model / "model.json").read_text())
    assert health["model"]["date"] == card["date"]
    assert health["model"]["versions"] == card["versions"]
    files = json.dumps(card["files"], sort_keys=True).encode()
    assert health["model"]["sha256"] == hashlib.sha256(files).hexdigest()
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
    assert post(connection, "/predict", npy(samples[0]))[0] == 200  # the service continues


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


# --- Slow clients, and those that leave ---------------------------------------------------------

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model whose answer to one request is larger than what a system keeps for a reader."""
    net = nn.Dense(5000, in_units=2)
    net.initialize()
    path = tmp_path_factory.mktemp("models") / "wide"
    return deploy.export(net, path, np.ones((2, 2), "float32"))


def of_many():
    body = npy(np.ones((64, 2), "float32"))
    kind = b"Content-Type: application/x-npy\r\nContent-Length: %d\r\n\r\n" % len(body)
    return HEAD + kind + body


# What a slow client sends, and whether it is answered before it is given up.
SLOW = {
    "nothing": (b"", None),
    "half a header": (HEAD, None),
    "half a body": (HEAD + b"Content-Length: 9\r\n\r\n{", 408),
    "half a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", 408),
    "a body that is not read": (
        HEALTH.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n{"),
        200,
    ),
    "nothing more": (HEALTH, 200),
    "half a second header": (HEALTH + HEAD, 200),
    "no reading": (of_many(), None),
    "no reading of several": (of_many() * 3, None),
}


def slow_client(url, name):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(20)
    address, _, port = url.removeprefix("http://").partition(":")
    client.connect((address, int(port)))
    client.sendall(SLOW[name][0])
    return client


def files_of(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def until_stable(process):
    """The number of its files when the connections of a moment ago are closed."""
    before = None
    while (now := files_of(process)) != before:
        before = now
        time.sleep(0.2)
    return now


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_client_is_given_up(name, wide):
    with served(wide, "--timeout", "1") as (process, url):
        assert ask_once(url, np.ones(2, "float32"))[0] == 200
        before = until_stable(process)
        begin = time.monotonic()
        with slow_client(url, name) as client:
            while time.monotonic() - begin < 0.7:  # it is not given up before its time
                time.sleep(0.05)
            assert files_of(process) == before + 1
            end = time.monotonic() + 20
            while files_of(process) > before:
                assert time.monotonic() < end, "the connection is still there"
                time.sleep(0.05)
            if not name.startswith("no reading"):
                answer = b""
                try:
                    while more := client.recv(65536):
                        answer += more
                except ConnectionResetError:
                    pass
                wanted = SLOW[name][1]
                assert answer[9:12].decode() == ("" if wanted is None else str(wanted))
        assert ask_once(url, np.ones(2, "float32"))[0] == 200


def test_a_client_that_sends_slowly_but_in_time(model, samples):
    expected = deploy.Predictor(model)(samples[0])
    body = npy(samples[0])
    head = HEAD + b"Content-Type: application/x-npy\r\nContent-Length: %d\r\n" % len(body)
    with served(model, "--timeout", "2") as (_, url):
        address, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((address, int(port)), timeout=20) as client:
            for part in (head, b"Connection: close\r\n\r\n", body[:500], body[500:]):
                time.sleep(0.6)
                client.sendall(part)
            answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["predict"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SLOW if not name.startswith("no reading")])
def test_more_slow_clients_than_files_block_no_other_client(name, model, samples):
    expected = deploy.Predictor(model, engine="mxnet")(samples)
    with served(model, descriptors=256) as (process, url):
        held = [slow_client(url, name) for _ in range(300)]
        latencies, answers, errors = load(url, samples, clients=16, seconds=1)
        assert files_of(process) < 200
        for client in held:
            client.close()
    assert errors == []
    assert len(answers) >= 16
    assert max(latencies) < 5
    for index, outputs in answers:
        np.testing.assert_allclose(outputs, expected[index], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SLOW)
def test_clients_that_leave_cost_no_line(name, wide):
    with served(wide) as (process, url):
        assert ask_once(url, np.ones(2, "float32"))[0] == 200
        before = until_stable(process)
        for _ in range(10):
            slow_client(url, name).close()
        assert ask_once(url, np.ones(2, "float32"))[0] == 200
        end = time.monotonic() + 20
        while files_of(process) > before:
            assert time.monotonic() < end, "a connection is still there"
            time.sleep(0.05)


# --- What takes long to read or to write --------------------------------------------------------


def png(width, height):
    """A large image of few bytes."""

    def part(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    packed = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    rows = b"".join(packed.compress(row) for _ in range(height)) + packed.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part(*one) for one in parts)


def numbers(text):
    return b'{"data": [' + (text + b",") * (2**24 // (len(text) + 1) - 20) + text + b"]}"


LONG = {
    "pixels": (
        "image/png",
        lambda: png(1100, 1100),
        413,
        "has 1210000 pixels, the model takes 16 x",
    ),
    "many pixels": (
        "image/png",
        lambda: png(9400, 9400),
        413,
        "pixels, the model takes 16 x 16 and",
    ),
    "as many pixels as are read": ("image/png", lambda: png(1024, 1024), 200, ""),
    "scans": ("image/jpeg", lambda: jpeg() + b"\xff\xda" * 200, 413, "scans: save it as a plain"),
    "integers": (JSON, lambda: numbers(b"1"), 422, "data must have the shape"),
    "floats": (JSON, lambda: numbers(b"0.123456"), 422, "data must have the shape"),
    "lists": (JSON, lambda: numbers(b"[]"), 413, "lists, a batch has up to .*: send fewer samples"),
    "dicts": (JSON, lambda: numbers(b"{}"), 413, "lists, a batch has up to .*: send fewer samples"),
    "rows": (JSON, lambda: numbers(b"[" + b"0.5," * 999 + b"1]"), 422, "must have the shape"),
    "a batch": (
        "application/x-npy",
        lambda: npy(np.zeros((64, 3, 16, 16))),
        200,
        "",
    ),
}


def jpeg():
    file = io.BytesIO()
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("name", LONG)
def test_a_long_request_blocks_no_other_request(name, model):
    pytest.importorskip("PIL.Image")
    kind, make, code, message = LONG[name]
    body, found, waits = make(), [], []
    with served(model, "--max-bytes", str(2**24)) as (_, url):

        def ask():
            connection = connect(url)
            found.append(post(connection, "/predict", body, kind))
            connection.close()

        thread = threading.Thread(target=ask)
        connection = connect(url)
        connection.request("GET", "/health")  # the first one takes longer
        connection.getresponse().read()
        thread.start()
        first = time.monotonic()
        while thread.is_alive() or not waits:
            begin = time.monotonic()
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            waits.append(time.monotonic() - begin)
            time.sleep(0.01)
        took = time.monotonic() - first
        thread.join()
        connection.close()
    ((status, answer),) = found
    assert status == code, answer
    assert re.search(message, answer.get("detail", ""))
    assert max(waits) < max(1, took / 2)  # on a busy machine all takes longer


def test_a_large_answer_blocks_no_other_request(wide):
    with served(wide) as (_, url):
        expected = deploy.Predictor(wide)(np.ones((64, 2), "float32"))
        found, waits = [], []

        def ask():
            found.append(ask_once(url, np.ones((64, 2), "float32")))

        thread = threading.Thread(target=ask)
        connection = connect(url)
        connection.request("GET", "/health")  # the first one takes longer
        connection.getresponse().read()
        thread.start()
        first = time.monotonic()
        while thread.is_alive() or not waits:
            begin = time.monotonic()
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            waits.append(time.monotonic() - begin)
            time.sleep(0.01)
        took = time.monotonic() - first
        thread.join()
        connection.close()
    ((status, answer),) = found
    assert status == 200
    np.testing.assert_allclose(answer["predict"], expected, rtol=1e-4, atol=1e-5)
    assert max(waits) < max(1, took / 2)  # on a busy machine all takes longer


@pytest.mark.parametrize("shape", [(3, 16, 16), (40, 3, 16, 16)])
def test_a_large_body_of_json_is_read_right(shape, model):
    array = np.random.default_rng(5).normal(size=shape).astype("float32")
    text = json.dumps({"data": array.tolist()}, indent=8 if len(shape) == 3 else None)
    text = text + " " * 70_000  # above what is read at once
    with served(model) as (_, url):
        connection = connect(url)
        status, answer = post(connection, "/predict", text, JSON)
        connection.close()
    assert status == 200
    expected = deploy.Predictor(model)(array)
    np.testing.assert_allclose(answer["predict"], expected, rtol=1e-4, atol=1e-5)


# --- What is no number --------------------------------------------------------------------------


class NotFinite(gluon.HybridBlock):
    """Finite for small inputs: beside a dense layer an overflow, its difference, and integers."""

    def hybrid_forward(self, F, x):
        product = x * x
        return product, (product - product, F.cast(x * 0 + 1, "int32"))


@pytest.mark.parametrize("count", [None, 1, 3])
@pytest.mark.parametrize("value", [3e38, -3e38, 1e30])
def test_outputs_that_are_not_finite_are_refused(value, count, tmp_path):
    net = NotFinite()
    model = deploy.export(net, tmp_path / "model", np.ones((2, 4), "float32"))
    bad = np.zeros((count or 1, 4), "float32")
    bad[-1, 2] = value
    bad, good = (bad if count else bad[0]), np.full(4, 2, "float32")
    found = {}
    with served(model, "--max-wait", "300") as (_, url):

        def ask(name, array):
            found[name] = ask_once(url, array)

        threads = [
            threading.Thread(target=ask, args=pair)
            for pair in (("first", good), ("bad", bad), ("last", good))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        body = json.dumps({"data": bad.tolist()})
        connection = connect(url)
        assert post(connection, "/predict", body, JSON)[0] == 422
        connection.close()
    status, answer = found["bad"]
    assert status == 422
    assert re.search("NaN or infinite .*: the input is perhaps .*; scale it", answer["detail"])
    for name in ("first", "last"):  # those of the same batch
        status, answer = found[name]
        assert status == 200
        assert answer["predict"] == [[4.0] * 4, [[0.0] * 4, [1] * 4]]


@pytest.mark.parametrize("count", [None, 3])
def test_probabilities_that_are_not_finite_are_refused(connection, count):
    bad = np.full((3, 16, 16), 3e38, "float32")
    bad[1] = -3e38
    bad = bad if count is None else np.stack([np.zeros_like(bad)] * 2 + [bad])
    for path in ("/predict", "/classes"):
        status, answer = post(connection, path, npy(bad))
        assert status == 422
        assert "NaN or infinite numbers" in answer["detail"]


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
