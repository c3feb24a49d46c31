"""The shape of the package, from its source; each check is tried on a source that it refuses.

`benchmarks/shape.py` measures, and `make shape` writes the table of docs/architecture.md.
"""

import re

import pytest
import shape

PACKAGE = shape.read_package()
TEXT = shape.DOCUMENT.read_text(encoding="utf-8")
FLOORS = shape.read_floors(TEXT)
PRIVATE = shape.private_names_of_mxnet()
EXTRAS = shape.optional_extras()


def limit(name):
    return shape.LIMITS[name]


@pytest.mark.slow
def test_no_import_cycle():
    assert shape.import_cycle(PACKAGE) == []


@pytest.mark.slow
def test_imports_run_down_the_floors():
    assert shape.uphill_imports(PACKAGE, FLOORS) == []


def test_every_floor_has_its_rooms():
    assert set(FLOORS) == {module.room for module in PACKAGE.values()}


@pytest.mark.slow
def test_only_optional_extras_are_imported_in_functions():
    assert shape.late_imports(PACKAGE, EXTRAS) == []


@pytest.mark.full
def test_private_names_of_mxnet_are_in_one_module():
    assert shape.private_uses(PACKAGE, PRIVATE) == {}


@pytest.mark.slow
def test_who_asks_what_kind_of_data_it_is():
    found = shape.loader_tests(PACKAGE)
    assert len(found) <= limit("`isinstance` tests for loaders outside data/"), found


def test_parameters_have_types():
    found = [name for name, has_any in shape.parameters(PACKAGE) if has_any]
    assert shape.share_of_any(PACKAGE) <= limit("parameters annotated with `Any`"), found


@pytest.mark.full
def test_hops_of_one_batch():
    hops = shape.hops_of_a_batch()
    # The way's milestones: a trace that misses them measures nothing.
    places = [hop.split(":")[0] for hop in hops]
    assert places[:2] == ["loop", "data"]
    assert {"handlers/svrg", "svrg", "run", "handlers/step"} < set(places)
    assert "trainer" in places[places.index("handlers/step") :]
    assert len(hops) <= limit("hops of one batch"), " -> ".join(hops)


def test_the_table_in_the_document_has_every_measure():
    section = re.search(r"<!-- shape -->\n(.*?)<!-- /shape -->", TEXT, re.DOTALL)
    rows = [line.split(" | ")[0].strip("| ") for line in section[1].splitlines()]
    assert rows[2:] == list(shape.LIMITS)


# --- Each check refuses something --------------------------------------------------------------


def package(**sources):
    """A made-up package: `a__b` is the module a.b."""
    names = {name.replace("__", "."): source for name, source in sources.items()}
    return {name: shape.Module(name, source) for name, source in names.items()}


CYCLES = {
    "direct": {"a": "from gluon_svrg.b import x", "b": "import gluon_svrg.a"},
    "relative": {"a": "from . import b", "b": "from .a import x"},
    "in a class and a try": {
        "a": "class A:\n import gluon_svrg.b",
        "b": "try:\n from gluon_svrg import a\nexcept ImportError:\n pass",
    },
    "of three": {
        "a": "import gluon_svrg.b",
        "b": "import gluon_svrg.c",
        "c": "import gluon_svrg.a",
    },
}


@pytest.mark.parametrize("sources", CYCLES.values(), ids=CYCLES)
def test_cycles_are_seen(sources):
    assert shape.import_cycle(package(**sources)) == sorted(sources)


NO_CYCLES = {
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import gluon_svrg.a",
    "in a function": "def f():\n import gluon_svrg.a",
}


@pytest.mark.parametrize("source", NO_CYCLES.values(), ids=NO_CYCLES)
def test_what_is_no_cycle(source):
    assert shape.import_cycle(package(a="import gluon_svrg.b", b=source)) == []


