"""What becomes of a job: real processes of a few lines, without MXNet."""

import os
import re
import signal
import time

import pytest
from launching import PROLOGUE, Launched, launch, until

SOCKETS = ("--engine", "sockets")


@pytest.fixture
def script(tmp_path):
    """Write a script for the workers and return its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(PROLOGUE + text)
        return path

    return write


def run(script, *options, workers=2, arguments=(), **settings):
    return launch(script.parent, "-n", workers, *SOCKETS, *options, script, *arguments, **settings)


# --- Output ------------------------------------------------------------------------------------


def test_each_line_says_who_and_each_stream_stays_itself(script):
    done = run(script("print('out', sys.argv[1:]); print('err', file=sys.stderr)"), arguments="ab")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [
        "[worker 0] out ['a', 'b']",
        "[worker 1] out ['a', 'b']",
    ]
    assert sorted(done.err.splitlines()) == ["[worker 0] err", "[worker 1] err"]


def test_lines_are_never_mixed(script):
    path = script(
        """
for i in range(1500):
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
        wanted = [f"line {i} {'x' * (i % 90)}" for i in range(1500)]
        assert own == [f"[worker {rank}] {text}" for text in [*wanted, "no end of line"]]
    assert len(lines) == 3 * 1501


def test_what_is_printed_is_seen_at_once(script):
    with Launched(
        script("").parent, "-n", 2, *SOCKETS, script("print('here'); time.sleep(30)")
    ) as launched:
        begin = time.monotonic()
        assert "here" in launched.process.stdout.readline()
        assert time.monotonic() - begin < 20


def test_log_files_for_each_process_and_start(script, tmp_path):
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


# --- Failures ----------------------------------------------------------------------------------


def test_one_exception_names_the_worker_its_traceback_and_its_code(script):
    path = script("step()\nif rank: raise ValueError('no such thing')\ntime.sleep(60)")
    done = run(path, "--max-restarts", 0)
    assert done.code == 1
    assert re.search(
        r"launch: worker 1 \(process \d+\) ended with exit code 1: ValueError: no such thing; "
        r"seen within \d\.\d\d s, the others ended \d\.\d\d s later",
        done.err,
    )
    assert "--max-restarts is 0" in done.err
    last = done.err.split("the last that worker 1 said:")[1]
    assert "Traceback (most recent call last)" in last
    assert "ValueError: no such thing" in last


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("sys.exit(7)", 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL, by somebody or for want of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was ended by SIGSEGV"),
    ],
)
def test_the_exit_code_is_that_of_who_failed(script, text, code, said):
    done = run(script(f"step()\nif rank == 0: {text}\ntime.sleep(60)"), "--max-restarts", 0)
    assert done.code == code
    assert said in done.err


def test_everything_is_started_again_with_another_key_and_port(script):
    path = script(
        """
print(attempt, os.environ["GLUON_SVRG_ADDRESS"], os.environ["GLUON_SVRG_KEY"], flush=True)
step()
tell(f"{attempt} {rank}")
if rank == 0 and attempt < 2:
    wait_for(f"{attempt} 1", f"{attempt} 2")
    os.kill(os.getpid(), 9)
time.sleep(0.3)
"""
    )
    done = run(path, workers=3)
    assert done.code == 0, done.err
    starts = {tuple(line.split()[2:]) for line in done.out.splitlines()}
    assert [len({start[i] for start in starts}) for i in range(3)] == [3, 3, 3]
    assert "restart 2 of at most 3" in done.err
    assert re.search(r"launch: training again, \d\.\d s after the failure", done.err)


def test_the_restarts_are_used_up(script):
    path = script("step()\nif rank: raise ValueError(f'at {attempt}')\ntime.sleep(60)")
    done = run(path, "--max-restarts", 2)
    assert done.code == 1
    assert done.err.count("everything is started again") == 2
    assert "no restart is left of --max-restarts 2: mend what it says" in done.err
    assert "launch:   ValueError: at 2" in done.err


def test_who_ended_because_of_another_is_not_the_culprit(script):
    path = script(
        """
step(); tell(f"up {rank}"); wait_for("up 0", "up 1")
if rank == 0: sys.exit(75)
time.sleep(0.5)
if rank == 1: raise ValueError("me")
"""
    )
    done = run(path, "--max-restarts", 0, workers=3)
    assert done.code == 1
    assert "launch: worker 1 (process" in done.err


