"""What a Predictor answers, and what it refuses."""

import json
import logging
import os
import pickle
import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import deploy
from mxnet import autograd, gluon
from mxnet.gluon import nn

FILES = ["model.json", "model-symbol.json", "model-0000.params"]


def outputs_of(net, x):
    return net(problems.array(x, x.dtype)).asnumpy()


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 40])
@pytest.mark.parametrize("backend", ["auto", None, "MKLDNN"])
def test_any_number_of_samples(count, backend, model, net):
    x = np.random.default_rng(1).normal(size=(count, 3, 8, 6)).astype("float32")
    predictor = deploy.Predictor.load(model, backend=backend, batch_size=16, engine="mxnet")
    assert predictor.backend == (None if backend is None else "MKLDNN")
    for _ in range(2):
        np.testing.assert_allclose(predictor(x), outputs_of(net, x), atol=1e-5)


@pytest.mark.usefixtures("mode")
def test_results_are_not_overwritten_by_the_next_call(model, net, x):
    predictor = deploy.Predictor.load(model)
    first, _ = predictor(x), predictor(x * 2)
    np.testing.assert_allclose(first, outputs_of(net, x), atol=1e-5)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    "given",
    [
        lambda x: x,
        lambda x: mx.nd.array(x),
        lambda x: x.astype("float64"),
        lambda x: np.asfortranarray(x),
        lambda x: mx.nd.array(x, ctx=mx.cpu(1)),
    ],
)
def test_arrays_of_every_kind_one_or_many(given, model, net, x):
    predictor = deploy.Predictor.load(model)
    expected = outputs_of(net, x)
    np.testing.assert_allclose(predictor.predict(given(x)), expected, atol=1e-5)
    one = predictor(given(x)[0])
    assert one.shape == (3,)
    np.testing.assert_allclose(one, expected[0], atol=1e-5)
    assert isinstance(one, np.ndarray)


def test_the_callers_array_stays_as_it_is(model, x):
    before = x.copy()
    deploy.Predictor.load(model)(x)
    x += 0  # still writable
    np.testing.assert_array_equal(x, before)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("context", [mx.cpu(0), mx.cpu(1)], ids=str)
def test_contexts(context, model, net, x):
    predictor = deploy.Predictor.load(model, ctx=context)
    np.testing.assert_allclose(predictor(x), outputs_of(net, x), atol=1e-5)


def test_nested_outputs_and_several_inputs(nested, tmp_path):
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(5, n)).astype("float32") for n in (3, 4))
    path = deploy.export(nested, tmp_path / "model", (x, mx.nd.array(y)), input_names=["a", "b"])
    predictor = deploy.Predictor.load(path, batch_size=4)
    expected = nested(mx.nd.array(x), mx.nd.array(y))

    def check(one, other, row):
        assert type(one) is type(other) or isinstance(one, np.ndarray)
        if one is None or isinstance(one, np.ndarray):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other.asnumpy()[row], atol=1e-5)
            return
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            check(a, b, row)

    check(predictor(x, y), expected, slice(None))
    check(predictor(x[1], y[1]), expected, 1)
    with pytest.raises(TypeError, match=r"takes 2 inputs \(a, b\), got 1: give one array for each"):
        predictor(x)
    for given in [(x, y[:2]), (x, y[0])]:
        with pytest.raises(ValueError, match="all inputs need the same batch axis"):
            predictor(*given)
    with pytest.raises(ValueError, match="which are not classes: use predict"):
        predictor.classes(x, y)


def test_integers_go_to_integers(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 4), nn.Dense(2, in_units=12))
    net.initialize()
    tokens = np.array([[1, 2, 3], [7, 8, 9]], "int32")
    predictor = deploy.Predictor.load(deploy.export(net, tmp_path / "model", tokens))
    np.testing.assert_allclose(
        predictor(tokens.astype("int64")), outputs_of(net, tokens), atol=1e-6
    )
    with pytest.raises(TypeError, match="data must be int32, got float32"):
        predictor(tokens.astype("float32"))
    assert predictor.card["precision"] == "float32"
    with pytest.raises(ValueError, match="data has numbers from 2 to 4294967297, int32 holds -21"):
        predictor(np.array([[2, 3, 2**32 + 1]]))


@pytest.mark.parametrize("from_logits", [True, False])
def test_classes(from_logits, tmp_path, net, x):
    if not from_logits:
        net.add(nn.HybridLambda("softmax"))
    names = ["ant", "bee", "cat"]
    path = deploy.export(net, tmp_path / "m", x, class_names=names, from_logits=from_logits)
    predictor = deploy.Predictor.load(path)
    output = mx.nd.array(outputs_of(net, x))
    probabilities = (output.softmax() if from_logits else output).asnumpy()
    found = predictor.classes(x, top=3)
    for row, predictions in zip(probabilities, found, strict=True):
        order = np.argsort(-row)
        assert [p.name for p in predictions] == [names[i] for i in order]
        np.testing.assert_allclose([p.probability for p in predictions], row[order], rtol=1e-4)
    (best,) = predictor.classes(x[0])
    assert best.name == found[0][0].name
    assert best.probability == pytest.approx(found[0][0].probability, rel=1e-4)


