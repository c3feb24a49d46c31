"""Ctrl-C in each recipe, as a user presses it: the report of what there is, and exit code 130."""

import csv
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import interruption
import gluon_svrg as gs
import pytest

pytestmark = [pytest.mark.full, pytest.mark.long]

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"


def interrupted(folder, recipe, *arguments, after, delay=0.0, launcher=()):
    """Start the recipe, press Ctrl-C once its output matches; return exit code and output.

    Again, where Ctrl-C comes in the callback of a weak reference or in a `__del__`: Python drops an
    exception there, and says so.
    """
    for _ in range(3):
        code, printed = _interrupted(folder, recipe, arguments, after, delay, launcher)
        if "Exception ignored in" not in printed:
            break
        shutil.rmtree(folder / "run", ignore_errors=True)
    return code, printed


def _interrupted(folder, recipe, arguments, after, delay, launcher):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *launcher, ROOT / "recipes" / recipe, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    read = []
    for line in process.stdout:
        read.append(line)
        if re.search(after, line):
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate(timeout=120)
    return process.returncode, "".join(read) + rest


@pytest.mark.parametrize("more", [(), ("--resume",), ("--svrg", "--resume")], ids=" ".join)
def test_cifar_resnet(more, tmp_path):
    arguments = ["--data", "synthetic", "--samples", "384", "--batch-size", "64", "--epochs", "9"]
    code, printed = interrupted(
        tmp_path, "cifar_resnet.py", *arguments, *more, "--out", "run", after="epoch 0:", delay=1.0
    )
    assert code == 130, printed
    assert "Traceback" not in printed
    run = tmp_path / "run"
    assert {"report.html", "curves.png", "result.json", "options.json", "history.csv"} <= {
        path.name for path in run.iterdir()
    }
    assert (run / "model" / "model.json").is_file()
    rows = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
    result = json.loads((run / "result.json").read_text())
    evaluated = [row for row in rows if row["validation accuracy"]]
    assert result["test accuracy"] == float(evaluated[-1]["validation accuracy"])
    assert result["epochs"] == len([row for row in rows if row["complete"] == "1"]) < 9
    if rows[-1]["complete"] == "0":
        assert f"broken off after {rows[-1]['batches']} of 6 batches" in printed
        assert "metrics" in json.loads((run / "model" / "model.json").read_text())
    samples = sum(int(float(row["samples"])) for row in rows)
    if "--svrg" not in more:
        assert result["gradient evaluations"] == samples


@pytest.mark.parametrize(
    ("recipe", "arguments", "written"),
    [
        ("softmax_regression.py", ["--epochs", "2000"], ["metrics.csv", "curves.png"]),
        ("linear_regression.py", ["--epochs", "20000"], ["metrics.csv", "curves.png"]),
    ],
)
def test_the_convex_recipes(recipe, arguments, written, tmp_path):
    code, printed = interrupted(
        tmp_path, recipe, *arguments, "--out", "run", after="SVRG|optimum", delay=4.0
    )
    assert code == 130, printed
    assert "Traceback" not in printed
    for name in written:
        assert (tmp_path / "run" / name).stat().st_size > 0


def test_large_batch(tmp_path):
    arguments = ["--data", "digits", "--batch-size", "128", "--seeds", "2", "--epochs", "1"]
    code, printed = interrupted(tmp_path, "large_batch.py", *arguments, "--out", "run", after="^2/")
    assert code == 130, printed
    assert "Traceback" not in printed
    assert (tmp_path / "run" / "report.html").is_file()
    assert len((tmp_path / "run" / "runs.jsonl").read_text().splitlines()) >= 2


def test_compare(tmp_path):
    common = "--data synthetic --samples 128 --batch-size 64 --epochs 4"
    code, printed = interrupted(
        tmp_path, "compare.py", "--common", common, "A=", "B=--svrg --epochs 99", "--out", "run",
        after="^B:", delay=4.0,
    )  # fmt: skip
    assert code == 130, printed
    assert "Traceback" not in printed
    assert "A" in (tmp_path / "run" / "table.md").read_text()


def test_workers(tmp_path):
    arguments = ["--data", "synthetic", "--samples", "384", "--batch-size", "64", "--epochs", "9"]
    code, printed = interrupted(
        tmp_path, "cifar_resnet.py", *arguments, "--resume", "--out", "run",
        after="epoch 0:", delay=1.0, launcher=["-m", "gluon_svrg.launch", "-n", "2"],
    )  # fmt: skip
    assert code == 130, printed
    assert "Traceback" not in printed
    assert (tmp_path / "run" / "report.html").is_file()


# serve.py trains nothing: tests/test_recipe_serve.py ends it.
TRAINING = [path for path in RECIPES.glob("*.py") if "__main__" in path.read_text()]


@pytest.mark.parametrize(
    "recipe", sorted(set(TRAINING) - {RECIPES / "serve.py"}), ids=lambda path: path.name
)
def test_an_interrupt_before_the_training(recipe, tmp_path, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    arguments = [f"{recipe}", "--out", f"{tmp_path}"]
    if recipe.name == "compare.py":
        arguments += ["A="]
    monkeypatch.setattr(gs, "seed_everything", press)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(f"{recipe}", run_name="__main__")
    assert end.value.code == 130


@pytest.mark.parametrize(
    "recipe",
    sorted(path.name for path in RECIPES.glob("*.py") if "interruption.run(" in path.read_text()),
)
def test_an_interrupt_while_mxnet_is_imported(recipe, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise KeyboardInterrupt")
    ended = subprocess.run(
        [sys.executable, RECIPES / recipe, "--help"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == "KeyboardInterrupt: interrupted\n"


def test_a_package_that_is_not_installed_is_one_line(tmp_path):
    (tmp_path / "mxnet.py").write_text("import no_such_package")
    ended = subprocess.run(
        [sys.executable, RECIPES / "softmax_regression.py"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "ModuleNotFoundError: No module named 'no_such_package': pip install '.[recipes]' in the "
        "checkout\n"
    )


def test_an_interrupt_where_there_is_nothing_to_report(capsys):
    def main():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        interruption.run(main)
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
