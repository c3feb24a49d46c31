"""What becomes of a job: workers of a few lines, which MPI connects, without MXNet."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import PROLOGUE, Launched, launch

pytestmark = pytest.mark.full

pytest.importorskip("mpi4py")


@pytest.fixture
def script(tmp_path):
    """Write a script for the workers and return its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(PROLOGUE + text)
        return path

    return write


def run(script, *options, workers=2, arguments=(), **settings):
    return launch(script.parent, "-n", workers, *options, script, *arguments, **settings)


def cause(done):
    """The last line, which is to say why."""
    return done.err.splitlines()[-1]


# --- Output ------------------------------------------------------------------------------------


def test_each_line_says_who_and_each_stream_stays_itself(script):
    done = run(script("print('out', sys.argv[1:]); print('err', file=sys.stderr)"), arguments="ab")
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [
        "[worker 0] out ['a', 'b']",
        "[worker 1] out ['a', 'b']",
    ]
    assert sorted(done.err.splitlines()) == ["[worker 0] err", "[worker 1] err"]


def test_lines_are_never_mixed(script):
    path = script(
        """
for i in range(600):
    for part in ("line", f" {i} ", "x" * (i % 90), "\\n"):
        os.write(1, part.encode())
os.write(1, b"no end of line")
"""
    )
    done = run(path, workers=3)
    assert done.code == 0
    lines = done.out.splitlines()
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[worker {rank}] ")]
        wanted = [f"line {i} {'x' * (i % 90)}" for i in range(600)]
        assert own == [f"[worker {rank}] {text}" for text in [*wanted, "no end of line"]]
    assert len(lines) == 3 * 601


def test_a_bar_is_shown_once(script):
    path = script("for i in range(5): os.write(2, b'\\r%d of 5' % i)\nos.write(2, b'\\n')")
    assert sorted(run(path).err.splitlines()) == ["[worker 0] 4 of 5", "[worker 1] 4 of 5"]


def test_what_is_printed_is_seen_at_once(script):
    path = script("print('here'); time.sleep(30)")
    with Launched(path.parent, "-n", 2, path) as launched:
        begin = time.monotonic()
        assert "here" in launched.process.stdout.readline()
        assert time.monotonic() - begin < 20


def test_log_files_for_each_worker_and_start(script, tmp_path):
    path = script("print('from', rank)\nif rank == 1 and attempt == 0: sys.exit(3)")
    assert run(path, "--log-dir", tmp_path / "logs").code == 0
    names = {f"worker-{rank}-attempt-{attempt}.log" for rank in (0, 1) for attempt in (0, 1)}
    assert {file.name for file in (tmp_path / "logs").iterdir()} == names
    assert "from 1" in (tmp_path / "logs" / "worker-1-attempt-1.log").read_text()


def test_the_first_worker_has_the_input(script):
    path = script("print(repr(sys.stdin.read()))")
    with open(path) as given:
        done = run(path, stdin=given)
    assert sorted(done.out.splitlines()) == [
        f"[worker 0] {path.read_text()!r}",
        "[worker 1] ''",
    ]


def test_nobody_reads_the_output_and_the_job_goes_on(script, tmp_path):
    path = script(
        f"for i in range(2000): print(i)\nopen({str(tmp_path)!r} + f'/{{rank}}', 'w').close()"
    )
    read, write = os.pipe()
    os.close(read)
    done = run(path, stdout=write)
    os.close(write)
    assert done.code == 0
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


# --- What a worker finds -------------------------------------------------------------------------


def test_workers_and_their_environment(script, tmp_path):
    (tmp_path / "beside.py").write_text("")
    path = script(
        """
import beside
from mpi4py import MPI
assert __name__ == "__main__" and os.path.samefile(__file__, sys.argv[0])
assert MPI.COMM_WORLD.size == 4 and MPI.COMM_WORLD.rank == rank
print(os.environ["OMP_NUM_THREADS"], os.environ["UCX_TLS"])
"""
    )
    done = run(path, workers=4, env={"OMP_NUM_THREADS": "7"})
    assert (done.code, done.out.count("7 self,sm")) == (0, 4), done.err
    done = run(path, "--threads", 3, workers=4, env={"UCX_TLS": "tcp,self,sm"})
    assert (done.code, done.out.count("3 tcp,self,sm")) == (0, 4), done.err


