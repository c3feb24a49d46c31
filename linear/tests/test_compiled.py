"""Compiled code: it works without a cache, and Ctrl-C while Numba is imported does no harm."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from provenglm import compiled

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
@pytest.mark.long
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
@pytest.mark.long
def test_the_loops_are_plain_python_where_the_compiler_is_off():
    code = "from provenglm.methods import descent_kernels, dual_kernels\n"
    code += "print(type(descent_kernels.measure), type(dual_kernels.softmax))"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "<class 'function'> <class 'function'>\n", done.stderr


DOUBLE = """
import numpy as np
{}
from kernel import double
print(double(np.ones(3)).tolist(), double(np.ones(3)).tolist())
"""

NOWHERE = {
    "no cache": "from numba.core import caching; caching.CacheImpl._locator_classes = []",
    "a folder that is a file": "pass",
    "no room": """
from numba.core.caching import IndexDataCacheFile
def full(*_): raise OSError(28, "No space left on device")
IndexDataCacheFile._save_index = full
""",
    "a damaged index": """
from numba.core.caching import IndexDataCacheFile
def damaged(*_): raise EOFError
IndexDataCacheFile._load_index = damaged
""",
    "no locks": """
import fcntl
def flock(*_): raise OSError(37, "No locks available")
fcntl.flock = flock
""",
}


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("why", NOWHERE)
def test_compiled_code_needs_no_cache(tmp_path, why):
    (tmp_path / "kernel.py").write_text(KERNEL)
    cache = tmp_path / "kernel.py" if why == "a folder that is a file" else tmp_path
    done = subprocess.run(
        [sys.executable, "-c", DOUBLE.format(NOWHERE[why])],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]\n", done.stderr


INTERRUPTED = """
import builtins, os, signal, sys, warnings
import numpy as np
from provenglm import GLMClassifier, GLMRegressor
warnings.simplefilter("ignore")
real, seen = builtins.__import__, []

def interrupted(name, *args, **kwargs):
    "Ctrl-C when a given number of imports of Numba have begun."
    if name.startswith(("numba", "llvmlite")):
        seen.append(name)
        if len(seen) == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGINT)
    return real(name, *args, **kwargs)

builtins.__import__ = interrupted
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 1000))
model = GLMRegressor(alpha=0.1, l1_ratio=1)
try:
    model.fit(X, X[:, 0])
except KeyboardInterrupt:
    print("interrupted")
builtins.__import__ = real
assert model.fit(X, X[:, 0]).gap_ < 1e-5
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, len(seen))
"""


@pytest.mark.full
@pytest.mark.long
def test_ctrl_c_during_the_import_of_numba_comes_after_it():
    out = [
        subprocess.run(
            [sys.executable, "-c", INTERRUPTED, str(count)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        for count in (2, 300, 900)
    ]
    for done in out:
        assert done.returncode == 0, done.stderr
        first, last = done.stdout.splitlines()
        assert first == "interrupted"
        assert last.startswith("True ")
        assert int(last.split()[1]) > 900  # all of Numba was imported after it


def test_other_threads_import_as_they_are():
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lambda: compiled._sigint_after().__enter__()).result()
    assert held is None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_users_gets_the_signal_once():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with compiled._sigint_after():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert seen == []
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, before)
