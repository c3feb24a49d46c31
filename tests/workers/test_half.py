"""Float16 between workers: NumPy's sums, the same bits on all, and nothing else in half."""

from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from cluster import run_together
from gluon_svrg.workers.mpi import _mpi_float16
from mxnet import autograd, gluon

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=[2, 3])
def results(request):
    return run_together("workers.half_programs:everything", request.param)


def test_gradients_are_the_sums_of_float16(results):
    for result in results:
        steps = result["steps"]
        assert steps["same weights"]
        assert steps["moved"] > 1e-3
        if len(results) == 2:  # of three, the order decides about the last bit
            assert steps["as numpy"]
        assert steps["roundings"] <= len(results) - 1


def test_what_float16_has_little_room_for(results):
    size = len(results)
    for result in results:
        (none, least, most, rounded), others = result["edges"]
        assert (none, least) == (0, size * 2.0**-24)
        assert most == pytest.approx(size * 16376, rel=2.0**-10)
        assert rounded == size
        assert others == [size * (size - 1) / 2] * 2


def test_a_sum_beyond_the_range_is_told_to_all(results):
    for result in results:
        for said in result["overflows"]:
            assert said == (
                "the sum of the gradients of parameter 'weight' over the workers is not finite: it "
                "exceeds float16's 65504, or was NaN or infinite before; make the trainer "
                "without compression_params={'type': 'fp16'}, or lower the learning rate"
            )


def test_float64_stays(results):
    for result in results:
        assert result["what_is_not_single"][0] == [len(results) * n for n in (1 + 2.0**-40, 1e300)]


def test_other_values_are_refused(results):
    for result in results:
        more, other, text = result["refusals"]
        assert text == "compression_params must be a dict, as {'type': 'fp16'}, or None, got 'fp16'"
        assert more.endswith("'threshold': 0.5}: 'fp16' has no 'threshold'; leave it out")
        assert other.startswith("compression_params={'type': '2bit'} is for one worker")
        assert other.endswith("leave it out, or pass {'type': 'fp16'}, which sends float16")


@pytest.mark.parametrize("wrong", [{"type": "bf16"}, {"typ": "2bit"}, {"threshold": 0.5}])
def test_a_type_that_is_not_known_is_refused_by_one_worker_too(wrong):
    with pytest.raises(ValueError, match="the type must be 'fp16'") as refused:
        gs.SVRGTrainer([gluon.Parameter("weight")], "sgd", compression_params=wrong)
    assert repr(wrong) in str(refused.value)
    assert str(refused.value).endswith(f"got {wrong.get('type')!r}")


def test_workers_that_do_not_agree_about_it(results):
    for result in results:
        assert result["not_the_same"].endswith(
            "the first difference is float32 [3] on worker 0 and float16 [3] on worker 1. All "
            "workers need the same network and the same compression_params"
        )


VERSIONS = {
    "MPICH Version:      4.0.3\nMPICH Release date: ...": False,  # aborts in a sum of its own type
    "MPICH Version:      3.4.3\n": False,
    "MPICH Version:\t4.3.1\n": True,
    "MPICH Version:      10.0\n": True,
    "Open MPI v5.0.11, package: ...": False,
    "Intel(R) MPI Library 2021.18": False,
}


@pytest.mark.parametrize(("version", "has_its_own"), VERSIONS.items())
def test_an_mpi_that_adds_no_float16_has_it_added_by_numpy(version, has_its_own):
    mpi = SimpleNamespace(
        Get_library_version=lambda: version,
        FLOAT16_T="halves",
        UINT16_T="words",
        SUM="its own sum",
        Op=SimpleNamespace(Create=lambda function, commute: function),
    )
    kind, add = _mpi_float16(mpi)
    if has_its_own:
        assert (kind, add) == ("halves", "its own sum")
        return
    assert kind == "words"
    given, total = np.array([[1, 2.0**-24, 6e4], [2048, 2.0**-24, 6e4]], "float16")
    summed = bytearray(total.tobytes())
    add(given.tobytes(), summed, kind)
    assert np.frombuffer(summed, "float16").tolist() == [2048, 2.0**-23, np.inf]


def test_one_process_sends_nothing():
    weights = []
    for compression in (None, {"type": "fp16"}):
        param = gluon.Parameter("weight", shape=(3,))
        param.initialize(mx.init.One())
        trainer = gs.SVRGTrainer(
            [param], "sgd", {"learning_rate": 1 / 3}, compression_params=compression
        )
        for _ in range(2):
            with autograd.record():
                loss = (param.data() * mx.nd.array([1e-9, 1.0001, 1e6])).sum()
            loss.backward()
            trainer.step(7)
        weights.append(param.data().asnumpy().tobytes())
    assert weights[0] == weights[1]