def test_workers_share_the_cores(script, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = run(script("print('threads', os.environ['OMP_NUM_THREADS'])"))
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert done.out.count(f"threads {share}\n") == 2


def test_one_worker_per_core(script):
    done = run(script("print('here')"), workers="auto", env={"SLURM_NTASKS": "3"})
    assert (done.code, done.out.count("here")) == (0, 3), done.err


def test_a_module(script):
    path = script("print('argument', sys.argv[1], __name__)", "of_mine.py")
    done = launch(path.parent, "-n", 2, "-m", "of_mine", "-n")
    assert done.code == 0
    assert done.out.count("argument -n __main__") == 2


LISTENING = """
def sockets_of(pid):
    links = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)}
def parent_of(pid):
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
meet()
own = sockets_of(os.getpid()) - sockets_of(parent_of(parent_of(os.getpid())))  # not of mpiexec
for line in [*open("/proc/self/net/tcp"), *open("/proc/self/net/tcp6")]:
    words = line.split()
    if words[3] == "0A" and f"socket:[{words[9]}]" in own: print("listens", words[1])
"""


def test_no_worker_on_one_machine_listens_to_the_network(script):
    done = run(script(LISTENING))
    assert (done.code, done.out) == (0, ""), done.err
    done = run(script(LISTENING), env={"UCX_TLS": "all"})  # the test sees those that listen
    assert "listens" in done.out


# --- Failures ----------------------------------------------------------------------------------


def test_an_exception_is_told_with_its_worker_and_last(script):
    path = script("if rank: raise ValueError('no such thing')\ntime.sleep(60)")
    begin = time.monotonic()
    done = run(path, "--max-restarts", 0)
    assert time.monotonic() - begin < 30  # and not the sixty of the other worker
    assert done.code == 1
    assert "not restarted, because --max-restarts is 0" in done.err
    assert re.fullmatch(
        r"launch: worker 1 \(process \d+\) failed: ValueError: no such thing", cause(done)
    )
    assert done.err.count("Traceback (most recent call last)") == 1
    assert "runpy" not in done.err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("sys.exit(7)", 7, r"worker 0 \(process \d+\) failed: exit code 7"),
        ("raise SystemExit(5)", 5, r"worker 0 \(process \d+\) failed: exit code 5"),
        ("sys.exit('bad')", 1, r"worker 0 \(process \d+\) failed: exit code 1"),
        ("os._exit(7)", 7, r"worker 0 \(process \d+\) exited with code 7"),
        ("os._exit(0)", 1, r"the job ended because a worker called os\._exit\(0\)"),
        (
            "os.kill(os.getpid(), 9)",
            137,
            r"worker 0 \(process \d+\) was killed by SIGKILL \(by a user, or by the kernel",
        ),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            139,
            r"worker 0 \(process \d+\) was killed by SIGSEGV",
        ),
        ("os.abort()", 134, r"worker 0 \(process \d+\) was killed by SIGABRT"),
    ],
)
def test_exit_code_and_sentence(script, text, code, said):
    done = run(script(f"meet()\nif rank == 0: {text}\ntime.sleep(60)"), "--max-restarts", 0)
    assert done.code == code
    assert re.search(said, cause(done)), done.err


# Those that Python or MPI ignores or handles are left out, and those that stop a process.
DEADLY = "QUIT ILL TRAP ABRT BUS FPE KILL SEGV USR2 ALRM TERM STKFLT XCPU VTALRM PROF IO PWR SYS"


@pytest.mark.parametrize("name", DEADLY.split())
def test_a_worker_that_a_signal_kills_is_named(script, name):
    """With MXNet, which has a handler of its own for some."""
    number = getattr(signal, f"SIG{name}")
    path = script(
        f"import gluon_svrg, mxnet\nmeet()\nif rank: os.kill(os.getpid(), {number})\ntime.sleep(60)"
    )
    done = run(path, "--max-restarts", 0, env={"OMP_NUM_THREADS": "1"})
    assert done.code == 128 + number, done.err
    assert re.search(rf"worker 1 \(process \d+\) was killed by SIG{name}", cause(done)), done.err


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("closed", ["3, 1024", "0, 1024", "0, 3"])
def test_a_worker_that_closes_all_descriptors_is_not_taken_for_another(script, closed, rank):
    path = script(
        f"""
import numpy
from mpi4py import MPI
meet()
if rank == {rank}: os.closerange({closed})
for _ in range(5): MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(100_000))
meet()
if rank == {rank}: raise ValueError("my own")
time.sleep(60)
"""
    )
    done = run(path, "--max-restarts", 0)
    assert done.code not in (0, 137), done.err
    assert re.search(rf"worker {rank} \(process \d+\)", cause(done)), done.err


