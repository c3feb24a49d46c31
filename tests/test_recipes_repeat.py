"""A recipe, twice: the same bits, by its default command if that does not take minutes."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.long]

ROOT = Path(__file__).parent.parent
MEASURED = {"seconds", "samples_per_second", "peak_memory_mib"}


def written_by(command, folder):
    """Run the recipe; return what it has written, without times."""
    recipe, *arguments = command.split()
    subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "recipes" / recipe, *arguments],
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


IMAGES = "--images 64 --test-images 32 --epochs 2"


@pytest.mark.parametrize(
    "command",
    [
        "cifar_resnet.py",
        "softmax_regression.py",
        "linear_regression.py",
        f"object_detection.py {IMAGES} --svrg",
        f"segmentation.py {IMAGES} --svrg",
        "word_language_model.py --words 4000 --epochs 2 --svrg",
        "gan.py --steps 200 --report-every 50",
    ],
)
def test_a_recipe_repeats(command, tmp_path):
    one, other = (tmp_path / name for name in ("one", "other"))
    for folder in (one, other):
        folder.mkdir()
    first = written_by(command, one)
    assert first
    assert written_by(command, other) == first
