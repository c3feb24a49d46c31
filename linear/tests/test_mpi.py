"""Fits on the rows of several ranks of MPI: the same bits for the same parts, and one message."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from far_cases import Alone
from provenglm import Distributed, GLMClassifier, GLMClassifierCV

PROGRAM = Path(__file__).with_name("mpi_fit.py")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@cache
def run(what, ranks):
    """Return what the program prints with so many ranks."""
    pytest.importorskip("mpi4py", reason="MPI needs the extra 'mpi'")
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    paths = [str(Path(sys.modules["provenglm"].__file__).parents[1]), os.environ.get("PYTHONPATH")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    command = [MPIEXEC, "-n", str(ranks), sys.executable, str(PROGRAM), what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.long
def test_the_bits_depend_on_the_parts_alone():
    one, two, three = (run("fits", ranks) for ranks in (1, 2, 3))
    assert one == two == three
    for name, found in one.items():
        assert found["gap"] <= 1e-8, name
        assert found["above"] <= 1e-12, name
        assert found["apart"] <= 1e-4, name
        assert abs(found["score"]) <= 1e-6, name


MESSAGES = {
    "NaN in X": "{}: X has NaN in row 5, column 2",
    "NaN in y": "{}: y has nan in row 7|{}: y has NaN in row 7",
    "length": "{}: y has ",
    "weights": "{}: sample_weight is -1 in row 0",
    "negative": "{}: y is -1 in row 0",
    "width": "{}: X has 5 columns, and another part has 6",
    "dtype": "{}: X is of float32, and another part is of float64",
    "labels": "y has labels of several types",
    "one class": "y has the one class 0 in its 6000 rows",
    "no weights": "sample_weight is zero in all 6000 rows",
    "all zero": "y is 0 in every row",
    "huber": "loss='huber' estimates its scale",
    "a later read": "{}: OSError('the disk is gone')",
    "no rows": "X has no rows",
}


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_fault_is_one_message_on_all_ranks(ranks):
    found = run("faults", ranks)
    assert set(found) == set(MESSAGES)
    for name, message in found.items():
        starts = MESSAGES[name].format(*2 * [f"rank {ranks - 1}"]).split("|")
        assert message.startswith(tuple(starts)), (name, message)


@pytest.mark.full
def test_small_data_are_solved_in_one_process():
    assert run("small", 2) == {"solver": "newton-cholesky"}


def some_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    return X, X[:, 0] + rng.logistic(size=300) > 0


def test_one_rank_needs_no_mpi4py():
    X, y = some_rows()
    far = GLMClassifier(tol=1e-10).fit(Distributed(X, Alone()), y)
    near = GLMClassifier(tol=1e-10).fit(X, y)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-6)
    assert far.n_features_in_ == 3
    assert far.score(X, y) == near.score(X, y)


def test_columns_of_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = some_rows()
    frame = pandas.DataFrame(X, columns=list("abc"))
    model = GLMClassifier().fit(Distributed(frame, Alone()), pandas.Series(y))
    assert list(model.feature_names_in_) == list("abc")


def test_only_a_fit_takes_rows_of_other_processes():
    X, y = some_rows()
    far = Distributed(X, Alone())
    model = GLMClassifier().fit(far, y)
    with pytest.raises(TypeError, match="rows of other processes"):
        model.predict(far)
    with pytest.raises(TypeError, match="rows of other processes"):
        GLMClassifierCV().fit(far, y)


def test_sparse_rows_with_too_many_columns_are_refused(monkeypatch):
    from provenglm import constants
    from scipy.sparse import random_array

    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    monkeypatch.setattr(constants, "MOST_WEIGHTS", 10)
    X = random_array((300, 20), density=0.2, format="csr", random_state=np.random.default_rng(0))
    with pytest.raises(ValueError, match="sparse with 20 columns"):
        GLMClassifier().fit(Distributed(X, Alone()), some_rows()[1])


def test_without_mpi4py_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"pip install 'provenglm\[mpi\]'"):
        Distributed(np.ones((2, 1)))