def test_everything_is_started_again(script):
    path = script(
        """
print("attempt", attempt, flush=True)
meet()
if rank == 0 and attempt < 2: os.kill(os.getpid(), 9)
meet()
"""
    )
    done = run(path, workers=3)
    assert done.code == 0, done.err
    assert [done.out.count(f"attempt {number}") for number in range(4)] == [3, 3, 3, 0]
    assert "restarting all workers: restart 2 of at most 3" in done.err


def test_the_restarts_are_used_up(script):
    path = script("meet()\nif rank: raise ValueError('at ' + 'abc'[attempt])\ntime.sleep(60)")
    done = run(path, "--max-restarts", 2)
    assert done.code == 1
    assert done.err.count("restarting all workers") == 2
    assert "not restarted, because --max-restarts 2 is reached" in done.err
    assert "ValueError: at c" in cause(done)


def test_a_failure_that_repeats_is_not_tried_for_ever(script):
    done = run(script("raise ImportError('no module of that name')"), "--max-restarts", 50)
    assert done.code == 1
    assert done.err.count("restarting all workers") == 1
    assert "not restarted, because it failed twice in the same way" in done.err
    assert "no module of that name" in cause(done)


def test_kills_are_no_reason_to_give_up(script):
    path = script("meet()\nif rank and attempt < 3: os.kill(os.getpid(), 9)\nmeet()")
    assert run(path).code == 0


BLOCK = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 7 RUNNING AT elsewhere
=   EXIT CODE: {}
"""
STRING = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {}"
FAKE = """
import os, sys
from gluon_svrg.launch.attempt import Attempt
from gluon_svrg.launch.signals import Signals
said, code = sys.argv[1:]
fake = ["sh", "-c", 'printf "%s\\n" "$0"; exit "$1"', said, code]
outcome = Attempt(fake, dict(os.environ), Signals(), 0, None, workers=2).run()
print("outcome", outcome.code, outcome.is_script_failure, outcome.message)
"""


@pytest.mark.parametrize(
    ("said", "code", "outcome"),
    [
        (
            BLOCK.format(9) + STRING.format("Killed (signal 9)"),
            9,
            "137 False a worker on elsewhere",
        ),
        # mpiexec itself fails: its proxy has, while it ended the other workers.
        (BLOCK.format(9), 255, "137 False a worker on elsewhere"),
        (BLOCK.format(3), 255, "255 False mpiexec"),
        ("", 255, "255 False mpiexec"),
        ("no such file", 127, "127 True mpiexec"),
    ],
)
def test_what_mpiexec_says(said, code, outcome):
    """Whether the script gave up by itself: if it does so twice, it is not started again."""
    command = [sys.executable, "-c", FAKE, said, str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"outcome {outcome}" in done.stdout


@pytest.mark.parametrize(("at_once", "named"), [(1, 0), (2, 1)])
def test_of_workers_that_were_seen_to_end_at_once_mpiexec_names_the_first(at_once, named):
    said = BLOCK.format(9) + STRING.format("Killed (signal 9)")
    code = f"""
attempt = Attempt(fake, dict(os.environ), Signals(), 0, None, workers=2)
attempt.run()
attempt._workers = {{0: (6, "elsewhere"), 1: (7, "elsewhere")}}
attempt._exited, attempt._first_exits = [0, 1], {at_once}
outcome = attempt._outcome()
"""
    fake, _, shown = FAKE.partition("outcome = Attempt(")
    text = fake + code + shown[shown.index("print(") :]
    command = [sys.executable, "-c", text, said, "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"worker {named} (process {6 + named}) was killed by SIGKILL" in done.stdout


def test_the_failure_of_a_peer_does_not_hide_the_cause(script):
    path = script(
        """
