"""One call for many arrays: the same numbers as a call each."""

import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.svrg.rule import correct

SHAPES = [(3, 4), (1,), (2, 3, 5), (7,)]


def random_arrays(dtype, context=None, shapes=SHAPES):
    return [
        mx.nd.array(np.random.default_rng(i).normal(size=shape), context, dtype)
        for i, shape in enumerate(shapes)
    ]


def values(arrays):
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("coefficient", [1, 0.3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_rule_in_place_is_the_rule_bit_for_bit(dtype, coefficient, count):
    fused = FusedFunction(
        lambda grad, snapshot, full: correct(grad, snapshot, full * 8, coefficient)
    )
    for repetition in range(3):
        grads, snapshots, fulls = (
            [array * (repetition + factor) for array in random_arrays(dtype)[:count]]
            for factor in (1, 2, 3)
        )
        expected = [
            correct(*arrays[:2], arrays[2] * 8, coefficient).asnumpy()
            for arrays in zip(grads, snapshots, fulls, strict=True)
        ]
        before = values(snapshots), values(fulls)
        fused(grads, snapshots, fulls, out=grads)
        assert problems.same(values(grads), expected)
        assert problems.same(values(snapshots), before[0])
        assert problems.same(values(fulls), before[1])


def test_without_out_the_results_are_new_each_time():
    arrays = random_arrays("float32")
    copy = FusedFunction(mx.sym.identity)
    first = copy(arrays)
    expected = values(arrays)
    for array in arrays:
        array[:] = 7
    second = copy(arrays)
    assert problems.same(values(first), expected)
    assert all((value == 7).all() for value in values(second))


def test_another_number_of_arrays_other_shapes_and_contexts():
    double = FusedFunction(lambda x: x * 2)
    for context in (mx.cpu(0), mx.cpu(1)):
        for shapes in (SHAPES, SHAPES[:2], [(9,), (9, 9)]):
            arrays = random_arrays("float32", context, shapes)
            result = double(arrays)
            assert problems.same(values(result), [2 * value for value in values(arrays)])
            assert all(array.context == context for array in result)
    assert double([]) == []


def test_sums_in_another_dtype():
    add = FusedFunction(lambda total, x: total + mx.sym.cast(x, dtype="float64"))
    arrays = random_arrays("float32")
    totals = [mx.nd.zeros(array.shape, dtype="float64") for array in arrays]
    for _ in range(3):
        add(totals, arrays, out=totals)
    expected = [3 * array.asnumpy().astype("float64") for array in arrays]
    assert problems.relative_difference(values(totals), expected) < 1e-15
