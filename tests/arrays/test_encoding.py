"""Plain data through JSON and arrays and back: the same values, of the same types."""

import collections
import json

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.encoding import (
    DamagedError,
    decode,
    encode,
    from_bytes,
    is_data,
    to_bytes,
)

VALUES = [
    None,
    True,
    3,
    -2.5,
    float("inf"),
    "text",
    [1, (2.0, "a"), {"b": None}],
    {1: "one", "two": [2]},
    {1, 2, 3},
    np.float32(0.1),
    np.int64(7),
    np.bool_(True),
    np.arange(6, dtype="uint8").reshape(2, 3),
    np.array("text"),
    (np.float64(1 / 3), [np.zeros(0)]),
]


def through_bytes(value):
    arrays = {}
    text = encode(value, arrays)
    meta, arrays = from_bytes(to_bytes({"value": text}, arrays))
    return decode(meta["value"], arrays, mx.cpu())


def equal(ours, theirs):
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(equal(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    return ours == theirs


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_it_comes_back(value):
    assert is_data(value)
    assert equal(through_bytes(value), value)


def test_a_scalar_stays_of_its_dtype():
    """A sum in float32 rounds otherwise than one in float64."""
    assert type(through_bytes(np.float32(0.1))) is np.float32


def test_ndarrays_come_back_on_the_context_asked_for():
    arrays = {}
    text = json.loads(json.dumps(encode(mx.nd.array([1, 2], dtype="float64"), arrays)))
    back = decode(text, arrays, mx.cpu(1))
    assert back.context == mx.cpu(1)
    assert back.dtype == np.float64
    assert back.asnumpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": object()},
        {(0, 1): 2},
        {1.5: 2},
        [collections],
        np.array([object()]),
        np.array([{"a": 1}], dtype=object),
        np.datetime64("2020-01-01"),
        lambda: None,
        b"bytes",
        1j,
    ],
    ids=lambda value: type(value).__name__,  # the same in each process
)
def test_what_is_no_data_is_refused_when_it_is_written(value):
    """Not when it is read: then it is too late."""
    assert not is_data(value)
    for place in (lambda v: v, lambda v: {"a": [1, ({"b": v, "c": v},)]}):
        with pytest.raises(TypeError, match="cannot be saved: data is None, numbers, strings"):
            encode(place(value), {})


def test_the_place_of_what_is_no_data_is_told():
    value = {"a": [1, ({3: object(), "c": b""},)]}
    message = r"^\['x'\]\['a'\]\[1\]\[0\]\[3\]: <object objec.* cannot be saved"
    with pytest.raises(TypeError, match=message):
        encode(value, {}, ["x"])
    with pytest.raises(TypeError, match=r"^\['a'\]\[0\]: \{1.5: 2\} cannot be saved"):
        encode({"a": [{1.5: 2}]}, {})


@pytest.mark.parametrize("content", [b"", b"PK", bytes(100), b"\x80\x04K\x01."])
def test_other_bytes_are_damage(content):
    with pytest.raises(DamagedError):
        from_bytes(content)
