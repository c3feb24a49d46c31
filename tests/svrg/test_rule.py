"""The rule with three arrays, and the coefficient."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.svrg import coefficient as coefficients, rule

GRAD, TWIN, MEAN = np.random.default_rng(0).normal(size=(3, 4, 5))


@pytest.mark.parametrize("coefficient", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("array", [np.array, lambda x: mx.nd.array(x, dtype="float64")])
def test_the_rule(array, coefficient):
    result = rule.correct(array(GRAD), array(TWIN), array(MEAN), coefficient)
    result = result if isinstance(result, np.ndarray) else result.asnumpy()
    assert np.array_equal(result, GRAD - (TWIN - MEAN) * coefficient)


def test_coefficient_zero_returns_the_gradient_itself():
    # Not merely an equal one: 0 * infinity would make NaN of it.
    assert rule.correct(GRAD, TWIN * np.inf, MEAN, 0.0) is GRAD


def test_at_the_snapshot_the_result_is_the_full_gradient():
    np.testing.assert_allclose(rule.correct(GRAD, GRAD, MEAN), MEAN, rtol=1e-12, atol=1e-15)


def test_inputs_are_not_changed():
    arrays = [mx.nd.array(x) for x in (GRAD, TWIN, MEAN)]
    before = [x.asnumpy() for x in arrays]
    rule.correct(*arrays, 0.5)
    assert all(np.array_equal(a, b.asnumpy()) for a, b in zip(before, arrays, strict=True))


def test_linear_decay():
    schedule = gs.linear_decay(0.75, 0.25)
    assert [schedule(p) for p in (0, 0.5, 1, 1.5)] == [0.75, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("coefficient", "error", "message"),
    [
        (1.01, ValueError, r"coefficient must be in \[0, 1\], got 1.01: 1 is SVRG"),
        (float("nan"), ValueError, r"coefficient must be in \[0, 1\], got nan"),
        (True, TypeError, r"coefficient must be a number in \[0, 1\], got True"),
        (lambda p: -1, ValueError, r"schedule's value at progress 0.5 must be in \[0, 1\], got -1"),
        (lambda p: "a", TypeError, r"schedule's value at progress 0.5 must be a number .* got 'a'"),
        (lambda p: None, TypeError, r"schedule's value at progress 0.5 must be a number .* None"),
    ],
)
def test_a_bad_coefficient_is_an_error(coefficient, error, message):
    with pytest.raises(error, match=message):
        coefficients.coefficient_at(coefficient, 0.5)


@pytest.mark.parametrize("arguments", [(2.0, 0.0), (1.0, -1.0)])
def test_linear_decay_checks_its_ends(arguments):
    with pytest.raises(ValueError, match=r"(start|end) must be in \[0, 1\]"):
        gs.linear_decay(*arguments)
