"""The default command of a recipe, twice: the same bits."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MEASURED = {"seconds", "samples_per_second", "peak_memory_mib"}


def written_by(recipe, folder):
    """Run the recipe's default command; return what it has written, without times."""
    subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "recipes" / recipe],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    written = {}
    for path in sorted(folder.glob("runs/**/*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".params":
            written[name] = path.read_bytes()
        elif path.suffix == ".csv":
            with path.open() as file:
                rows = csv.DictReader(file)
                written[name] = [{k: v for k, v in r.items() if k not in MEASURED} for r in rows]
    return written


@pytest.mark.parametrize(
    "recipe", ["cifar_resnet.py", "softmax_regression.py", "linear_regression.py"]
)
def test_the_default_command_of_a_recipe_repeats(recipe, tmp_path):
    one, other = (tmp_path / name for name in ("one", "other"))
    for folder in (one, other):
        folder.mkdir()
    first = written_by(recipe, one)
    assert first
    assert written_by(recipe, other) == first
