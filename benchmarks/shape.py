"""The shape of the package, measured: what tests/test_shape.py holds, as a table for the docs.

Everything but the hops of a batch is read from the source; nothing of the package is imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from report import markdown_table, write_section

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "gluon_svrg"
DOCUMENT = ROOT / "docs" / "architecture.md"

# At version 0.1.0: cycle, share of Any, sizes and hops by these functions, the others by hand.
AT_0_1: dict[str, float | str] = {
    "modules in the largest import cycle": 6,
    "imports that run up the floors": 4,
    "files outside `_mxnet` that use private names of MXNet": 20,
    "`isinstance` tests for loaders outside data/": 16,
    "parameters annotated with `Any`": "33 %",
    "hops of one batch": "17 (20 by hand)",
}
LIMITS: dict[str, float] = {
    "modules in the largest import cycle": 0,
    "imports that run up the floors": 0,
    "files outside `_mxnet` that use private names of MXNet": 0,
    "`isinstance` tests for loaders outside data/": 2,
    "parameters annotated with `Any`": 5,
    "hops of one batch": 13,
}

WITHOUT_MXNET = {"linear"}
"""Rooms that no object of MXNet comes into, where a file does not import it."""

PRIVATE_NAMES = "_mxnet"
"""The room that may use private names of MXNet."""
SUBCLASSES = ("trainer", "optimizer")
"""The rooms that override MXNet's own hooks, and may name these on ``self`` and ``super()``."""
LATE = {"optimizer/no_decay.py": "mxnet.gluon"}
"""What else may be imported in a function: a server of a dist kvstore unpickles an optimizer in the
middle of its own ``import mxnet``, when there is no Gluon yet."""
TAKE_LOADERS = {"estimator", "handlers", "loop", "trainer", "svrg", "checkpoint", "run"}
"""The rooms whose data are what is iterated over; elsewhere they may be arrays."""
LOADERS = {"ArrayLoader", "DataLoader", "DataIter", "NDArrayIter"}
# What a distribution is imported as, where the two differ; what of MXNet needs an extra.
IMPORTED_AS = {"scikit-learn": {"sklearn"}, "pillow": {"PIL"}, "protobuf": {"google"}}
IMPORTED_AS |= {"mlflow-skinny": {"mlflow"}, "onnx": {"onnx", "mxnet.onnx"}}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported name: the module that is meant, where it stands, and whether in a function."""

    target: str
    line: int
    is_late: bool


class Module:
    """One file of the package: its dotted name without the package's, ``""`` for the package."""

    def __init__(self, name: str, source: str, is_package: bool = False) -> None:
        self.name = name
        self.is_package = is_package
        self.lines = source.count("\n") + (not source.endswith("\n"))
        self.tree = ast.parse(source)

    @property
    def room(self) -> str:
        """The folder or file at the package's top that it is, or is in."""
        return self.name.split(".")[0] or "__init__"

    @property
    def path(self) -> str:
        """Return the file's path in the package."""
        path = self.name.replace(".", "/")
        return f"{path}/__init__.py".lstrip("/") if self.is_package else f"{path}.py"

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


Package = Mapping[str, Module]


