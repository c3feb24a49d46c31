"""MXNet's private names are used in `gluon_svrg/_mxnet` only."""

import ast
import importlib.util
import re
from pathlib import Path

import gluon_svrg
import pytest

PACKAGE = Path(gluon_svrg.__file__).parent
# Part of the public interface of namedtuples, enums, ctypes and the interpreter.
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_field_defaults", "_value_", "_exit", "_"}
PUBLIC |= {"_missing_", "_name_", "_generate_next_value_", "_fields_"}
# These override MXNet's hooks, and may name them on `self` and `super()`.
SUBCLASSES = ("svrg/trainer", "optimizer")
DEFINITION = re.compile(r"(?:\bdef|\bclass) (_[a-zA-Z]\w*)|\.(_[a-zA-Z]\w*)\s*(?:,[^=\n]*)?=(?!=)")


def names_of_mxnet():
    folder = Path(importlib.util.find_spec("mxnet").origin).parent
    texts = (path.read_text("utf-8", "replace") for path in folder.rglob("*.py"))
    found = (names for text in texts for names in DEFINITION.findall(text))
    return {first or second for first, second in found} - PUBLIC


def names_in(tree):
    """Return the name, line and whether it is on self, of all attributes, strings and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_super = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
            on_self = is_super or ast.unparse(node.value) in {"self", "cls"}
            yield node.attr, node.lineno, on_self
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno, False
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mxnet"):
            for name in [*node.module.split("."), *(alias.name for alias in node.names)]:
                yield name, node.lineno, False


def names_defined_in(tree):
    """Return the names of functions and classes, and those assigned to, as x or self.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) in {"self", "cls"} else []


def private_uses(sources, private):
    """Return the uses of the names `private` in the sources, a dict by path, as path:line name."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    defined = {path: set(names_defined_in(tree)) for path, tree in trees.items()}
    of_any_class = set().union(*defined.values())
    return [
        f"{path}:{line} {name}"
        for path, tree in trees.items()
        for name, line, on_self in names_in(tree)
        if name in private - defined[path]
        and not (on_self and (name in of_any_class or path.startswith(SUBCLASSES)))
    ]


def test_private_names_are_in_one_package():
    exempt = {"_mxnet", "linear"}  # linear does not know MXNet
    files = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in exempt]
    sources = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in files}
    assert len(sources) > 100
    assert private_uses(sources, names_of_mxnet()) == []


@pytest.mark.parametrize(
    "source",
    [
        "trainer._data",
        "getattr(block, '_data', None)",
        "class A:\n  def f(self, param): param._data = None",
        "def f(self): self._data",
        "from mxnet.gluon.utils import _data",
    ],
)
def test_a_private_name_is_seen(source):
    assert len(private_uses({"a.py": source}, {"_data"})) == 1


@pytest.mark.parametrize(
    "sources",
    [
        {"a.py": "class A:\n  def f(self): self._data = 1", "b.py": "def f(self): self._data"},
        {"svrg/trainer.py": "class A:\n  def f(self): self._data(super()._data)"},
        {"a.py": "def _data(): ...\n_data()"},
    ],
)
def test_a_name_of_its_own_is_not(sources):
    assert private_uses(sources, {"_data"}) == []