def test_where_mpi_crashes_because_of_another_that_is_not_the_culprit(script):
    """MXNet ends a process with 255 at a segmentation fault."""
    text = """
step()
if rank == 0: tell("crash"); os._exit(255)
wait_for("crash")
"""
    path = script(text + "time.sleep(0.5); os.kill(os.getpid(), 9)")
    done = run(path, "--max-restarts", 0, "--engine", "mpi")
    assert done.code == 137
    assert "launch: worker 1 (process" in done.err
    assert run(script(text + "time.sleep(60)"), "--max-restarts", 0).code == 255


def test_a_crash_of_mpi_alone_is_told_after_a_while(script):
    path = script(
        """
if rank == 0: tell("crash"); os._exit(255)
wait_for("crash")
time.sleep(0.2); sys.exit(75)
"""
    )
    constants = {"attempt._CULPRIT_WAIT": 0.5}
    done = run(path, "--max-restarts", 0, "--engine", "mpi", constants=constants)
    assert done.code == 255
    assert "worker 0 (process" in done.err


def test_a_victim_without_a_culprit_is_told_after_a_while(script):
    path = script("if rank == 0: sys.exit(75)\ntime.sleep(60)")
    done = run(path, "--max-restarts", 0, constants={"attempt._CULPRIT_WAIT": 0.2})
    assert done.code == 75
    assert "worker 0 (process" in done.err


def test_only_victims(script):
    done = run(script("sys.exit(75)"), "--max-restarts", 0, constants={"attempt._CULPRIT_WAIT": 0})
    assert done.code == 75


def test_two_at_once(script):
    path = script("step()\nif attempt == 0 and rank: os.kill(os.getpid(), 9)\ntime.sleep(0.3)")
    done = run(path, workers=3)
    assert done.code == 0
    assert done.err.count("everything is started again") == 1


@pytest.mark.parametrize("before", ["", "step(b'-'); step(b'-'); "])
def test_a_failure_at_the_start_that_repeats_is_told_once_more_and_no_further(script, before):
    """A full pass that comes before the first step is of the start."""
    done = run(script(f"{before}raise ImportError('no module of that name')"), "--max-restarts", 50)
    assert done.code == 1
    assert done.err.count("everything is started again") == 1
    assert "it has failed twice in the same way before its first step" in done.err
    assert "no module of that name" in done.err.splitlines()[-1]


def test_kills_at_the_start_are_no_reason_to_give_up(script):
    path = script("if rank and attempt < 3: os.kill(os.getpid(), 9)")
    assert run(path).code == 0


def test_a_port_that_is_taken_costs_no_restart(script):
    path = script("if rank == 0 and attempt < 2: raise OSError(98, 'Address already in use')")
    done = run(path, "--max-restarts", 0)
    assert done.code == 0
    assert done.err.count("somebody else has taken a port") == 2


def test_a_job_that_always_finds_its_port_taken_ends(script):
    done = run(script("raise OSError(98, 'Address already in use')"), "--max-restarts", 0)
    assert done.code == 1
    assert done.err.count("somebody else has taken a port") == 5


# --- Silence -----------------------------------------------------------------------------------


def test_no_step_for_too_long(script):
    path = script(
        """
if rank == 1: step(); tell("one step")
else: wait_for("one step"); step(); step()
time.sleep(60)
"""
    )
    done = run(path, "--max-restarts", 0, "--progress-timeout", 0.5)
    assert done.code == 124
    assert "worker 1 (process" in done.err
    assert "has taken no step for 0.5 s (--progress-timeout)" in done.err


def test_a_stopped_worker_is_named(script):
    path = script("step()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)")
    done = run(path, "--max-restarts", 0, "--progress-timeout", 0.5)
    assert done.code == 124
    assert re.search(r"worker 1 \(process \d+\) is stopped", done.err)


@pytest.mark.parametrize("text", ["step(b'e')", "step(); step(b'e')", ""])
def test_who_is_not_training_is_not_hurried(script, text):
    path = script(f"{text}\ntime.sleep(0.8)")
    assert run(path, "--max-restarts", 0, "--progress-timeout", 0.2).code == 0