def read_package(folder: Path = ROOT / PACKAGE) -> Package:
    """Return the modules of the package in `folder` by name."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return {module.name: module for module in modules}


# --- Imports -----------------------------------------------------------------------------------


def imports_of(module: Module, package: Package) -> tuple[list[Import], list[Import]]:
    """Return the explicit imports of this package's modules, and all others.

    Those under ``if TYPE_CHECKING`` are left out: they are not there when the code runs.
    """
    inside, outside = [], []
    for node, is_late in _import_nodes(module.tree, False):
        for target in _targets(node, module):
            if target == PACKAGE or target.startswith(f"{PACKAGE}."):
                name = target.removeprefix(PACKAGE).removeprefix(".")
                while name and name not in package:  # the last part is a name in a module
                    name = name.rpartition(".")[0]
                inside.append(Import(name, node.lineno, is_late))
            else:
                outside.append(Import(target, node.lineno, is_late))
    return inside, outside


def _import_nodes(
    node: ast.AST, is_late: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_late
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _import_nodes(other, is_late)
        else:
            yield from _import_nodes(child, is_late or isinstance(child, Function | ast.Lambda))


def _targets(node: ast.Import | ast.ImportFrom, module: Module) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = [PACKAGE, *(module.name.split(".") if module.name else [])]
        parts = parts[: len(parts) - node.level + module.is_package]
        base = ".".join([*parts, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def import_cycle(package: Package) -> list[str]:
    """Return the modules of the largest import cycle; none where there is none."""
    graph = {
        name: {imp.target for imp in imports_of(module, package)[0] if not imp.is_late} - {name}
        for name, module in package.items()
    }
    reached = {name: _reachable(graph, name) for name in graph}
    cycles = [sorted(other for other in reached[name] if name in reached[other]) for name in graph]
    return max(cycles, key=len, default=[])


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


Floors = Mapping[str, int]


def read_floors(text: str) -> Floors:
    """Return the floor of each room, counted from the top, as a document's block ``floors`` has it.

    A line is a number and the rooms of that floor.
    """
    block = re.search(r"^```floors\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError("there is no block ```floors: give one, a line for each floor")
    floors: dict[str, int] = {}
    for line in block[1].splitlines():
        number, *rooms = line.split()
        floors |= dict.fromkeys(rooms, int(number))
    return floors


def uphill_imports(package: Package, floors: Floors) -> list[str]:
    """Return the imports that do not run down, and the rooms that have no floor.

    They run down, or stay in their room; on the ground, the last floor, they may go across.
    """
    missing = {module.room for module in package.values()} - set(floors)
    found = [f"{room} has no floor" for room in sorted(missing)]
    ground = max(floors.values())
    for module in package.values():
        for imp in imports_of(module, package)[0]:
            room, target = module.room, package[imp.target].room
            if room == target or {room, target} & missing:
                continue
            is_ground = floors[room] == floors[target] == ground
            if floors[room] >= floors[target] and not is_ground:
                found.append(f"{module.path}:{imp.line} imports {target}")
    return found


def late_imports(package: Package, extras: set[str]) -> list[str]:
    """Return the imports in functions of what is not an optional extra."""
    found = []
    for module in package.values():
        inside, outside = imports_of(module, package)
        for imp in [*inside, *outside]:
            names = {imp.target.split(".")[0], ".".join(imp.target.split(".")[:2])}
            if module.path in LATE and imp.target.startswith(LATE[module.path]):
                continue
            if imp.is_late and (imp in inside or not names & extras):
                found.append(f"{module.path}:{imp.line} imports {imp.target} in a function")
    return found


def optional_extras(pyproject: Path = ROOT / "pyproject.toml") -> set[str]:
    """Return what the optional extras are imported as."""
    extras = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    names = set()
    for requirement in chain.from_iterable(extras["optional-dependencies"].values()):
        name = re.split(r"[^\w-]", requirement)[0]
        names |= IMPORTED_AS.get(name, {name})
    return names - {"gluon-svrg"}


# --- Sizes -------------------------------------------------------------------------------------


# --- Private names of MXNet --------------------------------------------------------------------

# API for all that their underscore: of namedtuples, enums, ctypes and the interpreter.
_NOT_PRIVATE = {"_asdict", "_fields", "_make", "_replace", "_field_defaults", "_value_", "_exit"}
_NOT_PRIVATE |= {"_missing_", "_name_", "_generate_next_value_", "_fields_", "_"}


def private_names_of_mxnet() -> set[str]:
    """Return the names with one underscore that MXNet's Python source defines or sets."""
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("mxnet is not installed: its private names are read from it")
    defined = re.compile(r"(?:\bdef|\bclass) (_[a-zA-Z]\w*)|\.(_[a-zA-Z]\w*)\s*(?:,[^=\n]*)?=(?!=)")
    names = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        names |= {first or second for first, second in defined.findall(text)}
    return names - _NOT_PRIVATE


