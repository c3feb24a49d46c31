"""What `make upstream` reads and compares; the scripts themselves run from checkouts only."""

import importlib
import json
import sys
from pathlib import Path

import pytest

UPSTREAM = Path(__file__).parent / "upstream"


@pytest.fixture(scope="module")
def suite():
    """The modules `source`, `catalogue` and `run` of the suite."""
    sys.path.insert(0, str(UPSTREAM))
    try:
        import catalogue
        import run
        import source

        yield {"catalogue": catalogue, "run": run, "source": source}
    finally:
        sys.path[:] = [path for path in sys.path if path != str(UPSTREAM)]


CHAPTER = """
Text with `code` in it.

```{.python .input}
%matplotlib inline
from mxnet import gluon
```

```{.python .input}
#@tab pytorch
import torch
```

```{.python .input  n=7}
#@tab mxnet, tensorflow
trainer = gluon.Trainer(net.collect_params(), 'sgd')
```

```{.python .input}
#@tab all
d2l.train_ch3(net, train_iter, test_iter, loss, num_epochs, trainer)
```

```bash
pip install d2l
```
"""


def test_the_code_of_a_chapter_is_that_of_its_mxnet_tab(suite, tmp_path):
    page = tmp_path / "chapter_one" / "lenet.md"
    page.parent.mkdir()
    page.write_text(CHAPTER)
    code = suite["source"].code_of(page)
    assert "gluon.Trainer" in code
    assert "train_ch3" in code
    for other in ("torch", "%matplotlib", "pip"):
        assert other not in code
    compile(code, "lenet", "exec")
    (script,) = suite["catalogue"].chapters(tmp_path)
    assert script.path == "chapter_one/lenet.md"
    # One that trains nothing is not among them.
    page.write_text(CHAPTER.replace("gluon.Trainer(", "print(").replace("d2l.train_ch3(", "print("))
    assert list(suite["catalogue"].chapters(tmp_path)) == []


def test_the_code_of_a_notebook_is_that_of_its_cells(suite, tmp_path):
    notebook = tmp_path / "a.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["import no"]},
        {"cell_type": "code", "source": ["!pip install x\n", "a = 1"]},
        {"cell_type": "code", "source": ["from __future__ import division\n", "b = a"]},
        {"cell_type": "code", "source": ["epoch 1, loss 0.5"]},
    ]
    notebook.write_text(json.dumps({"cells": cells}))
    assert suite["source"].code_of(notebook).split("\n") == ["", "a = 1", "", "b = a"]


def record(*steps, ended="as many steps as asked for"):
    return {"steps": [dict(step) for step in steps], "ended": ended}


def test_what_becomes_of_a_script(suite):
    outcome = suite["run"].outcome
    one, two = (
        {"0/0 w/0": "aa 1.0", "0/1 b/0": "bb 2.0"},
        {"0/0 w/0": "cc 3.0", "0/1 b/0": "bb 2.0"},
    )
    assert outcome(record(one, two), record(one, two)) == ("equal", "")
    kind, note = outcome(record(one, one), record(one, two))
    assert (kind, note) == (
        "**differs**",
        "after step 2: 1 of 2 arrays, first w/0 with norms 1.0 and 3.0",
    )
    # A step less is a difference, and so is another end.
    assert outcome(record(one), record(one, two))[0] == "**differs**"
    assert outcome(record(one), record(one, ended="ValueError: x"))[0] == "**differs**"
    # One array less is, too.
    assert outcome(record(one), record({"0/0 w/0": "aa 1.0"}))[0] == "**differs**"
    same = record(one, ended="KeyError: 'x'")
    assert outcome(same, same) == ("equal", "then both: KeyError: 'x'")
    nothing = record(ended="NotGenerated: would download x.zip")
    assert outcome(nothing, nothing) == ("no step", "both: NotGenerated: would download x.zip")
    # With MXNet's classes it differs from itself: that says nothing of this package's.
    assert outcome(record(one), record(two), record(two))[0] == "not repeatable"
    assert outcome(record(one), record(two), record(one))[0] == "**differs**"


def test_what_becomes_of_a_file_of_unit_tests(suite):
    task = suite["run"].Task("unit tests", "test_a.py", [])
    stock = {"test_a": "passed", "test_b": "failed in call: MXNetError", "test_c": "skipped"}
    ((_, counts, ours, what, note),) = suite["run"].test_rows([(task, [stock, dict(stock)])])
    assert counts == ours == "1 passed, 1 failed, 1 skipped"
    assert (what, note) == ("same", "test_b: failed in call: MXNetError in both")
    more = stock | {"test_a": "failed in call: TypeError"}
    ((*_, what, note),) = suite["run"].test_rows([(task, [stock, more])])
    assert what == "**differs**"
    assert note == "test_a: passed; ours: failed in call: TypeError"
    takes = stock | {"test_a": "passed, takes what MXNet refuses: a DataIter"}
    ((*_, what, note),) = suite["run"].test_rows([(task, [stock, takes])])
    assert what == "same"
    assert "takes what MXNet refuses: a DataIter" in note
    ((*_, what, _),) = suite["run"].test_rows([(task, [{}, {}])])
    assert what == "**differs**"  # no outcome is none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a checkout: --mxnet, --book or --gluoncv"),
        (["--book", "/no/such/folder"], "--book /no/such/folder is no folder"),
    ],
)
def test_a_checkout_is_needed(suite, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit):
        suite["run"].main()
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def sklearn_tests():
    """The module `sklearn_tests` of the suite."""
    yield from of_linear_models("sklearn_tests")


