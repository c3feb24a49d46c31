"""Every kind of data over several workers trains as in one process; other data are told."""

import itertools

import pytest
from cluster import run_together
from workers.data_programs import Y

pytestmark = [pytest.mark.full, pytest.mark.long]


@pytest.fixture(scope="module")
def results():
    """Return what each of three workers found, a list for each part of the program."""
    return list(zip(*run_together("workers.data_programs:all_of_it", 3), strict=True))


def test_all_kinds_of_data(results):
    differences = {name: d for found in results[0] for name, d in found.items()}
    assert len(differences) == 20
    assert {name: d for name, d in differences.items() if not d < 1e-10} == {}


def test_a_seed_that_was_drawn_is_the_first_workers(results):
    drawn = [drawn for drawn, _, _ in results[1]]
    assert len(set(drawn)) == 3
    assert {seed for _, seed, _ in results[1]} == {drawn[0]}


def test_the_first_worker_tells_how_the_data_are_shared(results):
    first, second, _ = [lines for _, _, lines in results[1]]
    assert first == [
        "3 workers: each trains on its part of every batch of an ArrayLoader; batch_size is the "
        "total of all workers",
        "3 workers: each loads whole batches of a DataLoader and trains on its part; with a "
        "gluon_svrg.data.WorkerBatchSampler it would load only its own samples; batch_size is the "
        "total of all workers",
    ]
    assert second == []


def test_workers_with_other_data_are_told_so(results):
    alike = [said.pop("alike") for said in results[2]]
    said, *others = results[2]
    assert all(other == said for other in others)
    expected = {
        "kind": "has kind='a list' on worker 0 and kind='an ArrayLoader' on worker 1",
        "batch size": "train_data has batch_size=5 on worker 0 and batch_size=4 on worker 1",
        "seed": "train_data has seed=3 on worker 0 and seed=4 on worker 1",
        "seed given to one": "train_data has seed=None on worker 0 and seed=3 on worker 1",
        "arrays": "train_data has other samples on worker 1 than on worker 0",
        "length": "train_data has batches=4 on worker 0 and batches=3 on worker 1",
        "contents": "this pass over train_data has other samples on worker 1 than on worker 0",
        "iterable of other length": "this pass over train_data has other samples on worker 1",
        "sharded by hand": "this pass over train_data has other samples on worker 1",
        "unseeded": "this pass over train_data has other samples on worker 1",
        "unseeded sampler": "this pass over train_data has order=",
    }
    assert said.keys() == expected.keys()
    for name, text in expected.items():
        assert text in said[name], name
        assert (
            "give a gluon.data.DataLoader with a gluon_svrg.data.WorkerBatchSampler" in said[name]
        )
    rows = itertools.chain(*(batch for batches in alike for batch in batches if batch))
    assert sorted(rows) == sorted(Y.tolist())


def test_a_dataset_that_draws_for_each_sample_leaves_the_order_alike(results):
    epochs = list(zip(*results[3], strict=True))
    for parts in epochs:
        assert sorted(itertools.chain(*parts)) == sorted(Y.tolist())
    assert len({str(parts) for parts in epochs}) == 3