# --- Servers -----------------------------------------------------------------------------------

FAST = {
    "plan.SERVER": "fake_server",
    "attempt._SERVER_WAIT": 0.4,
    "attempt._STOP_WAIT": 0.4,
}


@pytest.fixture
def with_servers(script):
    """Run workers and servers of a few lines."""

    def launch_both(workers, servers, *options, number=2, constants=FAST):
        (script("").parent / "fake_server.py").write_text(
            "import os, sys, time\nrole = os.environ['DMLC_ROLE']\n" + servers
        )
        path = script(workers)
        return launch(path.parent, "-n", 2, "-s", number, *options, path, constants=constants)

    return launch_both


def test_servers_end_with_the_workers(with_servers):
    up = "print(role, flush=True)\nopen(f'{os.getpid()}.up', 'w').close()\ntime.sleep(60)"
    workers = "while sum(name.endswith('.up') for name in os.listdir()) < 3: time.sleep(0.01)"
    done = with_servers(workers, up)
    assert done.code == 0
    assert {"[scheduler] scheduler", "[server 0] server", "[server 1] server"} <= set(
        done.out.splitlines()
    )


def test_servers_may_end_before_the_workers(with_servers):
    patient = FAST | {"attempt._SERVER_WAIT": 20.0}
    done = with_servers("time.sleep(0.3)", "", "--max-restarts", 0, constants=patient)
    assert done.code == 0


def test_workers_do_not_go_on_without_servers(with_servers):
    done = with_servers("time.sleep(60)", "", "--max-restarts", 0)
    assert done.code == 1
    assert re.search(
        r"(scheduler|server \d) \(process \d+\) has ended, and the workers have gone on for 0\.4 s",
        done.err,
    )


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_server_that_is_killed(with_servers, role):
    servers = f"""
if role == {role!r} and os.environ["GLUON_SVRG_ATTEMPT"] == "0":
    time.sleep(0.2); os.kill(os.getpid(), 9)
time.sleep(60)
"""
    done = with_servers("step(); time.sleep(60 if attempt == 0 else 0.1)", servers)
    assert done.code == 0
    assert re.search(rf"launch: {role}[ 0-9]* \(process \d+\) was ended by SIGKILL", done.err)


# --- Signals -----------------------------------------------------------------------------------

POLITE = """
def end(number, _):
    print("told", number, flush=True)
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""
STUBBORN = POLITE.replace("    sys.exit(0)\n", "    time.sleep(60)\n")


def ready(launched, workers=2):
    for _ in range(workers):
        assert "ready" in launched.process.stdout.readline()
    return launched.process


@pytest.mark.parametrize(
    ("number", "told", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
def test_a_signal_is_handed_to_the_workers_once(script, number, told, code):
    path = script(POLITE)
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        ready(launched).send_signal(number)
        assert launched.finish() == code
        assert sorted(launched.out.splitlines()) == [
            f"[worker {rank}] told {told.value}" for rank in (0, 1)
        ]
        assert "ended by a signal, and not started again" in launched.err


def test_the_second_signal_ends_at_once(script):
    path = script(STUBBORN)
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        process = ready(launched)
        process.send_signal(signal.SIGINT)
        for _ in range(2):
            assert "told" in process.stdout.readline()
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert launched.finish() == 130
        assert time.monotonic() - begin < 2


def test_a_script_that_knows_no_signals(script):
    path = script("print('ready', flush=True)\ntime.sleep(60)")
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        ready(launched).send_signal(signal.SIGINT)
        assert launched.finish() == 130
        assert launched.err.count("KeyboardInterrupt") == 2


def test_who_does_not_follow_the_others_after_a_signal(script):
    path = script(f"if rank == 0:\n    print('ready'); time.sleep(60)\n{STUBBORN}")
    with Launched(
        path.parent, "-n", 2, *SOCKETS, path, constants={"attempt._STOP_WAIT": 0.3}
    ) as launched:
        ready(launched).send_signal(signal.SIGTERM)
        assert launched.finish() == 143


def test_a_signal_that_is_ignored_stays_so(script):
    """As after ``nohup``."""
    path = script(POLITE.replace("time.sleep(60)", "time.sleep(0.5)"))
    with Launched(path.parent, "-n", 2, *SOCKETS, path, ignored=[signal.SIGHUP]) as launched:
        ready(launched).send_signal(signal.SIGHUP)
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


NAMED = """
if len(sys.argv) > 1:
    import ctypes
    PR_SET_NAME = 15  # of which 15 bytes are kept
    ctypes.CDLL(None).prctl(PR_SET_NAME, ("x" * 14 + "ä").encode())
    print("named", open("/proc/self/comm", "rb").read(), flush=True)
    time.sleep(300)