from gluon_svrg.workers.errors import PeerError
meet()
if rank == 0: raise PeerError("worker 1 is gone")
time.sleep(1)
raise ValueError("me")
"""
    )
    done = run(path, "--max-restarts", 0)
    assert done.code == 1
    assert "worker 1 (process" in cause(done)
    assert "ValueError: me" in cause(done)
    assert "PeerError" not in done.err


def test_the_failure_of_a_peer_is_reported_if_that_lives_on(script):
    path = script(
        """
from gluon_svrg.workers.errors import PeerError
meet()
if rank == 0: raise PeerError("worker 1 is gone")
time.sleep(60)
"""
    )
    done = run(path, "--max-restarts", 0)
    assert done.code == 75
    assert "PeerError: worker 1 is gone" in cause(done)


def test_the_script_catches_its_exit_and_goes_on(script):
    path = script("try: sys.exit(3)\nexcept SystemExit: pass\nmeet()\nprint('end')")
    done = run(path)
    assert (done.code, done.out.count("end")) == (0, 2), done.err


def test_a_thread_and_a_child_may_fail(script):
    path = script(
        """
import threading
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start(); thread.join()
if os.fork() == 0: raise ValueError("in a child")
os.wait()
meet()
"""
    )
    assert run(path, "--max-restarts", 0).code == 0


# --- The holes of mpiexec --------------------------------------------------------------------


def break_mpi4py(folder, end):
    """Let the second worker run a line before MPI starts; return the environment for it."""
    import mpi4py

    package = folder / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"import os\nif os.environ['PMI_RANK'] == '1': {end}\n"
        f"__path__ = [{os.path.dirname(mpi4py.__file__)!r}]\n"
        f"exec(open({mpi4py.__file__!r}).read())\n"
    )
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise ImportError('no libmpi')", "failed: ImportError: no libmpi: pip install"),
        ("raise SystemExit(7)", "failed: SystemExit: 7"),
        ("os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
    ],
)
def test_a_worker_that_ends_before_mpi_starts_ends_the_job(script, tmp_path, end, said):
    """Without an own end by a signal mpiexec, and the other workers, wait for ever."""
    env = break_mpi4py(tmp_path, end)
    done = run(script("print('here')"), "--max-restarts", 0, env=env)
    assert done.code != 0
    assert re.search(rf"launch: worker 1 \(process \d+\) {re.escape(said)}", cause(done)), done.err
    assert "here" not in done.out


@pytest.mark.long
def test_workers_end_together(script):
    """Without MPI_Finalize a worker that leaves may crash those in their last sum."""
    path = script(
        """
import numpy
from mpi4py import MPI
numbers = numpy.ones(1 << 18)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numbers)
assert (numbers == 3).all()
"""
    )
    for _ in range(3):
        assert run(path, "--max-restarts", 0, workers=3).code == 0


def test_a_worker_may_end_long_before_the_others(script):
    path = script("meet()\nif rank == 0: time.sleep(2)\nprint('end', rank)")
    done = run(path, "--max-restarts", 0)
    assert (done.code, done.out.count("end")) == (0, 2)


SHORT = {"attempt.STOPPED_TIMEOUT": 1.0}
ONCE = "print('ready', os.getpid(), flush=True)\nif attempt: sys.exit()\ntime.sleep(300)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("victim", "name"),
    [("hydra_pmi_proxy", "mpiexec's own helper"), ("mpiexec.hydra", "mpiexec")],
)
def test_mpiexec_or_its_proxy_is_killed_or_stopped(script, number, victim, name):
    path = script(ONCE)
    with Launched(path.parent, "-n", 2, path, constants=SHORT) as launched:
        ready(launched)
        os.kill(launched.find(victim)[0], number)
        assert launched.finish() == 0, launched.err
    if number == signal.SIGSTOP:
        said = rf"{name} \(process \d+\) is stopped, perhaps by a SIGSTOP"
    else:  # mpiexec may see the end of its proxy, and end with a code of its own
        what = "(was killed by SIGKILL|exited before the workers|exited with code 255)"
        said = rf"({name}|mpiexec) \(process \d+\) {what}"
    assert re.search(f"launch: {said}", launched.err)
    assert "restart 1 of at most 3" in launched.err
    assert "restart 2" not in launched.err


def test_a_worker_is_stopped(script):
    path = script(ONCE)
    with Launched(path.parent, "-n", 2, path, constants=SHORT) as launched:
        os.kill(ready(launched)[1], signal.SIGSTOP)
        assert launched.finish() == 0, launched.err
    assert re.search(r"launch: worker 1 \(process \d+\) is stopped", launched.err)


def test_a_worker_is_stopped_before_mpi_starts(script, tmp_path):
    env = break_mpi4py(tmp_path, "os.kill(os.getpid(), 19)")
    done = run(script(""), "--max-restarts", 0, env=env, constants=SHORT)
    assert done.code == 124
    assert re.search(r"launch: worker 1 \(process \d+\) is stopped", cause(done)), done.err


@pytest.mark.long
def test_a_worker_that_never_comes_to_mpi(script, tmp_path):
    """The others end themselves, with their stacks."""
    env = break_mpi4py(tmp_path, "import time; time.sleep(300)")
    options = ("--max-restarts", 0, "--progress-timeout", 2)
    done = run(script(""), *options, env=env)
    assert done.code == 124
    assert "no step was completed within --progress-timeout" in cause(done)
    assert "Timeout (0:00:02)!" in done.err
    assert "initialise_mpi" in done.err


WATCHED = """
from gluon_svrg.workers.progress import start_timer
meet()
if rank: time.sleep(1)
start_timer()
"""


@pytest.mark.long
def test_a_loop_without_an_end_is_shown(script):
    """Though the other worker's limit passes a second before."""
    path = script(f"{WATCHED}def endless():\n    while True: pass\nendless() if rank else meet()")
    done = run(path, "--max-restarts", 0, "--progress-timeout", 2)
    assert done.code == 124
    assert "no step was completed within --progress-timeout" in cause(done)
    assert "in endless" in done.err