def own_names(module: Module) -> set[str]:
    """Return the private names that the module's own classes and functions define."""
    names = {node.name for node in [*module.functions, *module.classes]}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if _is_self(node.value):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def private_uses(package: Package, private: set[str]) -> dict[str, list[str]]:
    """Return the uses of MXNet's private names, by file; not of `PRIVATE_NAMES`.

    A use is an attribute ``x._name``, the same name as a string (for `getattr` or `vars`), or an
    import. A name that the module's own classes define is theirs; on ``self`` one that any class of
    the package defines. The `SUBCLASSES` may use any on ``self`` and ``super()``.
    """
    found = {}
    of_the_package = set().union(*map(own_names, package.values()))
    for module in package.values():
        others = [imp.target for imp in imports_of(module, package)[1]]
        if module.room == PRIVATE_NAMES or (
            module.room in WITHOUT_MXNET and not any(map(_is_of_mxnet, others))
        ):
            continue
        own = own_names(module)
        uses = [
            f"{module.path}:{line} {name}"
            for name, line, on_self in _underscored(module.tree)
            if name in private
            and name not in own
            and not (on_self and (name in of_the_package or module.room in SUBCLASSES))
        ]
        uses += [
            f"{module.path}:{imp.line} {imp.target}"
            for imp in imports_of(module, package)[1]
            if re.match(r"mxnet\..*\b_", imp.target)
        ]
        if uses:
            found[module.path] = uses
    return found


def _is_of_mxnet(target: str) -> bool:
    return target.split(".")[0] == "mxnet"


