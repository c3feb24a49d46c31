"""MXNet's named arrays, read in Python: what MXNet writes, and nothing else."""

import struct

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays import params
from gluon_svrg.arrays.row_sparse import row_sparse
from gluon_svrg.files import DamagedError

DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"]


def some_arrays():
    rng = np.random.default_rng(0)
    shapes = {"arg:a": (3,), "b.weight": (2, 3, 4), "": (1,), "é": (1, 1)}
    return {
        f"{name}{dtype}": mx.nd.array(100 * rng.uniform(size=shape), dtype=dtype)
        for name, shape in shapes.items()
        for dtype in DTYPES
    }


def test_what_mxnet_writes_is_read(tmp_path):
    arrays = some_arrays()
    mx.nd.save(str(tmp_path / "file"), arrays)
    found = params.from_bytes((tmp_path / "file").read_bytes())
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].context == mx.cpu()
        assert np.array_equal(found[name].asnumpy(), array.asnumpy())


def test_sparse_rows_are_read():
    rows = row_sparse(np.ones((2, 3), "float32"), np.array([1, 4]), (6, 3), mx.cpu())
    (found,) = params.from_bytes(params.to_bytes({"a": rows})).values()
    assert found.stype == "row_sparse"
    assert np.array_equal(found.asnumpy(), rows.asnumpy())


@pytest.mark.parametrize("rows", [(4, 1), (1, 1), (-1, 4), (1, 6)])
def test_sparse_rows_that_there_cannot_be(rows):
    array = row_sparse(np.ones((2, 3), "float32"), np.array([1, 4]), (6, 3), mx.cpu())
    content, written = params.to_bytes({"w": array}), struct.pack("<2q", 1, 4)
    assert content.count(written) == 1
    with pytest.raises(DamagedError, match=r"of shape \(6, 3\) has rows that it cannot have"):
        params.from_bytes(content.replace(written, struct.pack("<2q", *rows)))


def test_no_arrays():
    assert params.from_bytes(params.to_bytes({})) == {}


@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_a_number_gets_through_to_mxnet(seed):
    """Each 4 and 8 bytes in front, and behind, in turn hold numbers that lengths could be."""
    arrays = {"a": mx.nd.ones((2, 3)), "b": mx.nd.ones((4,), dtype="int32")}
    content = params.to_bytes(arrays)
    values = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
    for place in range(seed, len(content) - 8, 4):
        for value in values:
            changed = bytearray(content)
            struct.pack_into("<Q", changed, place, value)
            try:
                found = params.from_bytes(bytes(changed))
            except DamagedError:
                continue
            assert sum(array.size for array in found.values()) == 10


@pytest.mark.parametrize("part", [0, 7, 24, 40, 60, 0.5, 0.9, -1])
def test_a_part_is_refused(part):
    content = params.to_bytes(some_arrays())
    cut = int(part * len(content)) if isinstance(part, float) else part
    with pytest.raises(DamagedError):
        params.from_bytes(content[:cut])
    with pytest.raises(DamagedError, match="4 bytes follow its end"):
        params.from_bytes(content + b"more")
