"""MXNet 1.9.1 on today's Python and NumPy: removed names, text of parameters, cores."""

import ast
import ctypes
import importlib
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import _compat, _cores
from gluon_svrg._mxnet import numpy_2
from gluon_svrg._mxnet.numpy_2 import text_of
from mxnet import gluon

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

pytestmark = pytest.mark.full

CORES = len(os.sched_getaffinity(0))


def python(code, **environ):
    """Run `code` in a new interpreter whose environment has no OMP_NUM_THREADS of ours."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | environ
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def test_only_what_is_missing_is_put_back():
    """In a new interpreter, with NumPy as it was before and after the import."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import numpy\n"
        "before = dict(vars(numpy))\n"
        "import gluon_svrg._compat as c\n"
        "added = c.NAMES_PUT_BACK\n"
        "assert {'int', 'float', 'object'} <= set(added), added\n"
        "assert not set(added) & set(before), set(added) & set(before)\n"
        "changed = [n for n in before if vars(numpy)[n] is not before[n]]\n"
        "assert changed == [], changed\n"
        "values = {n: vars(numpy).pop(n) for n in added}\n"
        "assert not [n for n in added if hasattr(numpy, n)]\n"
        "assert [n for n in c.removed_names(numpy) if hasattr(numpy, n)]\n"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_what_numpy_has_stays():
    """NumPy 2 has numpy.bool again, as a type of its own: numpy.ma breaks with Python's."""
    module = ModuleType("numpy")
    module.bool = module.trapz = "its own"
    assert "bool" not in _compat.restore_numpy_names(module)
    assert module.bool == module.trapz == "its own"
    assert (module.int, module.float, module.object) == (int, float, object)
    assert (-np.inf, 0.0) == (module.NINF, module.PZERO)
    assert np.isnan([module.NAN, module.NaN]).all()
    assert np.signbit(module.NZERO)
    assert isinstance("text", module.compat.basestring)


def test_the_functions_that_were_removed():
    names = _compat.removed_names(np)
    x, y = np.array([[3.0, 1.0], [2.0, 0.0]]), np.array([1.0, 3.0])
    assert names["alltrue"](x, axis=0).tolist() == [True, False]
    assert names["sometrue"](x - 3, axis=1).tolist() == [True, True]
    assert names["product"](y) == 3
    assert names["round_"](y / 3, 1).tolist() == [0.3, 1.0]
    assert names["msort"](x).tolist() == [[2.0, 0.0], [3.0, 1.0]]
    assert names["in1d"](x, y).tolist() == [True, True, False, False]
    assert names["in1d"](x, y, invert=True).tolist() == [False, False, True, True]
    with pytest.raises(NotImplementedError, match=r"numpy\.pmt was removed .*numpy-financial"):
        names["pmt"](1, 2, 3)


@pytest.mark.skipif(not NUMPY_2, reason="NumPy 1 has no trapezoid; its trapz stays")
def test_trapz_is_numpys_trapezoid():
    assert _compat.removed_names(np)["trapz"]([1.0, 3.0]) == 2


def test_the_name_of_numpys_own_function_is_not_taken():
    """MXNet looks its version of a function up by the function: numpy.any has to be its any."""
    for name in ("alltrue", "sometrue", "round_"):
        assert _compat.removed_names(np)[name] is not getattr(np, name, None)
    assert mx.np.array([1, 0]).__array_function__
    ours = np.any(mx.np.array([1, 0]))
    assert isinstance(ours, mx.np.ndarray)
    assert ours.item() is True or ours.item() == 1


class Two(int):
    """An integer that prints as ``numpy.int64(2)`` of NumPy 2 does, on NumPy 1 as well."""

    def __repr__(self):
        return "np.int64(2)"


def test_text_of_parameters():
    assert text_of((Two(2), 3, None)) == "(2, 3, None)"
    assert text_of([(Two(2),), 0.5]) == "[(2,), 0.5]"
    assert text_of("np.int64(2)") == "np.int64(2)"  # a user's own text stays
    assert text_of((np.float64(0.375), np.float32(0.1), np.bool_(True), np.inf)) == (
        "(0.375, 0.1, True, inf)"
    )
    assert [text_of(value) for value in (1.5, True, None, "float32", np.float32(0.1))] == [
        "1.5", "True", "None", "float32", "0.1",
    ]  # fmt: skip


def test_shapes_of_numpys_integers_reach_the_library():
    """As on NumPy 1: the library reads "(2, 3)", not "(np.int64(2), 3)"."""
    two, three = np.int64(2), np.int64(3)
    assert mx.nd.zeros((two, three)).shape == (2, 3)
    assert mx.nd.random.uniform(shape=(two, 3)).shape == (2, 3)
    net = gluon.nn.Conv2D(three, kernel_size=(three, three), in_channels=two)
    net.initialize()
    net.hybridize()
    assert net(mx.nd.ones((two, two, 4, 4))).shape == (2, 3, 2, 2)
    symbol = mx.sym.FullyConnected(mx.sym.var("x", shape=(two, three)), num_hidden=three)
    assert symbol.infer_shape()[1] == [(2, 3)]


