"""Runs the tests marked ``gpu`` in an environment of their own: ``make gpu-test``.

It holds MXNet's wheel for a GPU and the libraries of CUDA 11 that the wheel is linked against: 4 GB
on disk. Without a GPU nothing is installed: it says so, and lists what would run.
"""

import argparse
import ast
import ctypes
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def number_of_gpus():
    """Return how many GPUs the driver sees, 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def names_of_tests():
    """Return the names of the tests, which need MXNet to be collected."""
    tree = ast.parse((HERE / "test_gpu.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if node.name.startswith("test_")]


def install(folder):
    """Make the environment, unless it is there already."""
    python = folder / "bin" / "python"
    done = folder / "installed"
    requirements = (HERE / "requirements.txt").read_text()
    if done.is_file() and done.read_text() == requirements:
        return python
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--constraint", ROOT / "constraints.txt", "-r", HERE / "requirements.txt"],
        check=True,
    )
    # Its metadata ask for `mxnet`, which would take the place of the wheel for a GPU.
    subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    done.write_text(requirements)
    return python


def environment_of(python):
    """Return the variables under which MXNet finds the libraries, which lie beside it."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    folders = sorted(Path(packages.stdout.strip()).glob("nvidia/*/lib"))
    given = os.environ.get("LD_LIBRARY_PATH")
    path = [*map(str, folders), *([given] if given else [])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(path)}


def main():
    """Read the command line, look for a GPU, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv" / "gpu")
    parser.add_argument("--without-gpu", action="store_true", help="run them on the CPU instead")
    options, arguments = parser.parse_known_args()
    if not options.without_gpu and not number_of_gpus():
        print("There is no GPU here, or no driver (libcuda.so.1): nothing is installed or run.")
        print("With one, these would run, in an environment with mxnet-cu117:")
        for name in names_of_tests():
            print(f"  tests/gpu/test_gpu.py::{name}")
        return 0
    python = install(options.environment)
    environment = environment_of(python)
    if options.without_gpu:
        environment["GLUON_SVRG_TEST_CONTEXT"] = "cpu"
    command = [python, "-m", "pytest", "-m", "gpu", "-rs", "tests/gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