if rank == 0:
    child = subprocess.Popen([sys.executable, __file__, "child"], stdout=subprocess.PIPE)
    print(child.stdout.readline(), flush=True)
    sys.exit(3)
time.sleep(300)
"""


def test_a_name_of_a_process_that_is_cut_within_a_character(script):
    done = run(script(NAMED), "--max-restarts", 0)
    assert done.code == 3
    assert "worker 0" in done.err


def test_children_end_at_once_when_their_worker_does(script):
    """The worker tells the number: a look at /proc may miss a child that lives so shortly."""
    path = script(
        """
if rank == 0:
    print(subprocess.Popen(["sleep", "300"]).pid, flush=True)
    sys.exit()
time.sleep(60)
"""
    )
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        child = int(launched.process.stdout.readline().split()[-1])
        until(lambda: child not in launched.processes())
        assert launched.process.poll() is None


@pytest.mark.parametrize("workers", [1, 3])
def test_the_launcher_is_killed(script, workers):
    path = script("subprocess.Popen(['sleep', '300'])\nprint('ready', flush=True)\ntime.sleep(300)")
    with Launched(path.parent, "-n", workers, *SOCKETS, path) as launched:
        ready(launched, workers).kill()
        assert launched.left() == []
        launched.process.stdout.read()  # nobody holds it open


def test_the_keeper_is_killed_and_the_job_goes_on(script):
    path = script("print('ready', flush=True)\nwait_for('killed')")
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        process = ready(launched)
        keepers = {pid for pid, line in launched.processes().items() if "gluon_svrg.launch" in line}
        (keeper,) = keepers - {process.pid}
        os.kill(keeper, signal.SIGKILL)
        (path.parent / "killed").touch()
        assert launched.finish() == 0


def test_keeper_and_launcher_are_killed(script):
    path = script("print('ready', flush=True)\ntime.sleep(300)")
    with Launched(path.parent, "-n", 2, *SOCKETS, path) as launched:
        ready(launched)
        for pid, line in launched.processes().items():
            if "gluon_svrg.launch" in line:
                os.kill(pid, signal.SIGKILL)
        assert launched.left() == []


# --- One worker --------------------------------------------------------------------------------


def test_one_worker_is_a_plain_process(script):
    path = script(
        """
print(sorted(name for name in os.environ if name.startswith(("GLUON_SVRG", "DMLC", "OMP"))))
print(os.isatty(0), sys.argv[1:])
"""
    )
    outer = {"GLUON_SVRG_KEY": "00", "DMLC_ROLE": "worker", "GLUON_SVRG_PROGRESS": "9"}
    outer |= {"OMP_NUM_THREADS": "1"}
    done = launch(path.parent, "-n", 1, path, "-x", "--help", env=outer)
    assert done.code == 0
    names = ["ATTEMPT", "RANK", "WORKERS"]
    wanted = [f"GLUON_SVRG_{name}" for name in names] + ["OMP_NUM_THREADS"]
    assert done.out.splitlines() == [str(wanted), "False ['-x', '--help']"]
    assert done.err == ""


def test_one_worker_is_started_again(script):
    done = launch(script("").parent, "-n", 1, script("if attempt < 2: os.kill(os.getpid(), 9)"))
    assert done.code == 0
    assert done.err.count("everything is started again") == 2


def test_a_module(script):
    path = script("print('argument', sys.argv[1])", "of_mine.py")
    done = launch(path.parent, "-n", 2, *SOCKETS, "-m", "of_mine", "-n")
    assert done.code == 0
    assert done.out.count("argument -n") == 2
