"""Kill and stop the processes of a job at random moments, many times, and compare what comes out.

The training is tests/training_worker.py: SVRG with a table, LARS, dropout, BatchNorm, a checkpoint
every three batches. It says in which phase it is. A worker, mpiexec, mpiexec's proxy or the
supervisor (which is started again then) is killed or stopped there; and, with an sshd on each of
two loopback addresses, whole hosts. ``make soak`` runs it, and puts the tables into
docs/benchmarks/soak.md.

What was done is kept in ``--state``, job by job. With ``--seconds`` no job is begun after that
time, and the same command continues where it stopped; the tables are written when all is done.
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from sshds import ADDRESSES, PROGRAMS, Hosts  # noqa: E402

TRAINING = ROOT / "tests" / "training_worker.py"
VICTIMS = ["worker 0", "last worker", "mpiexec", "proxy", "supervisor"]
SIGNALS = ["SIGKILL", "SIGSEGV", "SIGSTOP"]
PHASES = ["import", "MPI_Init", "full_pass", "step", "checkpoint", "evaluation", "end"]
PATIENCE = 240.0  # seconds after which a job counts as hung
STOP_OF_SUPERVISOR = 3.0  # seconds after which it is continued: nothing else could end the stop


@dataclass
class Kill:
    """What was done to which process, when, and with which result."""

    victim: str
    signal: str
    phase: str
    workers: int
    again: float | None = None  # seconds until a step was taken again
    left: int = 0
    same: bool | None = None


@dataclass
class Job:
    """One training: its folder, its supervisor, and what that prints."""

    folder: Path
    workers: int
    slowly: float
    options: Sequence[object] = ()
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    said: list[str] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "gluon_svrg.launch"]
        command += ["-n", str(self.workers), "--max-restarts", "1000", "--progress-timeout", "20"]
        command += [*map(str, self.options), str(TRAINING), str(self.folder)]
        command += ["--slowly", str(self.slowly)]
        environment = os.environ | {"SOAK": self.mark, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        self.supervisor = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[tuple[float, str | None]] = queue.Queue()
        self.is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.supervisor.stdout is not None
        lines = self.lines
        for line in self.supervisor.stdout:
            lines.put((time.monotonic(), line))
        lines.put((time.monotonic(), None))

    def wait_for(self, pattern: str) -> float | None:
        """Return when a line was printed that matches; None if the job ended before."""
        end = time.monotonic() + PATIENCE
        while not self.is_over:
            try:
                at, line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                last = "".join(self.said[-40:])
                self.kill_all()
                raise SystemExit(f"no {pattern!r} for {PATIENCE:g} s:\n{last}") from None
            if line is None:
                self.is_over = True
                break
            self.said.append(line)
            if re.search(pattern, line):
                return at
        return None

    def forget_lines(self) -> None:
        """Read what was printed until now."""
        with suppress(queue.Empty):
            while not self.is_over:
                _, line = self.lines.get_nowait()
                self.is_over = line is None
                self.said += [line] if line else []

    def processes(self) -> dict[str, int]:
        """Return the processes of the job by name; others by their number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"SOAK={self.mark}".encode() not in variables or not command:
                continue
            ranks = [v.partition(b"=")[2] for v in variables if v.startswith(b"PMI_RANK=")]
            name = f"worker {ranks[0].decode()}" if ranks else folder.name
            program = command.partition(b"\0")[0]
            for end, own in ((b"mpiexec.hydra", "mpiexec"), (b"hydra_pmi_proxy", "proxy")):
                name = own if program.endswith(end) else name
            # Children of a worker have its rank in their environment, too: it is the oldest.
            pid = int(folder.name)
            found[name] = min(pid, found.get(name, pid))
        return found | {"supervisor": self.supervisor.pid}

    def pid_of(self, victim: str) -> int | None:
        name = f"worker {self.workers - 1}" if victim == "last worker" else victim
        return self.processes().get(name)

    def kill_all(self) -> None:
        for pid in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> int:
        """Return how many processes are still there after some seconds."""
        end = time.monotonic() + 5
        while (count := len(self.processes()) - 1) and time.monotonic() < end:
            time.sleep(0.01)
        return count

    def digests(self) -> set[str]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("worker-*.json")]
        assert len(found) == self.workers, "".join(self.said[-40:])
        return {one["digest"] for one in found}

    def wait_for_phase(self, phase: str, victim: str, rng: random.Random) -> bool:
        """Wait for a random moment of a phase; return whether it came."""
        if phase not in ("import", "MPI_Init"):
            if self.wait_for(rf"\] phase {phase}") is None:
                return False
            time.sleep(rng.uniform(0, 0.05))
            return True
        rank = victim if "worker" in victim else "worker 0"
        end = time.monotonic() + PATIENCE
        while self.supervisor.poll() is None and time.monotonic() < end:
            pid = self.pid_of(rank)
            with suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_bytes() if pid else b""
                if pid and (phase == "import" or b"libmpi" in maps):
                    time.sleep(rng.uniform(0, 0.05 if phase == "MPI_Init" else 0.15))
                    return True
            time.sleep(0.002)
        return False


