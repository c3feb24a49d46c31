"""Checks an ONNX file before onnxruntime reads it.

A model directory may come from a stranger. ONNX files can name other files to read, hold whole
programs (loops, functions), and divide integers by zero, which ends the process. So the bytes are
walked here, in protobuf's wire format, and only files as :func:`~gluon_svrg.deploy.export` writes
them are run: one graph of the operators below, whose arrays are all in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from gluon_svrg.files import DamagedError

# What MXNet's translator makes of the layers of Gluon and of the model zoos. Left out on purpose:
# what makes arrays of a size that another array tells (ConstantOfShape, Range, OneHot, Expand,
# Tile, Resize), what draws random numbers, and the recurrent operators, whose translation has the
# batch size in it.
OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
    Ceil Clip Concat Constant Conv ConvTranspose Cos Cosh DepthToSpace Div Dropout Elu Equal Erf
    Exp Flatten Floor Gather Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
    GreaterOrEqual HardSigmoid Identity InstanceNormalization LRN LeakyRelu Less LessOrEqual Log
    LogSoftmax LpNormalization LpPool MatMul Max MaxPool Mean Min Mul Neg Not Or PRelu Pad Pow
    Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape
    Round Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split
    Sqrt Squeeze Sub Sum Tan Tanh TopK Transpose Unsqueeze Where Xor
    """.split()  # noqa: SIM905  # a line for each is two pages
)
# The range of the attributes by which onnxruntime divides, or by which it multiplies sizes.
_SIZES = (1, 2**20)
_RANGES = {
    **dict.fromkeys((b"group", b"kernel_shape", b"strides", b"dilations"), _SIZES),
    **dict.fromkeys((b"blocksize", b"size"), _SIZES),
    **dict.fromkeys((b"pads", b"output_padding"), (0, 2**20)),
}
# onnxruntime counts on weights with an axis of kernels after those of the channels.
_CONVOLVE = frozenset({b"Conv", b"ConvTranspose"})
# With integers it divides, and a division by zero ends the process.
_DIVIDE = frozenset({b"Div"})
_FLOATS = frozenset({1, 10, 11})  # onnx.TensorProto: FLOAT, FLOAT16, DOUBLE
_GIVE_INTEGERS = frozenset({b"ArgMax", b"ArgMin", b"Shape", b"Size", b"TopK"})
# Their other inputs are indices, shapes and axes.
_OF_FIRST_INPUT = frozenset(
    b"Gather Pad Pow ReduceSum Reshape Slice Split Squeeze Unsqueeze".split()
)

# The fields that may be there: for each kind of message its fields by number, each with its name.
# "" is a field that is not looked at: text, a version, numbers.
_FIELDS = {
    "model": {**dict.fromkeys((1, 2, 3, 4, 5, 6, 14), ""), 7: "graph", 8: "opset"},
    "opset": {1: "domain", 2: ""},
    "graph": {1: "node", 2: "", 5: "tensor", 10: "", 11: "input", 12: "", 13: ""},
    "node": {1: "reads", 2: "writes", 3: "", 4: "operator", 5: "attribute", 6: "", 7: "domain"},
    "attribute": {1: "name", 2: "", 3: "ints", 4: "", 5: "tensor", 7: "", 8: "ints", 9: "",
                  13: "", 20: ""},
    "tensor": {**dict.fromkeys((4, 5, 7, 9, 10, 11, 12), ""), 1: "dims", 2: "dtype", 8: "name"},
    "input": {1: "name", 2: "type", 3: ""},
    "type": {1: "array", 6: ""},
    "array": {1: "dtype", 2: ""},
}  # fmt: skip


def check(content: bytes) -> None:
    """Raise DamagedError if an ONNX file has anything else than `export` writes."""
    try:
        graphs = [value for name, value in _fields(memoryview(content), "model") if name == "graph"]
        opsets = [value for name, value in _fields(memoryview(content), "model") if name == "opset"]
        for opset in opsets:
            _only_standard(dict(_fields(_message(opset), "opset")))
        if len(graphs) != 1:
            raise DamagedError(f"it has {len(graphs)} graphs")
        _check_graph(_message(graphs[0]))
    except (IndexError, struct.error, RecursionError) as e:
        raise DamagedError("it is cut off") from e


def _check_graph(graph: memoryview) -> None:
    nodes, integers, known = [], set(), {b""}  # an input that is left out has no name
    kernels = set()  # arrays of three axes or more
    for kind, value in _fields(graph, "graph"):
        if kind == "node":
            nodes.append(_node(_message(value)))
        elif kind == "tensor":
            name, is_integer, axes = _tensor(_message(value))
            known.add(name)
            if is_integer:
                integers.add(name)
            elif axes > 2:
                kernels.add(name)
        elif kind == "input":
            name, is_integer = _input(_message(value))
            known.add(name)
            if is_integer:
                integers.add(name)
    for node in nodes:
        if not known.issuperset(node.reads):
            raise DamagedError("an operator reads what no other has written before")
        if node.operator in _DIVIDE and integers.intersection(node.reads):
            raise DamagedError(f"its {node.operator.decode()} divides integers, unchecked")
        if node.operator in _CONVOLVE and not kernels.issuperset(node.reads[1:2]):
            raise DamagedError(f"its {node.operator.decode()} has other weights than a kernel")
        if node.gives_integers(integers):
            integers.update(node.writes)
        known.update(node.writes)