def _underscored(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr, node.lineno, _is_self(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno, False


# --- What is asked of data, and of types -------------------------------------------------------

_DATA = re.compile(r"(?:.*\.)?(?:train_|val_)?(?:data|loader|batches)")


def loader_tests(package: Package) -> list[str]:
    """Return the `isinstance` tests for a kind of loader outside of data/.

    Those for a list or a tuple count where the thing is called data, a loader or batches.
    """
    found = []
    for module in package.values():
        if module.room == "data":
            continue
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"):
                continue
            thing, kinds = (ast.unparse(argument) for argument in node.args)
            asked = set(re.findall(r"\w+", kinds))
            is_data = module.room in TAKE_LOADERS and _DATA.fullmatch(thing) is not None
            if asked & LOADERS or (is_data and asked & {"list", "tuple"}):
                found.append(f"{module.path}:{node.lineno} {ast.unparse(node)}")
    return found


def parameters(package: Package) -> list[tuple[str, bool]]:
    """Return all annotated parameters, and whether the name `Any` is in the annotation.

    ``self``, ``cls``, ``*args`` and ``**kwargs`` are left out.
    """
    found = []
    for module in package.values():
        for function in module.functions:
            args = function.args
            for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
                if arg.arg not in {"self", "cls"}:
                    annotation = "Any" if arg.annotation is None else ast.unparse(arg.annotation)
                    has_any = re.search(r"\bAny\b", annotation) is not None
                    found.append((f"{module.path}: {function.name}({arg.arg})", has_any))
    return found


def share_of_any(package: Package) -> float:
    """Return the share of parameters with `Any`, in percent."""
    found = parameters(package)
    return 100 * sum(has_any for _, has_any in found) / max(len(found), 1)


# --- The way of one batch ----------------------------------------------------------------------


def hops_of_a_batch(path: Path = ROOT) -> list[str]:
    """Return what one batch passes, in order, in a run with SVRG and a table: place:function.

    Traced, in a process of its own, on the third batch of an epoch of `Estimator.fit` over an
    ArrayLoader, from the loop's asking for it until the optimizer has used its gradient. The first
    place is the loop. Each call of a function in another place than its caller's is a hop; its
    caller is the nearest function of the package that is under way. A place is a room: a folder of
    the package, whose files are behind its door, or a file at its top; each handler is a place.
    Not places: `events`, which only hands on, and the rooms below (`arrays`, `_mxnet`, and others
    of the ground), which know no batch. Left out are the handlers but SVRG's and the one that
    steps, and what these call. Several calls of one function into one place, one directly after
    the other, are one hop.

    `path` is a checkout: that of version 0.1.0 gives 17. Counted by hand, with the functions of
    the loop itself and the dispatch of events, these were 20.
    """
    environment = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, __file__, "--trace"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise RuntimeError(f"the traced run failed:\n{result.stderr}")
    return result.stdout.split()


_NO_PLACES = {"events", "arrays", "_mxnet", "_compat", "arguments", "files", "encoding"}
_ON_THE_WAY = {"handlers/svrg", "handlers/full_pass", "handlers/step", "handlers/update"}


class _Trace:
    """A profile function that writes the hops down."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self.hops: list[str] = []
        self._last: tuple[int, str] | None = None

    def place(self, code: object) -> str | None:
        """Return the place of a code object; None outside of the package."""
        filename = code.co_filename  # type: ignore[attr-defined]
        if not filename.startswith(self._root):
            return None
        parts = Path(filename[len(self._root) :]).with_suffix("").parts
        return "/".join(parts[:2]) if parts[0] == "handlers" else parts[0]

    def __call__(self, frame: object, event: str, _: object) -> None:
        if event != "call":
            return
        place = self.place(frame.f_code)  # type: ignore[attr-defined]
        if place is None or place in _NO_PLACES:
            return
        caller = frame.f_back  # type: ignore[attr-defined]
        if place.startswith("handlers/") and place not in _ON_THE_WAY:
            return
        origin, activation = None, 0
        while caller is not None:
            found = self.place(caller.f_code)
            if found is not None and found not in _NO_PLACES:
                if found.startswith("handlers/") and found not in _ON_THE_WAY:
                    return
                if origin is None:
                    origin, activation = found, id(caller)
            caller = caller.f_back
        if origin is None or origin == place or (activation, place) == self._last:
            return
        self._last = (activation, place)
        self.hops.append(f"{place}:{frame.f_code.co_qualname}")  # type: ignore[attr-defined]


def _trace() -> None:
    """Print the places of a batch; runs in a process of its own."""
    sys.path.remove(str(Path(__file__).parent))
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np
    from mxnet import gluon

    trace = _Trace(Path(gs.__file__).parent)

    class Switch(gs.events.SafePoint, gs.events.BatchEnd):
        """Traces from the safe point before a batch to the first handler after its step."""

        priority = -1999.0
        safe_points = 0

        def safe_point(self, estimator: object, *args: object, **kwargs: object) -> None:
            self.safe_points += 1
            if self.safe_points == 3:  # the epoch's begin, two batches
                sys.setprofile(trace)

        def batch_end(self, estimator: object, *args: object, **kwargs: object) -> None:
            if self.safe_points == 3:
                sys.setprofile(None)

    x = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    loader = gs.data.ArrayLoader(x, x[:, :1], batch_size=8, seed=0)
    net = gluon.nn.Dense(1, in_units=5)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), mx.metric.MSE(), trainer=trainer)
    estimator.logger.disabled = True
    handlers = [gs.SVRGHandler(progress_bar=False), Switch()]
    estimator.fit(loader, epochs=1, event_handlers=handlers)
    print("loop:FitLoop", *trace.hops, file=sys.__stdout__)


# --- The table ---------------------------------------------------------------------------------


def measure(package: Package, floors: Floors) -> dict[str, float]:
    """Return every measure of `LIMITS` but the hops, which take a run."""
    return {
        "modules in the largest import cycle": len(import_cycle(package)),
        "imports that run up the floors": len(uphill_imports(package, floors)),
        "files outside `_mxnet` that use private names of MXNet": len(
            private_uses(package, private_names_of_mxnet())
        ),
        "`isinstance` tests for loaders outside data/": len(loader_tests(package)),
        "parameters annotated with `Any`": share_of_any(package),
    }


def table(measures: Mapping[str, float]) -> str:
    """Return the measures beside those of 0.1.0 and the limits, in Markdown."""
    rows = []
    for name, limit in LIMITS.items():
        unit = " %" if "Any" in name else ""
        digits = 1 if unit else 0
        rows.append((name, AT_0_1[name], f"{measures[name]:.{digits}f}{unit}", f"{limit}{unit}"))
    return markdown_table(["measure", "at 0.1", "now", "at most"], rows)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, help="the Markdown file to put the table into")
    options.add_argument("--list", action="store_true", help="name what is above a limit")
    options.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.trace:
        _trace()
        return
    package, floors = read_package(), read_floors(DOCUMENT.read_text(encoding="utf-8"))
    hops = hops_of_a_batch()
    text = table(measure(package, floors) | {"hops of one batch": len(hops)})
    print(text)
    if given.list:
        print("\n".join(["", " -> ".join(hops), *findings(package, floors)]))
    if given.out is not None:
        write_section(given.out, "shape", text)


def findings(package: Package, floors: Floors) -> list[str]:
    """Return everything that the checks find, a line each."""
    cycle = import_cycle(package)
    found = [f"import cycle: {' '.join(cycle)}"] if cycle else []
    found += uphill_imports(package, floors) + late_imports(package, optional_extras())
    found += chain.from_iterable(private_uses(package, private_names_of_mxnet()).values())
    return found + loader_tests(package)


if __name__ == "__main__":
    main()
