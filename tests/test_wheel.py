"""What would be published: built from the source distribution, installed, and used elsewhere."""

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
)


def run(*command, cwd):
    """Run a command without this environment's paths; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def of_project(pattern):
    """Return what stands in pyproject.toml; Python 3.10 has no reader of TOML."""
    return re.search(pattern, PROJECT, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the source distribution and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_COPIED)
    backend = of_project(r'^requires = \["setuptools==([\d.]+)')
    # With the backend's version here, nothing has to be fetched.
    is_here = importlib.metadata.version("setuptools") == backend
    isolation = ["--no-isolation"] if is_here else []
    command = [sys.executable, "-m", "build", *isolation, "--outdir", folder / "dist"]
    done = subprocess.run(
        [*command, folder / "checkout"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python into which the wheel is installed, with the other packages of this one.

    They are found by a .pth file, whose folder's own .pth files are not read: so an editable
    installation of the checkout is not there.
    """
    folder = tmp_path_factory.mktemp("installed") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    there = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", there]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(there, "-c", code, cwd=folder.parent).strip())
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return there


def test_the_wheel_has_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gluon_svrg").rglob("*.py*")}
    modules = {name for name in modules if name.endswith((".py", ".pyi"))}
    assert names == modules | {"gluon_svrg/py.typed"}
    assert len(licences) == 1


def test_the_metadata(wheel, metadata):
    assert metadata["Version"] == of_project(r'^version = "(.*)"')
    # In another order, perhaps.
    python = of_project(r'^requires-python = "(.*)"')
    assert sorted(metadata["Requires-Python"].split(",")) == sorted(python.split(","))
    extras = PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(
        re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE)
    )
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (
        metadata.get_payload(decode=True).decode().strip()
        == (ROOT / "README.md").read_text().strip()
    )
    assert "Apache" in (metadata["License"] or metadata["License-Expression"])


def test_twine_takes_both(built):
    files = sorted(str(path) for path in built.iterdir())
    assert len(files) == 2
    printed = run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=built)
    assert printed.count("PASSED") == 2


def test_the_source_distribution_is_the_checkout(built):
    """All that git has, so that its tests can run; only dot files of the top may be missing."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    git = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {name for name in files - names if not name.startswith(".git")} == set()


def test_it_works_elsewhere(python, metadata, tmp_path):
    worker = shutil.copy(Path(__file__).parent / "wheel_worker.py", tmp_path)
    printed = run(python, "-W", "ignore", worker, metadata["Version"], cwd=tmp_path)
    assert printed.splitlines()[-1] == "it works"
    usage, *_ = printed.partition("it works")
    assert "usage: python -m gluon_svrg.deploy" in usage
    assert "predict" in usage
