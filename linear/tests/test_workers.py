"""Threads: the same results in the same order, and BLAS as it was before."""

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from provenglm.workers import Workers
from threadpoolctl import ThreadpoolController


def threads_of_blas():
    return [pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()]


def test_small_data_have_one_thread_and_leave_blas_alone():
    before = threads_of_blas()
    workers = Workers(10_000)
    with workers.running():
        assert workers.count == 1
        assert threads_of_blas() == before
        here = {*workers.map(lambda _: threading.get_ident(), range(10))}
    assert here == {threading.get_ident()}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_are_in_the_order_of_the_items(count):
    workers = Workers(10_000_000, threads=count)
    with workers.running():
        assert list(workers.map(lambda k: k * k, range(50))) == [k * k for k in range(50)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_results_are_kept_where_each_is_a_matrix(count):
    class Matrix:
        pass

    alive, most = weakref.WeakSet(), []

    def made(k):
        result = Matrix()
        result.index = k
        alive.add(result)
        return result

    workers = Workers(10_000_000, threads=count)
    with workers.running():
        order = []
        for each in workers.map(made, range(100), together=1):
            order.append(each.index)
            time.sleep(1e-3)  # slower than the threads
            most.append(len(alive))
            del each
    assert order == list(range(100))
    assert max(most) <= 2 * count + 1


def test_what_is_not_asked_for_is_not_done():
    done = []
    workers = Workers(10_000_000, threads=2)
    with workers.running():
        for k in workers.map(lambda k: done.append(k) or k, range(100), together=1):
            if k == 5:
                break
    assert len(done) <= 10


def test_blas_has_one_thread_meanwhile():
    before = threads_of_blas()
    workers = Workers(10_000_000, threads=2)
    with workers.running():
        assert set(threads_of_blas()) == {1}
    assert threads_of_blas() == before


def test_threads_are_gone_afterwards():
    workers = Workers(10_000_000, threads=2)
    before = threading.active_count()
    with workers.running():
        list(workers.map(lambda k: k, range(50)))
        assert threading.active_count() > before
    assert threading.active_count() == before
    # Without them it still works.
    assert list(workers.map(lambda k: k, range(5))) == list(range(5))


def test_an_error_in_a_thread_comes_out_and_ends_them():
    workers = Workers(10_000_000, threads=2)
    before, blas = threading.active_count(), threads_of_blas()

    def bad(k):
        if k == 7:
            raise ValueError("seven")
        return np.zeros(3)

    with pytest.raises(ValueError, match="seven"), workers.running():
        list(workers.map(bad, range(20)))
    assert threading.active_count() == before
    assert threads_of_blas() == blas


def test_fits_that_overlap_put_blas_back():
    before = threads_of_blas()
    first, second = Workers(10_000_000), Workers(10_000_000)
    with ExitStack() as outer:
        outer.enter_context(first.running())
        with ExitStack() as inner:
            inner.enter_context(second.running())
            # The one that came first ends first.
            outer.pop_all().close()
            assert set(threads_of_blas()) == {1}
    assert threads_of_blas() == before


def test_fits_in_a_pool_of_threads_take_no_further_ones():
    """threadpoolctl lets only the thread that limited first set the number, while it lives."""
    before = threads_of_blas()
    with Workers(10_000_000).running():
        pass

    def fit(size):
        workers = Workers(size)
        with workers.running():
            barrier.wait(30)
            return workers.count, set(threads_of_blas())

    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(fit, [10_000_000, 10]))
    assert found == [(1, {1})] * 2
    assert threads_of_blas() == before
    with Workers(10_000_000).running():
        assert set(threads_of_blas()) == {1}
    assert threads_of_blas() == before