# --- Signals -----------------------------------------------------------------------------------

POLITE = """
def end(number, _):
    print("told", number, flush=True)
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
print("ready", os.getpid(), flush=True)
for _ in range(600): time.sleep(0.1)
"""
STUBBORN = POLITE.replace("    sys.exit(0)\n", "    time.sleep(60)\n")


def ready(launched, workers=2):
    """Wait until the workers are there; return their processes by rank."""
    found = {}
    for _ in range(workers):
        line = launched.process.stdout.readline()
        match = re.match(r"(?:\[worker (\d+)\] )?ready (\d+)", line)
        assert match, (line, launched.process.stderr.read())
        found[int(match[1] or 0)] = int(match[2])
    return found


@pytest.mark.parametrize(
    ("number", "told", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGUSR1, signal.SIGUSR1, 138),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_is_handed_to_the_workers_once(script, number, told, code, workers):
    path = script(POLITE)
    with Launched(path.parent, "-n", workers, path) as launched:
        ready(launched, workers)
        launched.process.send_signal(number)
        assert launched.finish() == code
        said = [line.split("] ")[-1] for line in launched.out.splitlines()]
        assert said == [f"told {told.value}"] * workers
        assert "stopped by a signal; the same command continues" in launched.err


@pytest.mark.parametrize("workers", [1, 2])
def test_the_second_signal_ends_at_once(script, workers):
    path = script(STUBBORN)
    with Launched(path.parent, "-n", workers, path) as launched:
        ready(launched, workers)
        launched.process.send_signal(signal.SIGINT)
        for _ in range(workers):
            assert "told" in launched.process.stdout.readline()
        begin = time.monotonic()
        launched.process.send_signal(signal.SIGINT)
        assert launched.finish() == 130
        assert time.monotonic() - begin < 5


def test_a_signal_before_the_workers_have_begun_ends_at_once():
    """mpiexec has no worker yet to hand it on to."""
    code = """
import os, signal, threading
from gluon_svrg.launch.attempt import Attempt
from gluon_svrg.launch.signals import Signals
# Where the tests run in the background of a shell, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signals, fake = Signals(), ["sh", "-c", "trap '' INT; exec sleep 60"]
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
Attempt(fake, dict(os.environ), signals, 0, None, workers=2).run()
print(signals.received)
"""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{int(signal.SIGINT)}]\n"
    assert "the workers stop after this batch" not in done.stderr
    assert time.monotonic() - begin < 30


def test_a_script_that_knows_no_signals(script):
    path = script("print('ready', os.getpid(), flush=True)\ntime.sleep(60)")
    with Launched(path.parent, "-n", 2, path) as launched:
        ready(launched)
        launched.process.send_signal(signal.SIGINT)
        assert launched.finish() == 130
        assert "KeyboardInterrupt" in launched.err


