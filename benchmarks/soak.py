"""Kill the processes of a job at random moments, many times, and compare what comes out of it.

The training is tests/training_worker.py: SVRG with a table, LARS, dropout, BatchNorm, a checkpoint
every three batches. It says in which phase it is, and is killed there: scheduler, server, worker 0,
another worker, the launcher (which is started again then), or two at once. Run it by ``make soak``,
which puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
TRAINING = ROOT / "tests" / "training_worker.py"
PHASES = ["start-up", "full_pass", "step", "checkpoint", "evaluation", "end"]
ROLES = ["scheduler", "server 0", "worker 0", "worker 1", "launcher"]
PATIENCE = 180.0  # seconds after which a job counts as hung


@dataclass
class Kill:
    """What was killed, when, and what came of it; times in seconds, None where none was seen."""

    roles: tuple[str, ...]
    phase: str
    detected: float | None = None
    again: float | None = None
    left: int = 0
    same: bool | None = None


@dataclass
class Job:
    """One training: its folder, and the kills that it survives."""

    folder: Path
    options: argparse.Namespace
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    def start(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "gluon_svrg.launch"]
        command += ["-n", str(self.options.workers), "--max-restarts", "1000"]
        command += ["--engine", self.options.engine, str(TRAINING), str(self.folder)]
        command += ["--slowly", str(self.options.slowly)]
        environment = os.environ | {"SOAK": self.mark, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        self.launcher = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[tuple[float, str | None]] = queue.Queue()
        self.said: list[str] = []
        self.is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.launcher.stdout is not None
        lines = self.lines
        for line in self.launcher.stdout:
            lines.put((time.monotonic(), line))
        lines.put((time.monotonic(), None))

    def wait_for(self, pattern: str) -> float | None:
        """Return when a line was printed that matches; None if the job ended before."""
        end = time.monotonic() + PATIENCE
        while not self.is_over:
            try:
                at, line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                self.kill_all()
                raise SystemExit(f"no {pattern!r} for {PATIENCE:g} s:\n{self.last()}") from None
            if line is None:
                self.is_over = True
                break
            self.said.append(line)
            if re.search(pattern, line):
                return at
        return None

    def last(self) -> str:
        return "".join(self.said[-40:])

    def processes(self) -> dict[str, int]:
        """Return the processes of the job by role; others by their number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                is_alive = bool((folder / "cmdline").read_bytes())
            except OSError:
                continue
            if f"SOAK={self.mark}".encode() in variables and is_alive:
                values = dict(v.decode().partition("=")[::2] for v in variables if v)
                role = values.get("DMLC_ROLE", "launcher")
                name = {"scheduler": "scheduler", "server": "server 0"}.get(role, folder.name)
                if "GLUON_SVRG_RANK" in values:
                    name = f"worker {values['GLUON_SVRG_RANK']}"
                found[name] = int(folder.name)
        return found

    def kill(self, roles: Iterable[str]) -> bool:
        """Kill processes at once; return whether all were there."""
        processes = self.processes() | {"launcher": self.launcher.pid}
        if self.launcher.poll() is not None or not set(roles) <= set(processes):
            return False
        for role in roles:
            os.kill(processes[role], signal.SIGKILL)
        return True

    def kill_all(self) -> None:
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)

    def left(self) -> tuple[int, float]:
        """Return how many processes are still there after some seconds, and how long it took."""
        begin = time.monotonic()
        while (found := self.processes()) and time.monotonic() < begin + 5:
            time.sleep(0.005)
        return len(found), time.monotonic() - begin

    def digests(self) -> set[str]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("worker-*.json")]
        assert len(found) == self.options.workers, self.last()
        return {one["digest"] for one in found}

    def torn(self) -> list[str]:
        """Return what is in the folder of checkpoints and is no checkpoint."""
        names = [path.name for path in (self.folder / "checkpoints").iterdir()]
        return [name for name in names if not re.fullmatch(r"epoch-\d+-batch-\d+|\..*lock.*", name)]


def survive(job: Job, kills: list[Kill]) -> list[Kill]:
    """Run a job through the next kills, as many as come before its end; return those."""
    done: list[Kill] = []
    job.start()
    moment = random.Random(str(kills))
    while kills:
        kill = kills[0]
        if kill.phase == "start-up":
            time.sleep(moment.uniform(0, job.options.start_up))
        elif job.wait_for(rf"\] phase {kill.phase}") is None:
            break
        else:
            time.sleep(moment.uniform(0, 0.05))
        at = time.monotonic()
        if not job.kill(kill.roles):
            if job.launcher.poll() is not None:
                break
            continue  # not there yet
        done.append(kills.pop(0))
        if "launcher" in kill.roles:
            job.launcher.wait()
            kill.left, kill.detected = job.left()
            job.start()
            again = job.wait_for(r"\] phase (step|end)")
        else:
            seen = job.wait_for("launch: .* was ended by SIGKILL")
            kill.detected = None if seen is None else max(0.0, seen - at)
            again = None if kill.phase == "start-up" else job.wait_for("launch: training again")
        kill.again = None if again is None else again - at
    while job.launcher.poll() is None and job.wait_for("launch: .* no such line") is not None:
        pass
    code = job.launcher.wait()
    left, _ = job.left()
    for kill in done:
        kill.left += left
    if code != 0:
        raise SystemExit(f"the job ended with {code}:\n{job.last()}")
    return done