def test_classes_without_names_are_their_indices(net, x, tmp_path):
    predictor = deploy.Predictor.load(deploy.export(net, tmp_path / "model", x))
    expected = [str(i) for i in outputs_of(net, x).argmax(axis=1)]
    assert [predictions[0].name for predictions in predictor.classes(x)] == expected


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros((2, 3, 8, 7), "f"), ValueError, r"shape \(N, 3, 8, 6\) or \(3, 8, 6\), got"),
        (np.zeros((8, 6), "f"), ValueError, r"data must have the shape"),
        (np.zeros((0, 3, 8, 6), "f"), ValueError, "data has no sample"),
        (np.zeros((3, 8, 6), "uint8"), TypeError, "data must be float32, got uint8: convert it as"),
        (np.zeros((3, 8, 6), "complex64"), TypeError, "data must be float32, got complex64"),
        (np.full((3, 8, 6), "a"), TypeError, "data must be float32, got <U1"),
        ([[1.5]], TypeError, r"got a list: make one .* by numpy.asarray\(data, dtype='float32'\)"),
        ("cat.png", TypeError, "got a str: give images and image files to predict_images"),
    ],
)
def test_wrong_inputs(given, error, message, model):
    with pytest.raises(error, match=message):
        deploy.Predictor.load(model)(given)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ctx": mx.gpu(0)}, ValueError, r"ctx is gpu\(0\), MXNet sees 0 GPUs here: give mx.cpu"),
        ({"ctx": "cpu"}, TypeError, "ctx must be a Context, got 'cpu'"),
        ({"batch_size": 0}, ValueError, "batch_size must be a positive integer, got 0"),
        ({"backend": 3}, TypeError, "backend must be 'auto', a backend's name or None, got 3"),
        ({"backend": "nothing"}, ValueError, "backend 'nothing' changes nothing in the graph"),
    ],
)
def test_wrong_options(options, error, message, model):
    if "ctx" in options and mx.context.num_gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(error, match=message):
        deploy.Predictor.load(model, **options)


def test_no_directory(net, x):
    for call in (deploy.Predictor.load, deploy.read_card, lambda path: deploy.export(net, path, x)):
        with pytest.raises(TypeError, match=r"directory must be the path of a .*got None: give a"):
            call(None)


@pytest.mark.parametrize(
    ("top", "error", "message"),
    [
        (0, ValueError, "top must be a positive integer, got 0"),
        ("1", TypeError, "top must be a positive integer, got '1'"),
        (4, ValueError, "top is 4, the model has 3 classes: ask for fewer"),
    ],
)
def test_wrong_top(top, error, message, model, x):
    with pytest.raises(error, match=message):
        deploy.Predictor.load(model).classes(x, top=top)


