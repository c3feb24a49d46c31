"""Checks of arguments: what they return and say; old names of arguments."""

import inspect
import math
import re

import numpy as np
import pytest
from gluon_svrg.arguments import (
    check_finite,
    check_integer,
    check_number,
    check_periods,
    renamed,
    renamed_attribute,
)


@renamed(most="largest", least="smallest")
def limits(smallest=0, largest=10, *, step=1):
    """The docstring."""
    return smallest, largest, step


@pytest.mark.parametrize(
    ("given", "expected", "message"),
    [
        ({"most": 5}, (0, 5, 1), "the argument most is now called largest: .* give largest=5"),
        ({"least": -1, "step": 2}, (-1, 10, 2), "the argument least is now called smallest"),
        # The value that the new name has by default is a value, too.
        ({"most": 10}, (0, 10, 1), "give largest=10"),
    ],
)
def test_an_old_name_is_accepted_with_a_warning(given, expected, message):
    with pytest.warns(DeprecationWarning, match=message) as caught:
        assert limits(**given) == expected
    (warning,) = caught
    assert warning.filename == __file__  # the line that has to be changed


def test_a_new_name_is_accepted_without_a_warning():
    assert limits(1, 2) == limits(smallest=1, largest=2) == (1, 2, 1)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"largest": 5, "most": 5}), ((0, 5), {"most": 6}), ((), {"largest": 10, "most": 3})],
)
def test_both_names_are_an_error(args, kwargs):
    with pytest.raises(TypeError, match=r"largest is given twice, .* old name most .*: give larg"):
        limits(*args, **kwargs)


def test_a_function_with_old_names_shows_the_new_ones():
    assert str(inspect.signature(limits)) == "(smallest=0, largest=10, *, step=1)"
    assert (limits.__name__, limits.__doc__) == ("limits", "The docstring.")


class Limit:
    def __init__(self, largest):
        self.largest = largest

    def is_above(self, value):
        return value > self.largest

    most = renamed_attribute("most", "largest")
    exceeds = renamed_attribute("exceeds", "is_above")


def test_an_old_attribute_is_read_and_set_with_a_warning():
    limit = Limit(5)
    with pytest.warns(DeprecationWarning, match=r"Limit\.most is now called largest") as caught:
        assert limit.most == 5
    with pytest.warns(DeprecationWarning, match=r"Limit\.most is now called largest"):
        limit.most = 7
    assert vars(limit) == {"largest": 7}
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Limit\.exceeds is now called is_above"):
        assert [limit.exceeds(value) for value in (7, 8)] == [False, True]


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers(value):
    number = check_integer("n", value, 1, "")
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    ("value", "least", "error", "message"),
    [
        (0, 1, ValueError, "n must be a positive integer, got 0: meaning"),
        (-1, 0, ValueError, "n must be a non-negative integer, got -1: meaning"),
        (1.0, 1, TypeError, "n must be a positive integer, got 1.0: meaning"),
        (True, 1, TypeError, "n must be a positive integer, got True: meaning"),
        (None, 0, TypeError, "n must be a non-negative integer, got None: meaning"),
    ],
)
def test_no_such_integers(value, least, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check_integer("n", value, least, "meaning")


@pytest.mark.parametrize("check", [check_number, check_finite])
@pytest.mark.parametrize("value", [0.5, np.float32(0.5), 1, np.int8(1)])
def test_numbers(check, value):
    number = check("x", value, "", 0, above=True)
    assert number == value
    assert type(number) is float


@pytest.mark.parametrize("check", [check_number, check_finite])
@pytest.mark.parametrize(
    ("value", "bounds", "error", "message"),
    [
        ("1", (), TypeError, "x must be a number, got '1': meaning"),
        (True, (), TypeError, "x must be a number, got True: meaning"),
        (-1, (0,), ValueError, "x must be a number of at least 0, got -1: meaning"),
        (0, (0, True), ValueError, "x must be a number above 0, got 0: meaning"),
    ],
)
def test_no_such_numbers(check, value, bounds, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check("x", value, "meaning", *bounds)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float32("inf")])
@pytest.mark.parametrize("bounds", [(), (0,), (0, True)])
def test_no_finite_numbers(value, bounds):
    with pytest.raises(ValueError, match=r"^x must be a finite number, got .*: meaning$"):
        check_finite("x", value, "meaning", *bounds)


def test_infinity_is_a_number():
    assert check_number("x", math.inf, "") == math.inf


@pytest.mark.parametrize("periods", [(1, None), (None, 1), (2, 3)])
def test_periods(periods):
    check_periods(*periods, "a checkpoint")


@pytest.mark.parametrize(
    ("periods", "error", "message"),
    [
        (
            (0, None),
            ValueError,
            "every_n_epochs must be a positive integer, got 0: a checkpoint is written every that "
            "many epochs",
        ),
        (
            (1, 0.5),
            TypeError,
            "every_n_batches must be a positive integer, got 0.5: a checkpoint is written every "
            "that many batches",
        ),
        (
            (None, None),
            ValueError,
            "every_n_epochs and every_n_batches are both None, so there would never be a "
            "checkpoint: give one of them",
        ),
    ],
)
def test_no_such_periods(periods, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check_periods(*periods, "a checkpoint")
