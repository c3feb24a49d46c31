"""Names of a package that are imported when they are first asked for (PEP 562).

MXNet takes two seconds to import, and :mod:`gluon_svrg.linear` does not need it. So the packages
that both of its users and those of MXNet pass through import nothing themselves. Which public names
they have, and from which module, is said once, in an ``__init__.pyi`` beside them, which type
checkers and editors read, too.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from gluon_svrg import _compat


def attach_stub(
    package: str,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package with an ``__init__.pyi``.

    Each name that the stub imports from a module is public; it imports modules of the package for
    type checkers alone. Parameters and the first two results are those of :func:`attach`.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    names = {
        alias.name: str(node.module)
        for node in imports
        if node.module != package
        for alias in node.names
    }
    return *attach(package, names), sorted(names)


def attach(
    package: str,
    names: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for the module `package`.

    What ``__getattr__`` has found stays in the module, so that it is asked once for a name. Beside
    `names` it finds the package's own modules: all of them were attributes when all were imported
    at once, and ``gluon_svrg.svrg.Interval`` is to work without an import of its own.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    names : mapping of str to str, optional
        The module, by its full name, that each public name stands in.

    Returns
    -------
    ``__getattr__``
        Raises AttributeError for a name that is not there, and ImportError, with the way out, for
        one that needs what is not installed.
    ``__dir__``
        The names that are there, without those that need what is not installed, so that what looks
        at all of them, as ``help()`` does, works without it.
    """
    module = sys.modules[package]
    names = names or {}

    def __getattr__(name: str) -> object:  # noqa: N807
        found: object
        if name in names:
            found = getattr(importlib.import_module(names[name]), name)
        elif _is_module(module, name):
            found = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, found)
        return found

    def __dir__() -> list[str]:  # noqa: N807
        modules = {m.name for m in pkgutil.iter_modules(module.__path__) if m.name[0] != "_"}
        places = {name: f"{package}.{name}" for name in modules} | dict(names)
        there = {name for name, place in places.items() if _compat.missing_for(place) is None}
        return sorted(there | vars(module).keys())

    return __getattr__, __dir__


def _is_module(package: ModuleType, name: str) -> bool:
    """Return whether `package` has a module of this name in its folder.

    Asked without the finders that raise where something is not installed: IPython and others ask
    any object for names such as ``_repr_html_``.
    """
    if not name.isidentifier() or name.startswith("__"):
        return False
    full = f"{package.__name__}.{name}"
    return importlib.machinery.PathFinder.find_spec(full, package.__path__) is not None


class PackageWithFunctions(ModuleType):
    """A package in which a module has the name of the public function that it defines.

    Python binds each module that it imports in its package, which would hide the function behind
    the module as soon as anybody imports that.
    """

    def __setattr__(self, name: str, value: object) -> None:
        """Bind `value`; a module with a public thing of its own name gives way to that."""
        if isinstance(value, ModuleType) and name in self.__all__:
            value = getattr(value, name)
        super().__setattr__(name, value)
