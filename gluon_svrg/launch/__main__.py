"""The command line: ``python -m gluon_svrg.launch -n 4 train.py --its-flags``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gluon_svrg._cores import usable_cores
from gluon_svrg.launch.hosts import read_hosts
from gluon_svrg.launch.job import Job, Options

_DESCRIPTION = """\
Train with several worker processes, which MPI's mpiexec starts. If one fails, all of them are
restarted, and the run continues from its newest checkpoint.

The script is the same as for one process. Its batch_size is the total over all workers."""

_EPILOG = """\
examples:
  python -m gluon_svrg.launch -n 4 train.py --epochs 10
  python -m gluon_svrg.launch -n auto -m package.train --epochs 10
  python -m gluon_svrg.launch -n 4 --max-restarts 20 --log-dir logs train.py
  python -m gluon_svrg.launch --hosts hosts.txt -n 8 train.py
  python -m gluon_svrg.launch --hosts hosts.txt -n 8 --min-workers 4 --wait 60 train.py

exit codes:
  0       all workers have finished the script
  2       an argument is invalid, or the script cannot be started
  69      too few hosts are available
  124     no step within --progress-timeout, and no restart left
  130     stopped by Ctrl-C; 143: by SIGTERM; 138: by SIGUSR1; 129: by SIGHUP
  others  the exit code of the worker that failed in the last attempt; 128 + N after signal N

The first Ctrl-C, SIGTERM or SIGUSR1 is forwarded to the workers: with a CheckpointHandler they
finish the batch, write a checkpoint and exit. A second signal kills all processes immediately."""


def whole_number(name: str, least: int, reason: str) -> Callable[[str], int]:
    """Return a function that converts an option's text to a whole number of at least `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{name} must be a whole number from {least} on, got {text!r}: {reason}"
            )
        return value

    return convert


def workers(text: str) -> int | None:
    """Convert the text of --workers to a number; None for 'auto'."""
    number = whole_number("--workers", 1, "that many processes train; 'auto' takes one per core")
    return None if text == "auto" else number(text)


def seconds(name: str, hint: str) -> Callable[[str], float]:
    """Return a function that converts an option's text to a positive number of seconds."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not value > 0:
            raise argparse.ArgumentTypeError(
                f"{name} must be a positive number of seconds, got {text!r}: {hint}"
            )
        return value

    return convert


def folder(text: str) -> Path:
    """Convert the text of --log-dir to a path; create the folder if it does not exist."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"--log-dir cannot be made, got {text!r}: {error.strerror}; name another folder"
        ) from None
    if not is_writable:
        raise argparse.ArgumentTypeError(
            f"--log-dir cannot be written into, got {text!r}: name another folder"
        )
    return path


def check_script(path: str) -> None:
    """Raise ValueError if Python cannot run the script."""
    if Path(path).is_dir():
        if not Path(path, "__main__.py").is_file():
            raise ValueError(f"{path!r} is a folder without a __main__.py: pass a script in it")
        return
    is_file = Path(path).is_file() or not Path(path).exists()
    if not is_file or path == "-" or path.startswith(("/dev/stdin", "/dev/fd/")):
        raise ValueError(
            f"the script {path!r} can be read only once, but every worker reads it: save it in a "
            "file"
        )
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"the script {path!r} cannot be read: {error.strerror}; pass a path that exists, "
            f"relative to {Path.cwd()}"
        ) from None
    if source.startswith(b"PK"):  # a zip file, which Python can run
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"the script {path!r} is not valid Python: {error}; fix it first"
        ) from None


def check_module(name: str) -> None:
    """Raise ValueError if the module, or the package that contains it, cannot be found."""
    top = name.partition(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top) is None:
        raise ValueError(f"the module {name!r} cannot be found: install it, or start in its folder")


def check_workers(workers: int | None, hosts: Mapping[str, int]) -> None:
    """Raise ValueError if there are more workers than slots on the hosts."""
    if hosts and workers is not None and workers > sum(hosts.values()):
        names = ", ".join(f"{host}:{number}" for host, number in hosts.items())
        raise ValueError(
            f"-n {workers} is more than the workers of all hosts ({names}): give -n auto, or "
            "write 'name:workers' into the file for more workers on a host"
        )


