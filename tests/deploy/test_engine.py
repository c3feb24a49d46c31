"""Which engine runs a model, and that both answer the same."""

import logging
import os
import pickle
import sys
import threading

import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import engine as engines
from gluon_svrg.deploy.model_dir import read_model
from mxnet import gluon
from mxnet.gluon import nn

try:
    import onnx  # noqa: F401
    import onnxruntime
except ImportError:
    onnxruntime = None

needs_onnx = pytest.mark.skipif(onnxruntime is None, reason="the extra onnx is not installed")


def outputs_of(net, *arrays):
    return net(*(problems.array(x, x.dtype) for x in arrays)).asnumpy()


def chosen(model, **options):
    predictor = deploy.Predictor.load(model, **options)
    return predictor.engine, predictor.engine_reason


@needs_onnx
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("engine", ["auto", "mxnet", "onnxruntime"])
def test_any_number_of_samples(count, engine, model, net):
    x = np.random.default_rng(1).normal(size=(count, 3, 8, 6)).astype("float32")
    predictor = deploy.Predictor.load(model, batch_size=16, engine=engine)
    assert predictor.engine == ("onnxruntime" if engine == "auto" else engine)
    for given in (x, x.astype("float64"), np.asfortranarray(x)):
        np.testing.assert_allclose(predictor(given), outputs_of(net, x), atol=1e-5)
    np.testing.assert_allclose(predictor(x[0]), outputs_of(net, x)[0], atol=1e-5)


@needs_onnx
def test_what_it_says(model):
    predictor = deploy.Predictor(model)
    assert predictor.engine == "onnxruntime"
    assert predictor.backend is None
    assert predictor.engine_reason.startswith("the outputs of onnxruntime are within ")
    assert repr(predictor).endswith("per sample, on cpu(0) by onnxruntime>")
    assert predictor.card["onnx"]["max_abs_difference"] < 1e-5
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(predictor)