@pytest.fixture(scope="module")
def sklearn_scripts():
    """The module `sklearn_scripts` of the suite."""
    yield from of_linear_models("sklearn_scripts")


def of_linear_models(name):
    pytest.importorskip("provenglm")
    sys.path.insert(0, str(UPSTREAM))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path[:] = [path for path in sys.path if path != str(UPSTREAM)]


def test_a_test_of_scikit_learn_that_is_not_as_listed(sklearn_tests, tmp_path):
    listed = tmp_path / "expected.toml"
    listed.write_text(
        "[[failure]]\nreason = 'words'\nwhy = 'other words'\ntests = ['a.py::t[1-*', 'b.py::t']\n"
    )
    expected = sklearn_tests.expectations(listed)
    assert expected == {
        "a.py::t[1-*": ("words", "other words"),
        "b.py::t": ("words", "other words"),
    }
    good = {"a.py::t[1-x]": "failed", "b.py::t": "failed", "a.py::t[2-x]": "passed"}
    assert sklearn_tests.differences(good, expected) == []
    assert sklearn_tests.differences({**good, "a.py::t[1-y]": "passed"}, expected) == [
        "passes and is listed: a.py::t[1-y]"
    ]
    assert sklearn_tests.differences({**good, "c.py::t": "failed"}, expected) == [
        "fails and is not listed: c.py::t"
    ]
    del good["b.py::t"]
    assert sklearn_tests.differences(good, expected) == ["matches no test: b.py::t"]
    listed.write_text(listed.read_text().replace("words", "excuse", 1))
    with pytest.raises(ValueError, match="'excuse' is none of"):
        sklearn_tests.expectations(listed)
    # The list of the repository is valid.
    assert len(sklearn_tests.expectations(UPSTREAM / "sklearn_expected.toml")) > 50


def test_the_numbers_of_scikit_learns_tests(sklearn_tests):
    found = sklearn_tests.Outcomes()
    found.outcomes = {"a": "passed", "b": "failed", "c": "failed", "d": "skipped", "e": "passed"}
    found.of_ours = {"a", "b", "d"}
    lines = sklearn_tests.summary(found, {"b": ("words", "")}).splitlines()
    assert lines[1:3] == [
        "2 of 4 passed (50.0 %)",
        "1 of 2 passed of those that fit a class of this package (50.0 %)",
    ]
    assert [line.split(":")[0].strip() for line in lines[3:]] == ["1 words", "1 not listed"]


SCRIPT = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

X, y = load_iris(return_X_y=True)
print(cross_val_score(LogisticRegression(max_iter=1000), X, y, cv=2).mean())
print(LogisticRegression.__module__)
raise SystemExit("enough")
"""


@pytest.mark.slow
def test_the_fits_of_a_script_are_compared(sklearn_scripts, tmp_path):
    script = tmp_path / "iris.py"
    script.write_text(SCRIPT)
    runs = [sklearn_scripts.run(script, kind, 300.0) for kind in sklearn_scripts.RUNS]
    assert [len(fits) for fits, _, _ in runs] == [2, 2, 2]
    assert [lines[1].split(".")[0] for _, _, lines in runs] == ["sklearn", "provenglm", "sklearn"]
    row = sklearn_scripts.row("iris.py", *runs)
    assert row[:3] == ("`iris.py`", "LogisticRegression", "2")
    assert float(row[4]) < 1e-4 < float(row[3])
    assert row[5:7] == ("1 of 2", "agrees at a small `tol`")
    stock, ours, small = runs
    assert sklearn_scripts.row("iris.py", small, small, small)[6:] == (
        "agrees",
        "both: SystemExit: enough",
    )
    ours[0][1]["coef_"] = ours[0][1]["coef_"] + 1.0
    assert sklearn_scripts.row("iris.py", stock, ours, small)[6] == "**differs**"
    for changed, message in (
        ((ours[0][:1], ours[1], ours[2]), "2 fits, SystemExit: enough; ours: 1 fits, SystemExit"),
        (([], "ended without a result", []), "ours: 0 fits, ended without a result"),
    ):
        far, note = sklearn_scripts.compared(stock, changed)
        assert far == float("inf")
        assert message in note