def test_imports_that_do_not_run_down_are_seen():
    floors = shape.read_floors("```floors\n1 top\n2 left right\n3 ground earth\n```\n")
    refused = package(
        left="import gluon_svrg.top",
        right__inner="def f():\n from gluon_svrg import left",
        attic="",
        top="",
    )
    assert shape.uphill_imports(refused, floors) == [
        "attic has no floor",
        "left.py:1 imports top",
        "right/inner.py:2 imports left",
    ]
    taken = package(
        top="from gluon_svrg.left import x",
        left="import gluon_svrg.ground",
        right__a="import gluon_svrg.right.b",
        right__b="",
        ground="import gluon_svrg.earth",
        earth="",
    )
    assert shape.uphill_imports(taken, floors) == []
    with pytest.raises(ValueError, match="no block ```floors"):
        shape.read_floors("# Architecture")


def test_late_imports_are_seen():
    source = "def f():\n import os\n from {} import x\n"
    extra, own = package(a=source.format("PIL")), package(a=source.format("gluon_svrg.a"))
    assert shape.late_imports(extra, EXTRAS) == ["a.py:2 imports os in a function"]
    assert len(shape.late_imports(own, EXTRAS)) == 2
    assert {"matplotlib", "onnx", "PIL", "tensorboardX", "sklearn"} <= EXTRAS


PRIVATE_USES = {
    "trainer._params": "_params",
    "getattr(trainer, '_amp_loss_scaler', None)": "_amp_loss_scaler",
    "vars(block)['_active'] = 0": "_active",
    "import mxnet.onnx.mx2onnx._export_onnx": "mxnet.onnx.mx2onnx._export_onnx",
    "from mxnet.gluon.contrib.estimator.utils import _check_metrics": (
        "mxnet.gluon.contrib.estimator.utils._check_metrics"
    ),
    "class A:\n  def f(self): return self._collect_params_with_prefix()": (
        "_collect_params_with_prefix"
    ),
    "class A:\n  def f(self, param): param._data = None": "_data",
}


@pytest.mark.parametrize(("source", "name"), PRIVATE_USES.items())
def test_private_names_of_mxnet_are_seen(source, name):
    (uses,) = shape.private_uses(package(a=source), PRIVATE).values()
    assert [use.split()[1] for use in uses] == [name]
    assert shape.private_uses(package(_mxnet=source), PRIVATE) == {}


NOT_PRIVATE = [
    "class A:\n  def f(self): self._data = 1\n  def g(self): return self._data",
    "row._asdict()",
    "x._a_name_that_mxnet_does_not_have",
    "def _reduce(): ...\n_reduce()",
]


def test_a_name_on_self_may_come_from_another_class_of_the_package():
    sources = {"a": "class A:\n  def f(self): self._name = 1", "b": "def f(self): self._name"}
    assert shape.private_uses(package(**sources), {"_name"}) == {}
    assert shape.private_uses(package(b=sources["b"]), {"_name"})


@pytest.mark.parametrize("source", NOT_PRIVATE)
def test_what_is_not_mxnets(source):
    assert shape.private_uses(package(a=source), PRIVATE) == {}


def test_the_two_subclasses_may_name_hooks_on_themselves_only():
    own, other = "class A:\n  def f(self): self._update_count(1)", "def f(x): x._update_count(1)"
    for name in ("trainer", "optimizer__lars"):
        assert shape.private_uses(package(**{name: own}), PRIVATE) == {}
        assert shape.private_uses(package(**{name: other}), PRIVATE)


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(data, ArrayLoader)",
        "isinstance(self.x, (gluon.data.DataLoader, int))",
        "isinstance(x, mx.io.DataIter | None)",
        "isinstance(estimator.train_data, (list, tuple))",
    ],
)
def test_questions_about_data_are_seen(source):
    assert len(shape.loader_tests(package(loop=source))) == 1
    assert shape.loader_tests(package(data__kinds=source)) == []
    assert shape.loader_tests(package(loop="isinstance(batch, (list, tuple))")) == []


def test_any_is_seen():
    source = "def f(self, a: Any, b: list[Any] | None, c: int, d: 'Any', *e: Any, f: str): ..."
    assert shape.share_of_any(package(a=source)) == 60