@needs_onnx
def test_the_answers_are_those_of_onnxruntime_itself(model, x):
    session = onnxruntime.InferenceSession(
        str(model / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"data": x})
    found = deploy.Predictor(model, engine="onnxruntime")(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


OBSTACLES = {
    "a backend": ({"backend": "MKLDNN"}, "backend='MKLDNN' is a way of MXNet"),
    "no backend": ({"backend": None}, "backend=None is a way of MXNet"),
    "NaN": ({"check_finite": False}, "with check_finite=False NaN may come"),
    "a choice": ({"engine": "mxnet"}, "engine='mxnet' was given"),
}


@needs_onnx
@pytest.mark.parametrize("name", OBSTACLES)
def test_when_mxnet_runs_it(name, model):
    options, reason = OBSTACLES[name]
    engine, found = chosen(model, **options)
    assert engine == "mxnet"
    assert found.startswith(reason)


@needs_onnx
def test_a_backend_and_onnxruntime_exclude_each_other(model):
    with pytest.raises(ValueError, match="engine='onnxruntime' cannot run the model: backend=None"):
        deploy.Predictor(model, backend=None, engine="onnxruntime")
    predictor = deploy.Predictor(model, check_finite=False, engine="onnxruntime")
    assert predictor.engine == "onnxruntime"


@needs_onnx
def test_without_onnxruntime(model, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with caplog.at_level(logging.WARNING):
        assert chosen(model) == ("mxnet", "onnxruntime is not installed")
    assert caplog.text == ""
    with pytest.raises(ImportError, match=r"pip install 'gluon-svrg\[onnx\]'"):
        deploy.Predictor.load(model, engine="onnxruntime")


def test_an_export_without_its_extra(net, x, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = deploy.export(net, tmp_path / "model", x)
    assert not (model / "model.onnx").exists()
    engine, reason = chosen(model)
    assert engine == "mxnet"
    assert reason.startswith("the model has no ONNX file: an ONNX file needs onnx, which ")
    with pytest.raises(ValueError, match="cannot run the model: the model has no ONNX file: an"):
        deploy.Predictor(model, engine="onnxruntime")
    with pytest.raises(ImportError, match=r"pip install 'gluon-svrg\[onnx\]'"):
        deploy.export(net, tmp_path / "other", x, onnx=True)
    assert not (tmp_path / "other").exists()


def test_an_export_that_is_to_have_none(net, x, tmp_path):
    model = deploy.export(net, tmp_path / "model", x, onnx=False)
    assert not (model / "model.onnx").exists()
    reason = "the model has no ONNX file: onnx=False was given to export"
    assert chosen(model) == ("mxnet", reason)


@pytest.mark.parametrize("value", [None, "yes", 2])
def test_other_values_of_the_arguments(value, net, x, tmp_path):
    with pytest.raises(ValueError, match="onnx must be True, False or 'auto', got"):
        deploy.export(net, tmp_path / "model", x, onnx=value)
    model = deploy.export(net, tmp_path / "model", x, onnx=False)
    with pytest.raises(ValueError, match="engine must be 'auto', 'mxnet' or 'onnxruntime', got"):
        deploy.Predictor.load(model, engine=value)


@needs_onnx
def test_a_network_that_cannot_be_translated(tmp_path):
    net, x = nn.HybridLambda("erfinv"), np.full((2, 3), 0.5, "float32")
    engine, reason = chosen(deploy.export(net, tmp_path / "model", x))
    assert engine == "mxnet"
    assert "MXNet 1.9.1 cannot translate the model into ONNX" in reason
    with pytest.raises(ValueError, match="cannot translate the model into ONNX"):
        deploy.export(net, tmp_path / "other", x, onnx=True)


class Tiled(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.tile(x, reps=(1, 2))


@needs_onnx
def test_an_operator_that_is_not_read_from_a_directory(tmp_path):
    x = np.ones((2, 3), "float32")
    engine, reason = chosen(deploy.export(Tiled(), tmp_path / "model", x))
    assert engine == "mxnet"
    assert "its operator b'Tile' is not known to be safe" in reason
    assert deploy.export_onnx(tmp_path / "model", tmp_path / "model.onnx") == 0


@needs_onnx
@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_a_recurrent_network(layer, tmp_path):
    """Its translation has the batch size in it."""
    net = getattr(gluon.rnn, layer)(4, layout="NTC", input_size=3)
    net.initialize(mx.init.Normal(1))
    x = np.random.default_rng(0).normal(size=(5, 7, 3)).astype("float32")
    model = deploy.export(net, tmp_path / "model", x)
    engine, reason = chosen(model)
    assert engine == "mxnet"
    assert reason.startswith("the model has no ONNX file: ")
    np.testing.assert_allclose(deploy.Predictor(model)(x), outputs_of(net, x), atol=1e-5)


@needs_onnx
def test_inputs_in_any_order(backwards, pair, tmp_path):
    model = deploy.export(backwards, tmp_path / "model", pair, input_names=["x", "a"])
    predictor = deploy.Predictor(model)
    assert predictor.engine == "onnxruntime"
    np.testing.assert_allclose(predictor(*pair), outputs_of(backwards, *pair), atol=1e-4)


@needs_onnx
def test_nested_outputs(nested, tmp_path):
    random = np.random.default_rng(0)
    pair = [random.normal(size=(5, n)).astype("float32") for n in (3, 4)]
    model = deploy.export(nested, tmp_path / "model", pair)
    both = [deploy.Predictor(model, engine=name)(*pair) for name in ("mxnet", "auto")]
    (h, (a, none, (b,))), (c, d) = both[1]
    assert none is None
    (h2, (a2, _, (b2,))), (c2, d2) = both[0]
    for one, other in zip((h, a, b, c, d), (h2, a2, b2, c2, d2), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@needs_onnx
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_tokens(dtype, tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Embedding(1000, 8), nn.Dense(2))
    net.initialize(mx.init.Normal(1))
    tokens = np.random.default_rng(1).integers(0, 1000, (5, 7)).astype(dtype)
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", tokens))
    assert predictor.engine == "onnxruntime"
    np.testing.assert_allclose(predictor(tokens), outputs_of(net, tokens), atol=1e-4)
    with pytest.raises(ValueError, match=r"onnxruntime cannot run the model's ONNX file \(.*bound"):
        predictor(np.full_like(tokens, 1000))


@needs_onnx
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(dtype, tmp_path):
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Normal(1))
    net.cast(dtype)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(dtype)
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", x))
    assert predictor(x).dtype == dtype
    np.testing.assert_allclose(predictor(x), outputs_of(net, x), rtol=1e-6)


@needs_onnx
def test_a_model_of_int8(model, x, tmp_path):
    deploy.quantize(model, tmp_path / "int8", x)
    assert chosen(tmp_path / "int8") == ("mxnet", "a model of int8 has no ONNX file")
    assert set(deploy.read_card(tmp_path / "int8")["files"]) == {
        "model-symbol.json",
        "model-0000.params",
    }


@needs_onnx
def test_an_onnx_file_that_does_not_agree(model, net, x, tmp_path, caplog, with_onnx):
    """The ONNX file of one network with the card of another one."""
    with mx.Context(mx.cpu()):
        net[5].weight.set_data(net[5].weight.data() * 2)
    other = read_model(deploy.export(net, tmp_path / "other", x), with_onnx=True)
    mixed = with_onnx(read_model(model), other.onnx)
    with caplog.at_level(logging.WARNING):
        predictor = deploy.Predictor(mixed)
    assert predictor.engine == "mxnet"
    assert "output 0 of the ONNX file differs from MXNet's by" in predictor.engine_reason
    assert predictor.engine_reason in caplog.text
    with pytest.raises(ValueError, match="cannot run the model: output 0 of the ONNX file differs"):
        deploy.Predictor(mixed, engine="onnxruntime")


@needs_onnx
@pytest.mark.parametrize("other", ["nothing", "mxnet", "onnxruntime", "processor", "files", "card"])
def test_the_engines_are_compared_again_where_they_may_differ(other, model, monkeypatch):
    """On the machine that exported the model, by the same versions, they would not."""
    read = read_model(model, with_onnx=True)
    about = read.card["onnx"]
    if other == "files":
        about["compared"]["files"] = "0" * 64
    elif other == "card":  # of version 0.8.0
        del about["compared"]
    elif other != "nothing":
        about["compared"][other] += " of another machine"
    compared = []
    run = engines.MXNetEngine.__call__
    monkeypatch.setattr(
        engines.MXNetEngine, "__call__", lambda *given: compared.append(1) or run(*given)
    )
    predictor = deploy.Predictor(read)
    assert predictor.engine == "onnxruntime"
    assert predictor.engine_reason.startswith("the outputs of onnxruntime are within ")
    assert len(compared) == (other != "nothing")


@needs_onnx
@pytest.mark.parametrize("change", ["missing", "shorter", "changed"])
def test_a_damaged_onnx_file(change, model, x):
    path = model / "model.onnx"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    if change != "missing":
        path.write_bytes(content if change == "changed" else content[:-1])
    message = "is missing" if change == "missing" else "is not as it was written"
    for engine in ("auto", "onnxruntime"):
        with pytest.raises(ValueError, match=message):
            deploy.Predictor.load(model, engine=engine)
    assert deploy.Predictor.load(model, engine="mxnet")(x).shape == (5, 3)


@needs_onnx
def test_a_file_for_batches_of_one_is_told_by_its_outputs(model, x, tmp_path):
    deploy.export_onnx(model, tmp_path / "one.onnx", dynamic=False)
    fixed = read_model(model)._replace(onnx=(tmp_path / "one.onnx").read_bytes())
    predictor = deploy.Predictor(fixed, engine="onnxruntime")
    assert predictor(x[:1]).shape == (1, 3)
    with pytest.raises(ValueError, match=r"onnxruntime cannot run .* invalid dimensions"):
        predictor(x)


@needs_onnx
def test_a_second_export_replaces_a_model_with_an_onnx_file(model, net, x):
    with pytest.raises(FileExistsError, match="exists already"):
        deploy.export(net, model, x)
    deploy.export(net, model, x, onnx=False, overwrite=True)
    assert not (model / "model.onnx").exists()
    deploy.export(net, model, x, onnx=True, overwrite=True)
    assert deploy.Predictor(model).engine == "onnxruntime"


@needs_onnx
def test_an_onnx_file_of_a_predictor_by_onnxruntime_is_compared_with_mxnet(
    model, tmp_path, monkeypatch
):
    predictor = deploy.Predictor(model, engine="onnxruntime")
    monkeypatch.setattr(engines.OnnxEngine, "__call__", None)  # it is not asked
    assert deploy.export_onnx(predictor, tmp_path / "model.onnx") < 1e-5


@needs_onnx
def test_threads_at_the_same_time(model, net):
    predictor = deploy.Predictor(model, engine="onnxruntime")
    found = {}

    def ask(seed):
        x = np.random.default_rng(seed).normal(size=(1 + seed % 5, 3, 8, 6)).astype("float32")
        found[seed] = x, [predictor(x) for _ in range(10)]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for x, results in found.values():
        for result in results:
            np.testing.assert_allclose(result, outputs_of(net, x), atol=1e-5)


@needs_onnx
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_fork(threads, model, x, monkeypatch):
    """The threads of a session are not there in the child; it opens one of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    predictor = deploy.Predictor(model, engine="onnxruntime")
    expected = predictor(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(predictor(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(predictor(x), expected)