@dataclass
class _Node:
    operator: bytes = b""
    reads: list[bytes] = field(default_factory=list)
    writes: list[bytes] = field(default_factory=list)
    casts_to: int | None = None
    has_integers: bool = False  # a Constant

    def gives_integers(self, integers: set[bytes]) -> bool:
        """Return whether its outputs may be integers; booleans count as integers."""
        if self.operator == b"Cast":
            return self.casts_to not in _FLOATS
        if self.operator == b"Constant":
            return self.has_integers
        if self.operator in _GIVE_INTEGERS or (self.operator == b"MaxPool" and self.writes[1:]):
            return True
        reads = self.reads[:1] if self.operator in _OF_FIRST_INPUT else self.reads
        reads = self.reads[1:] if self.operator == b"Where" else reads
        return not integers.isdisjoint(reads)


def _node(message: memoryview) -> _Node:
    node = _Node()
    attributes = []
    for name, value in _fields(message, "node"):
        if name == "operator":
            node.operator = bytes(_message(value))
            if node.operator.decode("latin-1") not in OPERATORS:
                raise DamagedError(f"its operator {node.operator!r} is not known to be safe")
        elif name == "attribute":
            attributes.append(_attribute(_message(value)))
        elif name == "reads":
            node.reads.append(bytes(_message(value)))
        elif name == "writes":
            node.writes.append(bytes(_message(value)))
        elif name == "domain":
            _only_standard({name: value})
    for attribute, numbers, is_integer in attributes:
        if attribute == b"to":
            node.casts_to = numbers[-1] if len(numbers) == 1 else None
        node.has_integers |= is_integer
    return node


def _attribute(message: memoryview) -> tuple[bytes, list[int], bool]:
    """Return its name, its integers, and whether its value may be of integers."""
    attribute, numbers, is_integer = b"", [], False
    for name, value in _fields(message, "attribute"):
        if name == "name":
            attribute = bytes(_message(value))
        elif name == "ints":
            numbers += [value] if isinstance(value, int) else list(_varints(value))
        elif name == "tensor":
            is_integer |= _tensor(_message(value))[1]
    least, greatest = _RANGES.get(attribute, (-(2**63), 2**63))
    if not all(least <= _signed(n) <= greatest for n in numbers):
        raise DamagedError(f"an operator has {attribute.decode()}={[_signed(n) for n in numbers]}")
    return attribute, numbers, is_integer or bool(numbers)


def _tensor(message: memoryview) -> tuple[bytes, bool, int]:
    """Return its name, whether it is of integers, and how many axes it has."""
    found = list(_fields(message, "tensor"))
    names = [bytes(_message(value)) for name, value in found if name == "name"]
    dtypes = {value for name, value in found if name == "dtype"}
    dims = [value for name, value in found if name == "dims"]
    axes = sum(1 if isinstance(value, int) else len(list(_varints(value))) for value in dims)
    return (names or [b""])[-1], not dtypes or not dtypes <= _FLOATS, axes


def _input(message: memoryview) -> tuple[bytes, bool]:
    names, dtypes = [b""], []
    for name, value in _fields(message, "input"):
        if name == "name":
            names.append(bytes(_message(value)))
        elif name == "type":
            for part, array in _fields(_message(value), "type"):
                if part == "array":
                    found = _fields(_message(array), "array")
                    dtypes += [number for field, number in found if field == "dtype"]
    return names[-1], not dtypes or not _FLOATS.issuperset(dtypes)


def _only_standard(fields: dict[str, int | memoryview]) -> None:
    domain = bytes(_message(fields.get("domain", memoryview(b""))))
    if domain not in (b"", b"ai.onnx"):
        raise DamagedError(f"its operators are of {domain!r}, which are not known to be safe")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise DamagedError("a number stands where a part of the graph belongs")
    return value


def _fields(data: memoryview, kind: str) -> Iterator[tuple[str, int | memoryview]]:
    """Yield the names and the values of a message's fields.

    Raises
    ------
    DamagedError
        If it has a field that is not in `_FIELDS`.
    IndexError
        If it is cut off.
    """
    names = _FIELDS[kind]
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number not in names:
            raise DamagedError(f"its {kind} has the field {number}, which is not loaded")
        value: int | memoryview
        if wire == 0:
            value, at = _varint(data, at)
        elif wire in (1, 2, 5):
            size, at = _varint(data, at) if wire == 2 else (8 if wire == 1 else 4, at)
            if size > end - at:
                raise DamagedError("it is cut off")
            value, at = data[at : at + size], at + size
        else:
            raise DamagedError(f"its {kind} is not as protobuf writes it")
        yield names[number], value


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at this place, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
        shift += 7
        if shift > 63:
            raise DamagedError("a number is too long")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