def plan(number: int, engine: str) -> list[Kill]:
    """Return kills of all roles in all phases, in a random order; each tenth of two at once."""
    rng = random.Random(0)
    existing = ROLES if engine == "dist_sync" else ROLES[2:]
    pairs = [(role, phase) for phase in PHASES for role in existing]
    kills = []
    for i in range(number):
        if i % len(pairs) == 0:
            rng.shuffle(pairs)
        role, phase = pairs[i % len(pairs)]
        roles = (role,)
        if i % 10 == 9 and role != "launcher":
            roles = (role, rng.choice([one for one in existing[:-1] if one != role]))
        kills.append(Kill(roles, phase))
    return kills


def rows(kills: Sequence[Kill], key: Callable[[Kill], str], names: Sequence[str]) -> list[tuple]:
    table = []
    for name in names:
        own = [kill for kill in kills if key(kill) == name]
        if own:
            table.append((name, *figures(own)))
    return table


def figures(kills: Sequence[Kill]) -> tuple:
    detected = [kill.detected for kill in kills if kill.detected is not None]
    again = [kill.again for kill in kills if kill.again is not None]
    return (
        len(kills),
        sum(bool(kill.same) for kill in kills),
        f"{report.median(detected):.3f} ({max(detected):.3f})" if detected else "",
        f"{report.median(again):.1f} ({max(again):.1f})" if again else "",
        sum(kill.left for kill in kills),
    )


def section(kills: Sequence[Kill], options: argparse.Namespace, jobs: int) -> str:
    header = ["kills", "same bits", "s to detection (most)", "s to training again (most)", "left"]
    roles = [*ROLES, "two at once"]
    by_role = rows(kills, lambda k: k.roles[0] if len(k.roles) == 1 else "two at once", roles)
    by_phase = rows(kills, lambda k: k.phase, PHASES)
    return f"""## What survives a SIGKILL: {options.engine}

A training by `python -m gluon_svrg.launch -n {options.workers} --engine {options.engine}` (SVRG
with a table, LARS, dropout, BatchNorm, a checkpoint every three batches), killed {len(kills)} times
in {jobs} jobs, at random moments of a phase. *Same bits*: the job that the kill was in ended with
the weights, optimizer states and history of the one without kills, on all workers. *Detection* is
until the launcher says so; of a launcher, until none of its processes is left. *Training again* is
until the first step after the restart. *Left* are processes that were still there five seconds
after the end. {report.provenance("soak")}

{report.markdown_table(["killed", *header], [*by_role, ("all", *figures(kills))])}

{report.markdown_table(["in the phase", *header], by_phase)}"""


def main() -> None:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--kills", type=int, default=100)
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--engine", default="dist_sync")
    command.add_argument("--slowly", type=float, default=0.02, help="seconds after each batch")
    command.add_argument("--start-up", type=float, default=3.0, help="seconds that a start takes")
    command.add_argument("--a-job", type=int, default=8, help="kills in one job")
    options = command.parse_args()
    kills = plan(options.kills, options.engine)
    done: list[Kill] = []
    jobs = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = Job(Path(folder, "whole"), options)
        whole.folder.mkdir()
        survive(whole, [])
        digests = whole.digests()
        assert len(digests) == 1, digests
        while kills:
            jobs += 1
            job = Job(Path(folder, str(jobs)), options)
            job.folder.mkdir()
            some, kills = kills[: options.a_job], kills[options.a_job :]
            survived = survive(job, some)
            kills = some + kills
            is_same = job.digests() == digests
            for kill in survived:
                kill.same = is_same
            done += survived
            print(
                f"job {jobs}: {len(survived)} kills, {'same' if is_same else 'OTHER'} bits, "
                f"{len(done)} of {options.kills}; torn: {job.torn()}; "
                + ", ".join(f"{'+'.join(k.roles)} in {k.phase}" for k in survived),
                flush=True,
            )
    report.publish(f"soak-{options.engine}", section(done, options, jobs), options.out)
    if any(not kill.same or kill.left for kill in done):
        raise SystemExit("not all jobs ended with the same bits and without processes left over")


if __name__ == "__main__":
    main()