def test_the_text_is_made_in_each_place(monkeypatch):
    """The seed: `Invalid Parameter format for shape ... '(np.int64(2), 3)'` without it."""
    for module in (mx._ctypes.ndarray, mx._ctypes.symbol, mx.io.io, mx.symbol.symbol):
        monkeypatch.setitem(vars(module), "str", str)
    with pytest.raises(mx.MXNetError, match=r"np\.int64\(2\), 3"):
        mx.nd.zeros((Two(2), 3))
    with pytest.raises(mx.MXNetError, match=r"np\.int64\(2\)"):
        mx.sym.zeros(shape=(Two(2), 3))
    numpy_2.print_scalars_as_numpy_1()
    assert mx.nd.zeros((Two(2), 3)).shape == (2, 3)
    assert mx.sym.zeros(shape=(Two(2), 3)).infer_shape()[1] == [(2, 3)]
    assert mx.sym.var("x", shape=(Two(2), 3)).attr("__shape__") == "(2, 3)"
    assert isinstance("backend", mx.symbol.symbol.str)
    assert not isinstance(2, mx.symbol.symbol.str)


def test_figures_are_plain_numbers():
    """MXNet's metrics give NumPy's, which NumPy 2 prints as np.float64(0.375)."""
    net = gluon.nn.Dense(2)
    net.initialize()
    estimator = gs.Estimator(
        net,
        gluon.loss.SoftmaxCELoss(),
        train_metrics=[mx.metric.Accuracy(), mx.metric.Loss()],
        trainer=gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": np.float64(0.1)}),
    )
    batches = [(mx.nd.ones((4, 3)), mx.nd.array([0, 1, 1, 0]))] * 2
    row = estimator.fit(batches, batches, epochs=1).history[0]
    assert row.pop("complete") is True
    assert {type(value) for value in row.values()} <= {int, float}, row
    assert "validation accuracy" in row
    assert {type(value) for value in estimator.evaluate(batches).values()} == {float}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("mxnet", "gluon_svrg needs MXNet 1.9.1, which is not installed for Python 3."),
        ("setuptools", "MXNet 1.9.1 imports distutils, which Python 3.12 removed and setuptools"),
    ],
)
def test_what_is_not_installed_gets_one_clear_sentence(missing, message):
    code = (
        "import sys, numpy\n"
        f"sys.modules[{missing!r}] = sys.modules['distutils'] = None\n"
        "import gluon_svrg\n"
        "gluon_svrg.Estimator\n"
    )
    result = python(code)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {message}"), result.stderr
    assert last.endswith(
        f"`pip install {_compat.MXNET_TO_INSTALL if missing == 'mxnet' else missing}`"
    )


def test_how_mxnet_is_installed():
    """Its metadata ask for NumPy 1, which has no wheel for Python 3.13."""
    assert _compat.MXNET_TO_INSTALL.endswith("mxnet==1.9.1")
    assert ("--no-deps" in _compat.MXNET_TO_INSTALL) == (sys.version_info >= (3, 13))


def test_the_import_alone_makes_mxnet_importable():
    result = python("import gluon_svrg, mxnet; print(mxnet.__version__)")
    assert (result.returncode, result.stdout.strip()) == (0, "1.9.1"), result.stderr


SLOW = "import sys; print([name in sys.modules for name in ('sklearn', 'scipy.stats')])\n"
FIRST = "import mxnet as mx; print(mx.model.FeedForward.__base__.__name__)\n"


def test_mxnet_is_imported_without_what_is_slow_and_has_it_when_it_is_used():
    code = (
        f"import gluon_svrg\n{FIRST}{SLOW}"
        "assert mx.contrib.quantization.stats is not None\n"
        "import inspect; inspect.getmembers(mx.test_utils); inspect.unwrap(mx.test_utils.ss)\n"
        f"{SLOW}print(mx.test_utils.ss.norm.ppf(0.5), mx.contrib.quantization.stats.norm.cdf(0))\n"
        "import scipy.stats; assert scipy.stats.norm is mx.test_utils.ss.norm\n"
        "make, given = mx.test_utils.ss.__reduce__()\n"
        "assert make(*given) is scipy.stats\n"
        "import sklearn.base\n"
    )
    result = python(code)
    lines = ["object", "[False, False]", "[False, False]", "0.0 0.5"]
    assert result.stdout.splitlines() == lines, result.stderr


@pytest.mark.parametrize("before", ["", "import faulthandler; faulthandler.enable()"])
def test_a_segmentation_fault_is_seen_from_outside(before):
    """MXNet's own handler would end the process by exit(255)."""
    crash = "import os; os.kill(os.getpid(), 11)"
    result = python(f"{before}\nimport gluon_svrg, mxnet; {crash}", PYTHONWARNINGS="ignore")
    assert result.returncode == -11
    assert ("Fatal Python error: Segmentation fault" in result.stderr) == bool(before)


