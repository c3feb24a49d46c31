"""What the launcher imports, and what it reads of processes with unusual names."""

import mmap
import os
import subprocess
import sys

import pytest
from gluon_svrg.launch.attempt import state_of
from gluon_svrg.workers.lifecycle import _unlink_shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["__main__", "worker"])
def test_the_launcher_imports_neither_mxnet_nor_mpi(module):
    """Before a worker calls MPI_Init, a failed import would leave the others waiting."""
    code = (
        f"import sys, gluon_svrg.launch.{module}; print({{'mxnet', 'mpi4py'}} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


PR_SET_NAME = 15
NO_UTF_8 = b"caf\xe9) R"  # of Latin 1, with what ends a name in /proc/PID/stat


def test_the_state_of_a_process_whose_name_is_no_utf_8():
    """Linux cuts a name at 15 bytes, within a character as well."""
    rename = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_NAME}, {NO_UTF_8!r})"
    command = [sys.executable, "-c", f"{rename}; print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert state_of(process.pid) in {"S", "R"}
        process.communicate(b"\n")
    assert state_of(process.pid) == ""


def test_a_mapped_file_whose_name_is_no_utf_8(tmp_path):
    path = os.fsencode(tmp_path) + b"/" + NO_UTF_8
    with open(path, "wb") as file:
        file.write(b"1")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        _unlink_shared_memory()
    assert os.path.exists(path)
