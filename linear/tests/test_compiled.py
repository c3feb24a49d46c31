"""A cache of compiled code that two processes fill at once."""

import os
import subprocess
import sys

import pytest

KERNEL = """
from provenglm.compiled import njit

@njit(nogil=True)
def double(x):
    return x + x
"""

# Each process waits, when it has read the index, for the other to have read it: without a lock both
# take one file.
FILL = """
import pathlib, sys, time
import numpy as np
from numba.core.caching import IndexDataCacheFile
from kernel import double

save = IndexDataCacheFile._save_index

def save_late(self, overloads):
    pathlib.Path(sys.argv[1]).touch()
    end = time.monotonic() + 5
    while not pathlib.Path(sys.argv[2]).exists() and time.monotonic() < end:
        time.sleep(0.01)
    save(self, overloads)

IndexDataCacheFile._save_index = save_late
double(np.ones(3, sys.argv[1]))
"""

READ = """
import numpy as np
from kernel import double

for kind in ("float32", "float64"):
    assert (double(np.ones(3, kind)) == 2).all()
assert sum(double.stats.cache_hits.values()) == 2, double.stats
"""


@pytest.mark.full
def test_two_processes_that_compile_at_once_do_not_mix_up_their_code(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    for name, text in (("fill", FILL), ("read", READ)):
        (tmp_path / f"{name}.py").write_text(text)
    kinds = ("float32", "float64")
    commands = [[sys.executable, "fill.py", *order] for order in (kinds, kinds[::-1])]
    both = [subprocess.Popen(command, cwd=tmp_path) for command in commands]
    assert [process.wait(60) for process in both] == [0, 0]
    subprocess.run([sys.executable, "read.py"], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.full
def test_the_loops_are_plain_python_where_the_compiler_is_off():
    code = "from provenglm import descent_kernels, sdca_kernels\n"
    code += "print(type(descent_kernels.measure), type(sdca_kernels.softmax))"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "<class 'function'> <class 'function'>\n", done.stderr