def test_mxnet_takes_what_is_slow_where_it_is_there_already():
    code = f"import sklearn.base, scipy.stats, gluon_svrg\n{FIRST}"
    result = python(code + "print(mx.test_utils.ss is scipy.stats)")
    assert result.stdout.splitlines() == ["BaseEstimator", "True"], result.stderr


def test_without_scipy_quantization_says_so_as_ever():
    code = "import sys; sys.modules['scipy'] = None\nimport gluon_svrg, mxnet as mx\n"
    result = python(code + "print(mx.contrib.quantization.stats, mx.test_utils.ss)")
    assert result.stdout.strip() == "None None", result.stderr


def test_only_the_thread_that_imports_mxnet_goes_without(monkeypatch):
    finder = _compat.ImportHook()
    assert finder.find_spec("sklearn", None) is None
    monkeypatch.setattr(_compat.ImportHook, "importing_mxnet", threading.get_ident())
    for name in _compat.SLOW_TO_IMPORT:
        with pytest.raises(ModuleNotFoundError, match="is not for MXNet's import"):
            finder.find_spec(name, None)
    assert finder.find_spec("scipy", None) is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(finder.find_spec, "sklearn", None).result() is None


def test_other_threads_may_import_what_is_slow_meanwhile():
    """With setuptools' finder of distutils this was a deadlock, now and then.

    One thread imports both, and SciPy itself is there before: Python lets a thread continue with a
    package that another has just imported before it is an attribute of its parent, and SciPy's
    own ``scipy._lib.doccer`` then fails, now and then, without MXNet as well.
    """
    code = (
        "import threading, gluon_svrg, scipy\n"
        "def import_both(): import scipy.stats, sklearn.linear_model\n"
        "thread = threading.Thread(target=import_both)\n"
        "thread.start()\n"
        "import mxnet, sys\n"
        "thread.join()\n"
        "assert {'scipy.stats', 'sklearn.linear_model'} <= set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (result.returncode, result.stderr.count(b"Error")) == (0, 0), result.stderr


def test_mxnet_alone_is_not_importable():
    """The reason for it all; should this fail, MXNet or NumPy has changed."""
    error = python("import mxnet").stderr
    assert re.search("no attribute 'bool'|np.PZERO|No module named 'distutils'", error), error


@pytest.mark.parametrize(("given", "expected"), [(None, str(CORES)), ("1", "1"), ("7", "7")])
def test_every_core_is_used_unless_the_user_says_otherwise(given, expected):
    environ = {} if given is None else {"OMP_NUM_THREADS": given}
    code = "import gluon_svrg, mxnet, os; print(os.environ['OMP_NUM_THREADS'])"
    assert python(code, **environ).stdout.strip() == expected


# As on an older NumPy, which still has the aliases.
MXNET_FIRST = "import numpy as n; n.bool, n.int, n.float, n.object = bool, int, float, object\n"


@pytest.mark.skipif(
    NUMPY_2 or sys.version_info >= (3, 12), reason="MXNet does not import first here"
)
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
    _cores.use_every_core(environ, mxnet_is_loaded=False)
    assert environ["OMP_NUM_THREADS"] == str(CORES)
    assert not recwarn.list


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


def test_images_are_packed_without_tostring(monkeypatch):
    """The seed: `'numpy.ndarray' object has no attribute 'tostring'` on NumPy 2.3."""
    image = np.full((8, 8, 3), 7, "uint8")
    cv2 = mx.recordio.cv2
    encoded = cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 9])[1]
    monkeypatch.setitem(vars(mx.recordio), "cv2", numpy_2._OpenCV(mx.recordio.cv2))
    header = mx.recordio.IRHeader(0, 1.0, 0, 0)
    packed = mx.recordio.pack_img(header, image, quality=9, img_fmt=".png")
    assert packed == mx.recordio.pack(header, encoded.tobytes())
    assert (mx.recordio.unpack_img(packed)[1] == image).all()


def test_thresholds_that_are_arrays_with_one_number():
    """The seed: `only 0-dimensional arrays can be converted to Python scalars` on NumPy 2.5."""
    values = [np.array([0.5], "float32"), 2.0, np.float32(3)]
    assert list(numpy_2.c_array_of_numbers(ctypes.c_float, values)) == [0.5, 2.0, 3.0]


def test_a_metric_in_words():
    metric = mx.metric.Accuracy()
    metric.update(mx.nd.array([0, 1]), mx.nd.array([[1, 0], [1, 0]]))
    assert str(metric) == "EvalMetric: {'accuracy': 0.5}"


def test_no_function_is_registered_for_a_union():
    # singledispatch takes a union in an annotation from Python 3.11 on.
    for path in Path(gs.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.args.args:
                bare = [getattr(decorator, "attr", "") for decorator in node.decorator_list]
                annotation = node.args.args[0].annotation
                assert "register" not in bare or not isinstance(annotation, ast.BinOp), path