def survive(job: Job, kills: list[Kill], hosts: Hosts | None, rng: random.Random) -> list[Kill]:
    """Run a job, kill its processes until it ends, and return the kills."""
    done: list[Kill] = []
    job.start()
    while kills:
        kill = kills[0]
        if not job.wait_for_phase(kill.phase, kill.victim, rng):
            break
        number = getattr(signal, kill.signal)
        job.forget_lines()
        at = time.monotonic()
        if hosts is not None:
            host = hosts.hosts[int(kill.victim[-1])]
            host.die()
            host.start()
        else:
            pid = job.pid_of(kill.victim)
            if pid is None or job.supervisor.poll() is not None:
                if job.supervisor.poll() is not None:
                    break
                continue  # not there yet
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        done.append(kills.pop(0))
        if kill.victim == "supervisor" and kill.signal == "SIGSTOP":
            time.sleep(STOP_OF_SUPERVISOR)
            os.kill(job.supervisor.pid, signal.SIGCONT)
            again = job.wait_for(r"\] phase")
        elif kill.victim == "supervisor":
            job.supervisor.wait()
            kill.left += job.left()
            job.start()
            again = job.wait_for(r"\] phase (step|end)")
        else:
            started = job.wait_for("launch: restarting all workers")
            again = started and job.wait_for(r"\] phase (step|end)")
        kill.again = None if again is None else again - at
    job.wait_for("no such line: until the end")
    code = job.supervisor.wait()
    left = job.left()
    for kill in done:
        kill.left += left
    if code != 0:
        raise SystemExit(f"the job ended with {code}:\n{''.join(job.said[-60:])}")
    return done


def plan(number: int, hosts: int) -> list[Kill]:
    """Return kills of all victims by all signals in all phases, in a random order."""
    rng = random.Random(0)
    cells = [(v, s, p, w) for v in VICTIMS for s in SIGNALS for p in PHASES for w in (2, 3)]
    rng.shuffle(cells)
    kills = [Kill(*cells[i % len(cells)]) for i in range(number)]
    kills.sort(key=lambda kill: kill.workers)
    phases = PHASES[2:-1]
    whole = [Kill(f"host {i % 2}", "SIGKILL", phases[i % len(phases)], 2) for i in range(hosts)]
    return kills + whole


def rows(kills: Sequence[Kill], key: Callable[[Kill], str]) -> list[tuple]:
    names = list(dict.fromkeys(map(key, kills)))
    order = {name: i for i, name in enumerate([*VICTIMS, *SIGNALS, *PHASES])}
    names.sort(key=lambda name: (order.get(name, 99), name))
    return [(name, *figures([k for k in kills if key(k) == name])) for name in names]


def figures(kills: Sequence[Kill]) -> tuple:
    again = [kill.again for kill in kills if kill.again is not None]
    return (
        len(kills),
        sum(bool(kill.same) for kill in kills),
        f"{report.median(again):.1f} ({max(again):.1f})" if again else "",
        sum(kill.left for kill in kills),
    )