class TestDamage:
    def test_no_directory(self, tmp_path):
        with pytest.raises(ValueError, match=r"there is no model directory '.*nowhere': give what"):
            deploy.Predictor.load(tmp_path / "nowhere")

    @pytest.mark.parametrize("name", FILES)
    def test_a_missing_file(self, name, model):
        (model / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing in the model directory"):
            deploy.Predictor.load(model)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("part", [0, 0.3, 0.999])
    def test_a_cut_file(self, name, part, model):
        content = (model / name).read_bytes()
        (model / name).write_bytes(content[: int(part * len(content))])
        with pytest.raises(ValueError, match=f"{name}' is not as it was written"):
            deploy.Predictor.load(model)

    @pytest.mark.parametrize("name", FILES)
    def test_a_flipped_bit_anywhere(self, name, model):
        content = (model / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            changed = bytearray(content)
            changed[place] ^= 1
            (model / name).write_bytes(changed)
            # A digit of the format may become that of a later one.
            message = f"{name}' is not as it was written|has the format"
            with pytest.raises(ValueError, match=message):
                deploy.Predictor.load(model)

    @pytest.mark.parametrize("content", ["[]", "{}", "3", '{"format": 1}', '{"format": null}'])
    def test_another_card(self, content, model):
        (model / "model.json").write_text(content)
        with pytest.raises(ValueError, match="is not as it was written"):
            deploy.Predictor.load(model)

    def test_a_later_format(self, model):
        card = json.loads((model / "model.json").read_text())
        (model / "model.json").write_text(json.dumps({**card, "format": 3}))
        with pytest.raises(ValueError, match="has the format 3, this version reads"):
            deploy.Predictor.load(model)


def test_it_falls_back_where_the_backend_fails(model, net, x, monkeypatch, caplog):
    def fail(self, backend):
        raise mx.MXNetError("Stack trace\nit does not work")

    monkeypatch.setattr(mx.sym.Symbol, "optimize_for", fail)
    with caplog.at_level(logging.WARNING):
        predictor = deploy.Predictor.load(model, engine="mxnet")
    assert "MKLDNN fusion failed, using the unfused graph: it does not work" in caplog.text
    assert predictor.backend is None
    np.testing.assert_allclose(predictor(x), outputs_of(net, x), atol=1e-5)


def test_it_falls_back_where_the_backend_computes_something_else(model, monkeypatch, caplog):
    monkeypatch.setattr(mx.sym.Symbol, "optimize_for", lambda self, backend: self + 1)
    with caplog.at_level(logging.WARNING):
        assert deploy.Predictor.load(model, engine="mxnet").backend is None
    assert "the outputs of the one fused by MKLDNN differ by" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
def test_several_threads(model, net):
    predictor = deploy.Predictor.load(model)
    wrong = []

    def ask(seed):
        x = np.random.default_rng(seed).normal(size=(1 + seed % 5, 3, 8, 6)).astype("float32")
        expected[seed] = x, [predictor(x) for _ in range(20)]

    expected = {}
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, results in expected.values():
        wrong += [r for r in results if not np.allclose(r, outputs_of(net, x), atol=1e-5)]
    assert len(expected) == 6
    assert not wrong


@pytest.mark.usefixtures("mode")
def test_inside_a_recording_it_still_predicts(model, net, x):
    predictor = deploy.Predictor.load(model)
    with autograd.record():
        result = predictor(x)
        assert autograd.is_training()
    np.testing.assert_allclose(result, outputs_of(net, x), atol=1e-5)


CHILD = """
import sys
sys.modules["gluoncv"] = None
sys.modules["pickle5"] = None
import pickle
import numpy as np
from gluon_svrg import deploy

def refuse(*args, **kwargs):
    raise AssertionError("a pickle was read")

pickle.load = pickle.loads = pickle.Unpickler = refuse
directory, source, target = sys.argv[1:]
predictor = deploy.Predictor.load(directory)
np.save(target, predictor(np.load(source)))
assert not [name for name in sys.modules if name.startswith("gluoncv.")]
"""


@pytest.mark.full
def test_a_fresh_process_without_gluoncv(tmp_path):
    from gluoncv.model_zoo import get_model

    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize(mx.init.Xavier())
    x = np.random.default_rng(0).normal(size=(8, 3, 32, 32)).astype("float32")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(2):  # running means that are not their start
        with autograd.record():
            loss = (net(mx.nd.array(x)) ** 2).sum()
        loss.backward()
        trainer.step(len(x))
    path = deploy.export(net, tmp_path / "model", x)
    np.save(tmp_path / "x.npy", x)
    subprocess.run(
        [sys.executable, "-c", CHILD, path, tmp_path / "x.npy", tmp_path / "y.npy"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
    )
    result, expected = np.load(tmp_path / "y.npy"), outputs_of(net, x)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    np.testing.assert_array_equal(result.argmax(axis=1), expected.argmax(axis=1))
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    difference = deploy.export_onnx(path, tmp_path / "model.onnx")
    assert difference <= 1e-4 * max(1, np.abs(expected).max())


def test_a_predictor_of_a_directory_is_a_loaded_one(model, x):
    expected = deploy.Predictor.load(model)(x)
    for directory in (model, str(model)):
        assert np.array_equal(deploy.Predictor(directory)(x), expected)
    with pytest.raises(ValueError, match="there is no model directory 'nothing': give what"):
        deploy.Predictor("nothing")
    with pytest.raises(TypeError, match="directory must be the path of a model directory, got 3"):
        deploy.Predictor(3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_an_error(value, model, x):
    """MXNet's ReLU drops NaN, and the outputs look like those of a sample."""
    predictor = deploy.Predictor(model)
    x[3, 2, 1, 5] = value
    with pytest.raises(ValueError, match=rf"data has {value} at \(3, 2, 1, 5\): replace such"):
        predictor.classes(x)
    with pytest.raises(ValueError, match=rf"data has {value} at \(2, 1, 5\)"):
        predictor(x[3])
    assert deploy.Predictor(model, check_finite=False)(x).shape == (5, 3)


def test_a_finite_number_whose_square_overflows_is_not_an_error(model, x):
    x[0, 0, 0, 1] = 1e30
    assert deploy.Predictor(model)(x).shape == (5, 3)


def test_a_number_that_the_model_cannot_hold_is_an_error(model, x):
    wide = x.astype("float64")
    wide[0, 0, 0, 1] = 1e300
    with pytest.raises(ValueError, match=r"data has 1e\+300 at \(0, 0, 0, 1\), which float32 can"):
        deploy.Predictor(model)(wide)


def test_what_it_shows_and_why_it_cannot_be_pickled(model):
    predictor = deploy.Predictor(model, engine="mxnet")
    assert repr(predictor) == (
        "<Predictor of data float32 (3, 8, 6) -> (3,) per sample, on cpu(0) by mxnet>"
    )
    with pytest.raises(TypeError, match=r"cannot be pickled.*load the model directory in each"):
        pickle.dumps(predictor)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_predicts(model, x):
    predictor = deploy.Predictor(model, engine="mxnet")
    expected = predictor(x)
    predictor._engine._lock.acquire()  # as the thread would have it
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(predictor(x), expected) else 1)
    predictor._engine._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
