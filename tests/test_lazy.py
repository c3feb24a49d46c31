"""What is imported when: each name when it is asked for, and MXNet only for those that need it."""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import gluon_svrg as gs
import pytest
from gluon_svrg import _compat, _lazy

pytestmark = pytest.mark.full

PACKAGE = Path(gs.__file__).parent
# A package whose names are imported on demand has a stub with them.
STUBS = sorted(PACKAGE.glob("*/__init__.pyi"))
LAZY = {gs.__name__: gs} | {
    package.__name__: package for package in (getattr(gs, stub.parent.name) for stub in STUBS)
}


def python(code, **environ):
    """What `code` prints in a new interpreter that has none of our OMP_NUM_THREADS."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | environ
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def blocked(*modules):
    """Code after which none of `modules` can be imported, as if they were not installed."""
    return "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in modules)


@pytest.mark.parametrize(("name", "package"), LAZY.items(), ids=LAZY)
def test_the_names_of_a_package_are_those_of_its_stub(name, package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    # Without "as" a type checker takes an imported name for the stub's own.
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    for node in imports:
        for alias in node.names:
            found = getattr(package, alias.name)
            assert inspect.ismodule(found) == (node.module == name)
            assert (alias.name in package.__all__) == (node.module != name)


@pytest.mark.parametrize(("name", "package"), LAZY.items(), ids=LAZY)
def test_every_name_is_found_and_listed(name, package):
    found = {thing: getattr(package, thing) for thing in package.__all__}
    assert set(package.__all__) <= set(dir(package))
    space = {}
    exec(f"from {name} import *", space)
    assert {thing: space[thing] for thing in found} == found


def without_mxnet():
    """Every module that shall do without MXNet."""
    modules = {f"gluon_svrg.{name}" for name in _compat.WITHOUT_MXNET}
    return sorted(modules)


def test_what_does_without_mxnet():
    modules = without_mxnet()
    code = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
    code += "from gluon_svrg.svrg import correct\nfrom gluon_svrg.linear import *\n"
    code += "print(GLMClassifier.__name__, sys.modules.get('mxnet'))"
    assert python(code) == "GLMClassifier None"
    assert python(blocked("mxnet", "setuptools") + code) == "GLMClassifier None"


def test_a_process_without_mxnet_keeps_its_threads():
    """joblib hands OMP_NUM_THREADS on to each of its workers, where it is set."""
    code = (
        # scikit-learn sets two variables of its own.
        "import os, sklearn\nbefore = dict(os.environ)\nimport gluon_svrg.linear\n"
        "assert dict(os.environ) == before\nimport mxnet\nprint(os.environ['OMP_NUM_THREADS'])"
    )
    assert python(code) == str(len(os.sched_getaffinity(0)))


def test_every_module_is_an_attribute():
    """As when all of them were imported at once, in any order."""
    files = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    modules = {".".join(f.parts) for f in files if not f.name.startswith("__")}
    modules.remove("linear.to_gluon")  # `linear` is imported without it, and without MXNet
    assert len(modules) > 100
    # Each package answers for its own modules, or imports all of them: no other has to come first.
    for package in {name.rpartition(".")[0] for name in modules} - {"", "data.transforms"}:
        assert "__getattr__" in vars(attrgetter(package)(gs)), package
    code = f"import gluon_svrg as gs\nfor name in {sorted(modules)}: eval(f'gs.{{name}}')"
    python(code)


@pytest.mark.parametrize(
    "first",
    ["from gluon_svrg.summary import summary", "import gluon_svrg.estimator", "gluon_svrg.Monitor"],
)
def test_summary_is_the_function_wherever_its_module_is_imported(first):
    code = f"import gluon_svrg\n{first}\nimport gluon_svrg.summary\n"
    code += "print(gluon_svrg.summary is sys.modules['gluon_svrg.summary'].summary)"
    assert python("import sys\n" + code) == "True"


def test_only_a_module_of_a_public_name_gives_way():
    package = _lazy.PackageWithFunctions("package")
    package.__all__ = ["add"]
    operator = ModuleType("package.add")
    operator.add = len
    package.other, package.add = operator, 1
    assert (package.other, package.add) == (operator, 1)
    package.add = operator
    assert package.add is len


# --- What is not installed ---------------------------------------------------------------------

NEEDS_MXNET = [
    "import gluon_svrg; gluon_svrg.Estimator",
    "from gluon_svrg import SVRGTrainer",
    "from gluon_svrg import *",
    "import gluon_svrg.svrg.trainer",
    "from gluon_svrg.svrg import Interval",
    "import gluon_svrg.svrg.interval",
    "import gluon_svrg as gs; gs.data",
    "import gluon_svrg.linear.to_gluon",
]


@pytest.mark.parametrize("use", NEEDS_MXNET)
def test_what_needs_mxnet_says_so(use):
    code = f"try:\n {use}\nexcept ImportError as error:\n print(error)"
    if "*" in use:
        code = f"try:\n exec({use!r})\nexcept ImportError as error:\n print(error)"
    said = python(blocked("mxnet") + code)
    assert said.startswith("gluon_svrg needs MXNet 1.9.1, which is not installed for Python 3."), (
        said
    )
    assert said.endswith(f"`pip install {_compat.MXNET_TO_INSTALL}`")


@pytest.mark.parametrize(
    "use",
    ["import gluon_svrg.linear", "import gluon_svrg as gs; gs.linear",
     "from gluon_svrg.linear import GLMClassifier", "import gluon_svrg.linear.losses"],
)  # fmt: skip
def test_what_needs_provenglm_says_so(use):
    code = f"try:\n {use}\nexcept ImportError as error:\n print(error)"
    assert python(blocked("provenglm") + code) == (
        "gluon_svrg.linear needs provenglm, which is not installed: `pip install ./linear` in a "
        "checkout of gluon-svrg"
    )


@pytest.mark.parametrize("missing", ["mxnet", "provenglm"])
def test_who_looks_at_all_names_meets_no_error(missing):
    """help() asks for all that dir() names; IPython asks any object for names such as this one."""
    code = blocked(missing) + "import gluon_svrg as gs, inspect, pydoc\n"
    code += "print(hasattr(gs, '_repr_html_'), 'linear' in dir(gs), 'Estimator' in dir(gs))\n"
    code += "inspect.getmembers(gs); pydoc.plain(pydoc.render_doc(gs))"
    is_mxnet = missing == "mxnet"
    assert python(code) == f"False {is_mxnet} {not is_mxnet}"


def test_names_that_are_no_modules():
    for name in ("other", "a.b", "__wrapped__", "_ipython_canary_method"):
        with pytest.raises(AttributeError, match=rf"module 'gluon_svrg' has no attribute '{name}'"):
            getattr(gs, name)
    with pytest.raises(AttributeError, match=r"module 'gluon_svrg\.svrg' has no attribute 'other'"):
        gs.svrg.other  # noqa: B018


# --- MXNet's import ----------------------------------------------------------------------------


def test_mxnet_is_as_it_always_was():
    """Its own loader finds its source; what is put right in it is there without a name of ours."""
    code = (
        "import importlib.util, inspect, sys\nimport gluon_svrg\n"
        "spec = importlib.util.find_spec('mxnet')\n"
        "assert spec.origin.endswith('__init__.py') and 'mxnet' not in sys.modules\n"
        "assert spec.loader.get_filename() == spec.origin\n"
        "import mxnet\n"
        "assert type(mxnet.__spec__.loader).__module__ == 'importlib._bootstrap_external' "
        "or 'rozen' in repr(mxnet.__spec__.loader), mxnet.__spec__.loader\n"
        "assert mxnet.__loader__ is mxnet.__spec__.loader\n"
        "assert 'MXNet' in inspect.getsource(mxnet)\n"
        "assert 'gluon_svrg._mxnet' in sys.modules and 'gluon_svrg.estimator' not in sys.modules\n"
        "print(mxnet.nd.zeros((2, 3)).shape)"
    )
    assert python(code) == "(2, 3)"


def test_optimizers_of_this_package_are_found_by_name():
    code = (
        "import gluon_svrg as gs, mxnet as mx\n"
        "net = mx.gluon.nn.Dense(1, in_units=2); net.initialize()\n"
        "for name in ('lars', 'signum', 'mars'):\n"
        " trainer = gs.SVRGTrainer(net.collect_params(), name)\n"
        " print(type(trainer.optimizer).__module__)"
    )
    modules = ("lars", "signum", "mars")
    assert python(code).split() == [f"gluon_svrg.optimizer.{module}" for module in modules]


def test_things_are_pickled():
    for thing in (gs.Estimator, gs.summary, gs.svrg.correct, gs.linear_decay):
        assert pickle.loads(pickle.dumps(thing)) is thing
    text = pickle.dumps(gs.StopReason)
    code = f"import pickle; print(pickle.loads({text!r}).__module__)"
    assert python(code) == gs.StopReason.__module__
