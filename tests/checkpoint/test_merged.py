"""The states of several workers after a resume with another number of workers."""

import types

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.replicas import mean_replicas
from gluon_svrg.batch.backward import to_plain
from gluon_svrg.batch.processor_state import BatchProcessorStateHandler
from gluon_svrg.checkpoint.handler_states import merge_handlers
from gluon_svrg.checkpoint.network_state import merge_network
from gluon_svrg.events import Stateful


class Summed(Stateful):
    state_key = "summed"

    def merged(self, states, is_first):
        return {"sum": sum(s["own"] for s in states) if is_first else 0, "of": len(states)}


class Plain(Stateful):
    state_key = "plain"


class Refuses(Stateful):
    state_key = "refuses"

    def merged(self, states, is_first):
        raise ValueError("not these")


def state_of(rank):
    return {
        "summed": [["Summed", {"own": 2**rank}], ["Summed", {"own": 10 * rank}]],
        "plain": [["Plain", {"own": rank}]],
        "gone": [["Gone", {"own": rank}]],
        "mxnet.StoppingHandler": [["StoppingHandler", {"current_batch": 3}]],
    }


def run_of(*handlers, is_first=True):
    workers = types.SimpleNamespace(is_first=is_first)
    return types.SimpleNamespace(handlers=handlers, workers=workers)


def test_each_handler_merges_its_own():
    handlers = [Summed(), Plain(), Summed()]
    before = [state_of(rank) for rank in range(3)]
    merged = merge_handlers(run_of(*handlers), before)
    assert merged["summed"] == [["Summed", {"sum": 7, "of": 3}], ["Summed", {"sum": 30, "of": 3}]]
    for key in ("plain", "gone", "mxnet.StoppingHandler"):
        assert merged[key] == before[0][key]
    other = merge_handlers(run_of(*handlers, is_first=False), before)
    assert other["summed"][0] == ["Summed", {"sum": 0, "of": 3}]
    assert before == [state_of(rank) for rank in range(3)]
    with pytest.raises(ValueError, match="not these"):
        merge_handlers(run_of(Refuses()), [{"refuses": [["Refuses", {}]]}])


def network_state(means, replicas):
    weights = {"0.weight": mx.nd.array([[0.1, 0.2]]), "1.mean": mx.nd.array(means)}
    return {"weights": weights, "contexts": 2, "replicas": replicas, "outside": [[np.ones(1)]]}


def test_running_statistics_are_averaged():
    """Each worker counts alike, with as many copies as it has contexts."""
    states = [
        network_state([1.0], {}),
        network_state([2.0], {"1.mean": [np.float32([2]), np.float32([4])]}),
        network_state([5.0], {}),
    ]
    merged = merge_network(None, states)
    assert merged["weights"]["1.mean"].asnumpy().tolist() == [3.0]
    assert merged["weights"]["0.weight"] is states[0]["weights"]["0.weight"]
    assert (merged["replicas"], merged["contexts"]) == ({}, 2)
    assert states[0]["weights"]["1.mean"].asnumpy().tolist() == [1.0]


def test_what_is_equal_keeps_its_bits():
    copies = [np.float32([0.1]), np.float32([0.3])]
    states = [network_state([0.1], {"1.mean": copies}) for _ in range(3)]
    merged = merge_network(None, states)
    assert merged["replicas"] == {"1.mean": copies}
    assert mean_replicas([[np.float32([0.1])]] * 3)[0].tobytes() == np.float32([0.1]).tobytes()
    whole = mean_replicas([[np.int32([3])], [np.int32([4])]])
    assert whole[0].dtype == np.int32
    nan = [np.float32([np.nan])]
    assert mean_replicas([nan, nan]) is nan


@pytest.mark.parametrize("number", [1, 2])
def test_a_carried_state_cannot_be_cut_otherwise(number):
    handler = BatchProcessorStateHandler()
    carried = to_plain({"hidden": [mx.nd.ones((2, 3))], "count": 4})
    with pytest.raises(ValueError, match="resume with as many"):
        handler.merged([carried] * number, is_first=True)
    arrays = to_plain({"hidden": np.ones((2, 3))})
    with pytest.raises(ValueError, match="resume with as many"):
        handler.merged([arrays] * number, is_first=True)
    nothing = to_plain(None)
    assert handler.merged([nothing] * number, is_first=False) is nothing
    counts = to_plain({"count": 4})
    assert handler.merged([counts] * number, is_first=False) is counts


def test_waiting_gradients_go_to_the_first():
    states = [
        {"batches": 1, "samples": 4, "gradients": {"0.weight": [np.float64([rank, 1])] * contexts}}
        for rank, contexts in ((1, 1), (2, 2))
    ]
    handler = gs.GradientUpdateHandler(accumulate=2)
    first, other = (handler.merged(states, is_first) for is_first in (True, False))
    assert [g.tolist() for g in first["gradients"]["0.weight"]] == [[5, 3]]
    assert [g.tolist() for g in other["gradients"]["0.weight"]] == [[0, 0]]
    assert first["batches"] == other["batches"] == 1