def section(kills: Sequence[Kill], jobs: int) -> str:
    header = ["times", "same bits", "s to training again (worst)", "left"]
    one = [kill for kill in kills if not kill.victim.startswith("host")]
    whole = [kill for kill in kills if kill.victim.startswith("host")]
    tables = [
        report.markdown_table(["killed or stopped", *header], [*rows(one, lambda k: k.victim)]),
        report.markdown_table(["by", *header], rows(one, lambda k: k.signal)),
        report.markdown_table(["in the phase", *header], rows(one, lambda k: k.phase)),
        report.markdown_table(["workers", *header], rows(one, lambda k: str(k.workers))),
    ]
    if whole:
        row = ("a whole host, over ssh", *figures(whole))
        tables.append(report.markdown_table(["killed", *header], [row]))
    joined = "\n\n".join(tables)
    return f"""\
A training by `python -m gluon_svrg.launch` (SVRG with a table, LARS, dropout, BatchNorm, a
checkpoint every three batches), of which a process was killed or stopped {len(one)} times at random
moments of a phase, and a whole host {len(whole)} times (an sshd on a loopback address with all that
it had started, which was started again at once), in {jobs} jobs. *Same bits*: the job ended with
the weights, optimizer states and history of one that nothing happened to, on all workers. *Training
again* is the time from the signal to the next step; after a SIGSTOP it contains the wait of 10 s,
or --progress-timeout, which was 20 s. A supervisor that was killed was started again by hand, one
that was stopped was continued after {STOP_OF_SUPERVISOR:g} s. *Left* are processes that were still
there five seconds after the end.
{report.provenance("soak")}

{joined}"""


def reference(state: dict, folder: Path, slowly: float, workers: int) -> str:
    """Return the digest of a job that nothing happens to."""
    known = state.setdefault("digests", {})
    if str(workers) not in known:
        job = Job(folder / f"whole-{workers}", workers, slowly)
        job.folder.mkdir()
        survive(job, [], None, random.Random(0))
        (known[str(workers)],) = job.digests()
    return known[str(workers)]


def main() -> None:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--kills", type=int, default=100)
    command.add_argument("--hosts", type=int, default=10)
    command.add_argument("--slowly", type=float, default=0.02, help="seconds after each batch")
    command.add_argument("--a-job", type=int, default=5, help="kills in one job")
    command.add_argument("--state", type=Path, default=ROOT / "runs" / "soak.json")
    command.add_argument("--seconds", type=float, default=float("inf"))
    options = command.parse_args()
    begin = time.monotonic()
    state = json.loads(options.state.read_text()) if options.state.exists() else {}
    plans = {"kills": options.kills, "hosts": options.hosts, "slowly": options.slowly}
    if state.setdefault("plan", plans) != plans:
        raise SystemExit(f"{options.state} is of another soak, {state['plan']}: name another one")
    done = [Kill(**kill) for kill in state.setdefault("kills", [])]
    kills = plan(options.kills, options.hosts)[len(done) :]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while kills and time.monotonic() - begin < options.seconds:
            first = kills[0]
            is_host = first.victim.startswith("host")
            some = [k for k in kills if k.workers == first.workers][: options.a_job]
            some = [k for k in some if k.victim.startswith("host") == is_host]
            some = kills[: len(some)]
            digest = reference(state, folder, options.slowly, first.workers)
            number = state["jobs"] = state.get("jobs", 0) + 1
            job = Job(folder / str(number), first.workers, options.slowly)
            job.folder.mkdir()
            hosts = start_hosts(folder / f"hosts-{number}") if is_host else None
            if hosts is not None:
                job.options = hosts.options
            try:
                survived = survive(job, list(some), hosts, random.Random(number))
            finally:
                if hosts is not None:
                    hosts.end()
            is_same = job.digests() == {digest}
            for kill in survived:
                kill.same = is_same
            done += survived
            kills = kills[len(survived) :]
            state["kills"] = [asdict(kill) for kill in done]
            options.state.parent.mkdir(parents=True, exist_ok=True)
            options.state.write_text(json.dumps(state))
            bits = "same" if is_same else "OTHER"
            print(f"job {number}: {bits} bits, {len(done)} kills done", *survived, sep="\n  ")
            sys.stdout.flush()
    if kills:
        print(f"{len(kills)} are left: the same command continues with them")
        return
    report.publish("soak", section(done, state["jobs"]), options.out)
    if any(not kill.same or kill.left for kill in done):
        raise SystemExit("not all jobs ended with the same bits and without processes left over")


def start_hosts(folder: Path) -> Hosts:
    if None in PROGRAMS.values():
        raise SystemExit("--hosts needs sshd, ssh and ssh-keygen (openssh-server); or --hosts 0")
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind((ADDRESSES[0], 0))
        port = probe.getsockname()[1]
    return Hosts(folder, port)


if __name__ == "__main__":
    main()