def test_a_signal_that_is_ignored_stays_so(script):
    """As after ``nohup``."""
    path = script(POLITE.replace("range(600)", "range(10)"))
    with Launched(path.parent, "-n", 2, path, ignored=[signal.SIGHUP]) as launched:
        ready(launched)
        launched.process.send_signal(signal.SIGHUP)
        assert launched.finish() == 0
        assert "told" not in launched.out


# --- Nothing is left ---------------------------------------------------------------------------

# One child in the worker's own group, one that has left it.
CHILDREN = """
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "300"], start_new_session=True)
print("ready", flush=True)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_children_of_workers_end_with_them(script, end):
    """`launch` looks for what is left."""
    run(script(CHILDREN + end), "--max-restarts", 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_supervisor_is_killed(script, workers):
    child = "subprocess.Popen(['sleep', '300'])\n" if workers > 1 else ""
    path = script(child + "print('ready', os.getpid(), flush=True)\ntime.sleep(300)")
    with Launched(path.parent, "-n", workers, path) as launched:
        ready(launched, workers)
        launched.process.kill()
        assert launched.left() == []


def test_a_forked_child_ends_with_its_worker_and_hears_no_signal(script):
    path = script(
        """
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    time.sleep(300)
"""
        + POLITE
    )
    with Launched(path.parent, "-n", 2, path) as launched:
        lines = [launched.process.stdout.readline() for _ in range(4)]
        children = [int(line.split()[-1]) for line in lines if "child" in line]
        assert len(children) == 2, lines
        launched.process.send_signal(signal.SIGTERM)
        assert launched.finish() == 143
        assert launched.out.count("told") == 2
        assert launched.left() == []


def test_no_shared_memory_is_left(script):
    own = {path.name for path in Path("/dev/shm").glob("mpich_shm_*")}
    path = script("meet()\nif rank == 0: print('files', os.listdir('/dev/shm'))\nmeet()\n")
    done = run(path)
    assert done.code == 0
    names = set(re.findall(r"mpich_shm_\w+", done.out))
    assert names <= own


# --- One worker --------------------------------------------------------------------------------


def test_one_worker_is_a_plain_process(script):
    path = script(
        """
print(sorted(name for name in os.environ if name.startswith(("GLUON_SVRG", "PMI", "OMP"))))
print(os.isatty(0), sys.argv[1:], "mpi4py" in sys.modules)
"""
    )
    done = launch(path.parent, "-n", 1, path, "-x", "--help", env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0
    wanted = ["GLUON_SVRG_ATTEMPT", "OMP_NUM_THREADS"]
    assert done.out.splitlines() == [str(wanted), "False ['-x', '--help'] False"]
    assert done.err == ""


def test_one_worker_is_started_again(script):
    done = launch(script("").parent, "-n", 1, script("if attempt < 2: os.kill(os.getpid(), 9)"))
    assert done.code == 0
    assert done.err.count("restarting all workers") == 2
    assert re.search(r"launch: the script \(process \d+\) was killed by SIGKILL", done.err)


# --- mpiexec alone -------------------------------------------------------------------------------


def test_the_worker_without_mpi_is_the_script(script):
    import subprocess
    import sys

    path = script("print('alone', sys.argv[1:], 'mpi4py' in sys.modules)")
    line = [sys.executable, "-m", "gluon_svrg.launch.worker", path, "a"]
    env = os.environ | {"GLUON_SVRG_ATTEMPT": "0"}
    done = subprocess.run(line, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, "alone ['a'] False\n"), done.stderr


def test_plain_mpiexec_ends_when_a_worker_fails(script):
    import subprocess
    import sys

    path = script("if rank: raise ValueError('me')\ntime.sleep(60)")
    mpiexec = Path(sys.executable).parent / "mpiexec"
    line = [mpiexec, "-prepend-rank", "-n", "2", sys.executable, "-m", "gluon_svrg.launch.worker"]
    env = os.environ | {"GLUON_SVRG_ATTEMPT": "0"}
    done = subprocess.run([*line, path], capture_output=True, text=True, env=env, timeout=40)
    assert done.returncode == 1
    assert "[1] ValueError: me" in done.stderr
    assert "\x1d" not in done.stderr
