"""What differs from the first worker's state is found, and nothing else is written."""

import copy
import json

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.encoding import decode, encode, from_bytes, to_bytes
from gluon_svrg.checkpoint.worker_files import (
    apply_diff,
    apply_worker_file,
    exchange_states,
    gather_worker_files,
    is_empty_diff,
    tree_diff,
    tree_digests,
)
from gluon_svrg.workers import Reduction, SingleProcess
from mxnet.ndarray import NDArray
from thread_workers import on_threads


def state():
    """A state of all kinds of data."""
    return {
        "weights": {"0.weight": mx.nd.array([[1.5, 2], [3, 4]]), "1.mean": np.arange(3.0)},
        "replicas": {},
        "rows": [{"epoch": 0, "loss": 0.1}, {"epoch": 1, "loss": float("nan")}],
        "waiting": [[np.ones((2, 2), "float16")], []],
        "generator": ("MT19937", np.arange(5, dtype="uint32"), 3, None),
        "by number": {0: np.float32(1), 7: np.zeros((), "int64")},
        "none": None,
        "set": {1, 2},
    }


def is_same(ours, theirs):
    if isinstance(ours, NDArray):
        return isinstance(theirs, NDArray) and is_same(ours.asnumpy(), theirs.asnumpy())
    if isinstance(ours, np.ndarray | np.generic):
        same = type(ours) is type(theirs) and ours.dtype == theirs.dtype
        return same and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(is_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(is_same, ours, theirs))
    return ours == theirs or (ours != ours and theirs != theirs)


def with_(**changed):
    return {**state(), **changed}


def changed_at(*way, value):
    changed = state()
    node = changed
    for key in way[:-1]:
        node = node[key]
    node[way[-1]] = value
    return changed


OTHERS = {
    "the same": state(),
    "one entry of an array": changed_at("weights", "1.mean", value=np.array([0, 1, 2 + 1e-15])),
    "the sign of a zero": changed_at("by number", 7, value=np.array(-0.0)),
    "another dtype": changed_at("weights", "1.mean", value=np.arange(3)),
    "another shape": changed_at("weights", "1.mean", value=np.arange(3.0).reshape(1, 3)),
    "NumPy instead of MXNet": changed_at(
        "weights", "0.weight", value=np.float32([[1.5, 2], [3, 4]])
    ),
    "a number": changed_at("rows", 1, "loss", value=0.25),
    "True instead of 1": changed_at("rows", 1, "epoch", value=True),
    "an array more": with_(replicas={"1.mean": [np.arange(3.0), np.ones(3)]}),
    "an array less": with_(weights={"1.mean": np.arange(3.0)}),
    "another order": with_(weights=dict(reversed(state()["weights"].items()))),
    "a longer list": with_(waiting=[[np.ones((2, 2), "float16")], [np.ones(1)]]),
    "a shorter list": with_(waiting=[]),
    "a list instead of a tuple": with_(generator=list(state()["generator"])),
    "nothing": None,
    "an array instead of all": np.ones(2),
    "empty": {},
}


@pytest.mark.parametrize("own", OTHERS.values(), ids=OTHERS)
def test_what_differs_makes_the_state(own):
    first = state()
    changes = tree_diff(own, tree_digests(own), json.loads(json.dumps(tree_digests(first))))
    arrays = {}
    content = to_bytes({"changes": encode(changes, arrays)}, arrays)
    meta, arrays = from_bytes(content)
    made = apply_diff(decode(meta["changes"], arrays, mx.cpu()), first)
    assert is_same(made, own)
    assert is_empty_diff(changes) == is_same(own, first)
    assert is_same(first, state())


def exchanged(workers, own):
    """Return this worker's states and the files, as `save_run` makes them."""
    exchange = exchange_states(workers, own, None)
    files = gather_worker_files(workers, exchange.states, exchange.digests, exchange.first)
    return exchange.states, files


def test_only_what_differs_is_sent():
    big = {"same": np.ones(100_000), "other": np.ones(3)}

    def gather(workers):
        return exchanged(workers, {"net": {**big, "other": np.ones(3) * (1 + workers.rank // 2)}})

    files, *others = [files for _, files in on_threads(4, gather)]
    assert sorted(files) == ["worker-2.npz", "worker-3.npz"]
    assert all(len(content) < 3000 for content in files.values())
    assert all(other == files for other in others)
    made = apply_worker_file(files["worker-3.npz"], {"net": big})
    assert made["net"]["other"].tolist() == [2, 2, 2]
    assert made["net"]["same"] is big["same"]


def test_equal_states_give_no_file():
    assert all(files == {} for _, files in on_threads(3, lambda w: exchanged(w, state())))


def reducing(rank, calls):
    """A state whose parts are each worker's own, the same on all, or made of those of all."""

    def reduce(name, function):
        return lambda values: calls.append((name, values)) or function(values)

    return {
        "own": [np.arange(rank + 1.0), {"total": Reduction(rank + 1, reduce("total", sum))}],
        "same": {"text": "the same", "all": (Reduction(rank > 0, reduce("any", any)), 7)},
        "arrays": Reduction(mx.nd.ones(2) * rank, reduce("arrays", lambda a: sum(a).asnumpy())),
    }


def test_reductions_are_made_of_the_values_of_all():
    calls = [[] for _ in range(3)]
    results = on_threads(3, lambda w: exchanged(w, reducing(w.rank, calls[w.rank])))
    for rank, (made, files) in enumerate(results):
        assert is_same(
            made,
            {
                "own": [np.arange(rank + 1.0), {"total": 6}],
                "same": {"text": "the same", "all": (True, 7)},
                "arrays": np.full(2, 3, "float32"),
            },
        )
        assert sorted(files) == ["worker-1.npz", "worker-2.npz"]
        assert [name for name, _ in calls[rank]] == ["total", "any", "arrays"]
        # The others' files hold what is their own, and the results are the first worker's.
        first = results[0][0]
        if rank:
            content = files[f"worker-{rank}.npz"]
            assert is_same(apply_worker_file(content, first), made)
            assert b"total" not in content


def test_a_reduction_of_one_process():
    assert SingleProcess().reduction(3, lambda values: values) == [3]


def test_a_worker_with_a_nan_is_named_on_all():
    calls = []

    def check(workers):
        if workers.rank == 1:
            exchange_states(workers, None, "parameter 'w' is NaN or infinite")
        exchange_states(workers, reducing(workers.rank, calls), None)

    for error in on_threads(3, check):
        assert isinstance(error, FloatingPointError)
        assert str(error) == "parameter 'w' is NaN or infinite (worker 1)"
    assert calls == []  # what waits to be added up waits on


def test_the_first_worker_tells_the_others_something():
    def tell(workers):
        return exchange_states(workers, {}, None, [workers.rank, float("inf")]).note

    assert on_threads(2, tell) == [[0, float("inf")]] * 2


def test_digests_do_not_depend_on_where_an_array_lies():
    ours, theirs = state(), copy.deepcopy(state())
    theirs["weights"]["1.mean"] = np.arange(6.0)[:3]
    theirs["waiting"][0][0] = np.asfortranarray(theirs["waiting"][0][0])
    assert tree_digests(ours) == tree_digests(theirs)