def new_parser() -> argparse.ArgumentParser:
    """Return the parser for the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gluon_svrg.launch",
        usage="%(prog)s -n N [options] train.py [its arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        "--workers",
        required=True,
        type=workers,
        help="number of workers, which share each batch; 'auto': one per core, or as many "
        "as the hosts file allows; -n 1 is the same as python train.py, with restarts",
        metavar="N",
    )
    parser.add_argument(
        "--max-restarts",
        default=3,
        type=whole_number("--max-restarts", 0, "0 ends the job at the first failure"),
        help="number of restarts after failures (3)",
        metavar="N",
    )
    parser.add_argument(
        "--progress-timeout",
        default=300.0,
        type=seconds(
            "--progress-timeout", "give more than the longest step takes, or inf for no limit"
        ),
        help="restart if no step is completed for this time (300)",
        metavar="SECONDS",
    )
    parser.add_argument(
        "--threads",
        type=whole_number("--threads", 1, "each worker needs at least one; leave it out"),
        help="OMP_NUM_THREADS of each worker (by default the cores of a machine divided by its "
        "workers, unless the variable is set)",
        metavar="N",
    )
    parser.add_argument(
        "--log-dir",
        type=folder,
        help="also write the output to this folder, one file per worker and attempt",
        metavar="FOLDER",
    )
    parser.add_argument(
        "--hosts",
        type=Path,
        help="a file with one host per line: 'name' or 'name:workers'; mpiexec connects by ssh "
        "(HYDRA_HOST_FILE, if it is set)",
        metavar="FILE",
    )
    parser.add_argument("--ssh", default="ssh", help="the ssh program (ssh)", metavar="PROGRAM")
    parser.add_argument(
        "--wait",
        default=300.0,
        type=seconds("--wait", "give the time to wait for a host"),
        help="how long to wait for an unavailable host at each start (300)",
        metavar="SECONDS",
    )
    parser.add_argument(
        "--min-workers",
        type=whole_number("--min-workers", 1, "at least one must train"),
        help="after a failure, continue without a host that does not come back within --wait, "
        "if at least N workers remain",
        metavar="N",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="run a module, as python -m does"
    )
    parser.add_argument("script", help="the script, or the module with -m")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the arguments of the script"
    )
    rest.required = False  # otherwise argparse's error also names it if the script is missing
    return parser


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the options; print an error and exit with code 2 if they are invalid."""
    parser = new_parser()
    given = parser.parse_args(arguments)
    try:
        check_module(given.script) if given.module else check_script(given.script)
        # Kubeflow's MPI Operator sets it.
        path = given.hosts or os.environ.get("HYDRA_HOST_FILE")
        hosts = read_hosts(Path(path)) if path else {}
        check_workers(given.workers, hosts)
    except ValueError as error:
        parser.error(str(error))
    if given.min_workers is not None and not hosts:
        parser.error("--min-workers needs --hosts: it is for jobs that can lose a host")
    start = ["-m", given.script] if given.module else [given.script]
    return Options(
        command=[*start, *given.arguments],
        workers=given.workers or _cores(hosts),
        max_restarts=given.max_restarts,
        progress_timeout=given.progress_timeout,
        threads=given.threads,
        log_dir=given.log_dir,
        hosts=hosts,
        ssh=given.ssh,
        wait=given.wait,
        min_workers=given.min_workers,
    )


def _cores(hosts: Mapping[str, int]) -> int:
    """Return the number of workers for ``-n auto``."""
    if hosts:
        return sum(hosts.values())
    # In a Slurm job, the number of tasks that was requested.
    return int(os.environ.get("SLURM_NTASKS") or usable_cores())


def main() -> int:
    """Run the job; return the exit code."""
    if sys.platform != "linux":
        print("gluon_svrg.launch needs Linux: run the script itself, in one process")
        return 2
    options = parse()
    try:
        job = Job(options)
    except ValueError as error:
        print(f"launch: {error}", file=sys.stderr)
        return 2
    return job.run()


if __name__ == "__main__":
    sys.exit(main())
