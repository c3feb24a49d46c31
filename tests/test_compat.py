"""MXNet 1.9.1 on NumPy 1.26: aliases, cores, and the sentence for NumPy 2."""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gluon_svrg import _compat

CORES = len(os.sched_getaffinity(0))


def python(code, **environ):
    """Run `code` in a new interpreter whose environment has no OMP_NUM_THREADS of ours."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | environ
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["2.0.0", "2.1.3", "10.0"])
def test_numpy_2_gets_one_clear_sentence(version):
    with pytest.raises(ImportError, match=rf"needs NumPy 1.x, found NumPy {version}: .*1.26.4`$"):
        _compat.check_numpy_version(version)


def test_numpy_2_is_refused_before_mxnet_is_imported():
    code = "import numpy; numpy.__version__ = '2.0.1'\nimport gluon_svrg"
    result = python(code)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("ImportError: gluon_svrg needs NumPy 1.x")


def test_numpy_1_is_taken():
    _compat.check_numpy_version("1.23.5")
    _compat.check_numpy_version(np.__version__)


def test_removed_aliases_are_put_back_and_others_left():
    module = ModuleType("numpy")
    module.bool = "its own"
    _compat.restore_numpy_aliases(module)
    assert module.bool == "its own"
    assert (module.int, module.float, module.object) == (int, float, object)


def test_the_import_alone_makes_mxnet_importable():
    result = python("import gluon_svrg, mxnet; print(mxnet.__version__)")
    assert (result.returncode, result.stdout.strip()) == (0, "1.9.1"), result.stderr


def test_mxnet_alone_is_not_importable():
    """The reason for it all; should this fail, MXNet or NumPy has changed."""
    assert "module 'numpy' has no attribute 'bool'" in python("import mxnet").stderr


@pytest.mark.parametrize(("given", "expected"), [(None, str(CORES)), ("1", "1"), ("7", "7")])
def test_every_core_is_used_unless_the_user_says_otherwise(given, expected):
    environ = {} if given is None else {"OMP_NUM_THREADS": given}
    code = "import gluon_svrg, os; print(os.environ['OMP_NUM_THREADS'])"
    assert python(code, **environ).stdout.strip() == expected


# As on an older NumPy, which still has the aliases.
MXNET_FIRST = "import numpy as n; n.bool, n.int, n.float, n.object = bool, int, float, object\n"


def test_mxnet_first_works_and_is_told_about_the_cores():
    code = MXNET_FIRST + "import mxnet, gluon_svrg; print(gluon_svrg.SVRGTrainer.__name__)"
    result = python(code)
    assert result.stdout.strip() == "SVRGTrainer", result.stderr
    told = "mxnet was imported before gluon_svrg and uses half of the" in result.stderr
    assert told == (CORES > 1)
    quiet = python(code, OMP_NUM_THREADS=str(CORES))
    assert "mxnet was imported before" not in quiet.stderr


def test_threads_without_a_loaded_mxnet(recwarn):
    environ = {}
    _compat.use_every_core(environ, mxnet_is_loaded=False)
    assert environ["OMP_NUM_THREADS"] == str(CORES)
    assert not recwarn.list


# As documents and recipes of version 0.1 named it, and one of each folder.
@pytest.mark.parametrize(("old", "new"), _compat.MOVED.items())
def test_a_module_is_still_found_by_its_name_of_0_1(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, f"gluon_svrg.{old}", raising=False)
    message = rf"gluon_svrg\.{old} is gluon_svrg\.{new} since version 0\.2: import it by that name"
    with pytest.warns(DeprecationWarning, match=message) as warned:
        module = importlib.import_module(f"gluon_svrg.{old}")
    assert module is importlib.import_module(f"gluon_svrg.{new}")
    assert module.__name__ == module.__spec__.name == f"gluon_svrg.{new}"
    assert len(warned) == 1


def test_what_the_how_to_of_0_1_imports(tmp_path):
    """In a file of its own: the warning names the user's line."""
    script = tmp_path / "script.py"
    script.write_text(
        "from gluon_svrg.history import MEASURED\n"
        "import gluon_svrg\n"
        "assert gluon_svrg.history.MEASURED is gluon_svrg.run.history.MEASURED is MEASURED\n"
        "print(gluon_svrg.monitor.Monitor is gluon_svrg.Monitor)\n"
    )
    result = python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
    assert f"{script}:1: DeprecationWarning: gluon_svrg.history is gluon_svrg.run" in result.stderr


def test_names_that_never_were_are_not_found():
    import gluon_svrg

    with pytest.raises(ModuleNotFoundError, match=r"No module named 'gluon_svrg\.other'"):
        importlib.import_module("gluon_svrg.other")
    with pytest.raises(AttributeError, match=r"module 'gluon_svrg' has no attribute 'other'"):
        gluon_svrg.other  # noqa: B018


ROOT = Path(__file__).parent.parent


def test_the_version_stands_in_one_place(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _compat.version_of_checkout(ROOT) == project["version"]
    assert _compat.version_of_checkout(tmp_path) == "unknown"
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_checkout_that_is_not_installed_has_a_version(monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    assert _compat.version() == _compat.version_of_checkout(ROOT)
