"""The command line: ``python -m gluon_svrg.launch -n 4 script.py --its-flags``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from gluon_svrg.launch.cluster_options import across_of, add_cluster_options
from gluon_svrg.launch.job import Job
from gluon_svrg.launch.plan import OWN_NAMES, Options
from gluon_svrg.launch.rendezvous import join

_DESCRIPTION = """\
Starts a training script on several worker processes of this machine, watches them, and starts
all of them again when one fails: the run goes on from its newest checkpoint.

The script is the one for one process. A batch_size in it is that of all workers together."""

_EPILOG = """\
examples:
  python -m gluon_svrg.launch -n 4 train.py --epochs 10
  python -m gluon_svrg.launch -n 2 -m package.train --epochs 10
  python -m gluon_svrg.launch -n 4 -s 2 --max-restarts 20 --log-dir logs train.py
  python -m gluon_svrg.launch -n 2 --engine sockets --env MXNET_ENGINE_TYPE=NaiveEngine train.py
  python -m gluon_svrg.launch --hosts hosts.txt -n 2 train.py
  python -m gluon_svrg.launch --nodes 4 --node-rank 0 --master node0:29500 -n 2 train.py

exit codes:
  0       all workers have come to their end
  2       an argument is not possible, or the script cannot be started
  69      a machine is gone or has not come, and no restart left
  75      on all machines but the first: the launcher is gone
  124     no step for --progress-timeout, and no restart left
  130     ended by Ctrl-C; 143: by SIGTERM; 129: by SIGHUP
  others  that of the process that failed first in the last start; 128 + N after signal N

Ctrl-C and SIGTERM are handed to the workers once: with a CheckpointHandler they finish the batch,
write a checkpoint and end. The second one ends everything at once."""


def whole_number(name: str, least: int, reason: str) -> Callable[[str], int]:
    """Return a converter of an option's text; a ValueError's text gives value, reason, way out."""

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


def seconds(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(
            f"--progress-timeout must be a positive number of seconds, got {text!r}: give more "
            "than the longest step takes, or inf to wait for ever"
        )
    return value


def variable(text: str) -> tuple[str, str]:
    """Return name and value of a variable of the environment."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise argparse.ArgumentTypeError(
            f"--env must be NAME=VALUE, got {text!r}: for instance --env PS_VERBOSE=1"
        )
    if name in OWN_NAMES:
        raise argparse.ArgumentTypeError(
            f"--env must leave {name} alone: each process gets its own value from the launcher; "
            "leave it out"
        )
    return name, value


def folder(text: str) -> Path:
    """Return a folder that can be written into; it is made if it is not there."""
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
    """Raise ValueError if Python could not start the script, with the reason."""
    if Path(path).is_dir():
        if not Path(path, "__main__.py").is_file():
            raise ValueError(f"{path!r} is a folder without a __main__.py: name a script in it")
        return
    is_file = Path(path).is_file() or not Path(path).exists()
    if not is_file or path == "-" or path.startswith(("/dev/stdin", "/dev/fd/")):
        raise ValueError(
            f"the script {path!r} can be read once, and every worker has to read it: save it in a "
            "file"
        )
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"the script {path!r} cannot be read: {error.strerror}; name one that is there, "
            f"seen from {Path.cwd()}"
        ) from None
    if source.startswith(b"PK"):  # a zip file, which Python can run
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the script {path!r} is no Python: {error}; mend it first") from None


def check_module(name: str) -> None:
    """Raise ValueError if there is no such module; what is inside a package is not looked for."""
    top = name.partition(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top) is None:
        raise ValueError(
            f"the module {name!r} cannot be found: install it, or start in the folder that it is in"
        )


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gluon_svrg.launch",
        usage="%(prog)s -n N [options] script.py [its arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        "--workers",
        required=True,
        type=whole_number("--workers", 1, "that many processes train; -n 1 is a plain run"),
        help="worker processes, which share each batch; on each machine where there are several",
        metavar="N",
    )
    parser.add_argument(
        "-s",
        "--servers",
        default=1,
        type=whole_number("--servers", 1, "somebody has to add up the gradients; leave it out"),
        help="processes that add up the gradients (1)",
        metavar="S",
    )
    parser.add_argument(
        "--engine",
        default="dist_sync",
        choices=["dist_sync", "mpi", "sockets"],
        help="what adds up arrays: MXNet's parameter servers; MPI, which is faster, and an extra; "
        "or plain sockets through worker 0, which are slower (dist_sync)",
    )
    _add_options(parser)
    add_cluster_options(parser)
    parser.add_argument(
        "-m", "--module", action="store_true", help="run a module, as python -m does"
    )
    parser.add_argument("script", help="the script, or the module after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how the processes run, and what happens when one fails."""
    parser.add_argument(
        "--max-restarts",
        default=3,
        type=whole_number("--max-restarts", 0, "0 ends the job at the first failure"),
        help="how often everything is started again after a failure (3)",
        metavar="N",
    )
    parser.add_argument(
        "--progress-timeout",
        default=600.0,
        type=seconds,
        help="a job without a step for so long counts as hung (600)",
        metavar="SECONDS",
    )
    parser.add_argument(
        "--threads",
        type=whole_number("--threads", 1, "a process computes with at least one; leave it out"),
        help="OMP_NUM_THREADS of each process (the cores divided by the workers, unless the "
        "variable is set already)",
        metavar="N",
    )
    parser.add_argument(
        "--exact",
        default=True,
        action=argparse.BooleanOptionalAction,
        help="sums that do not depend on who comes first, so that a run repeats to the bit (yes)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        type=variable,
        help="a variable for the environment of all processes; may be given again",
        metavar="NAME=VALUE",
    )
    parser.add_argument(
        "--log-dir",
        type=folder,
        help="also write the output of each process and start into a file of its own here",
        metavar="FOLDER",
    )


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return what the command line asks for; end with a sentence and code 2 if it is impossible."""
    parser = new_parser()
    given = parser.parse_args(arguments)
    try:
        check_module(given.script) if given.module else check_script(given.script)
        if given.engine == "mpi" and importlib.util.find_spec("mpi4py") is None:
            raise ValueError("--engine mpi needs mpi4py and MPICH: pip install 'gluon-svrg[mpi]'")
        across = across_of(given)
    except ValueError as error:
        parser.error(str(error))
    start = ["-m", given.script] if given.module else [given.script]
    return Options(
        command=[*start, *given.arguments],
        workers=given.workers,
        servers=given.servers,
        engine=given.engine,
        max_restarts=given.max_restarts,
        progress_timeout=given.progress_timeout,
        threads=given.threads,
        exact=given.exact,
        variables=dict(given.env),
        log_dir=given.log_dir,
        across=across,
    )


def main() -> int:
    """Run the job; return the exit code."""
    if sys.platform != "linux":
        print("gluon_svrg.launch needs Linux: run the script itself, as one process")
        return 2
    options = parse()
    if options.across is not None and options.across.rank > 0:
        return join(options, options.across)
    return Job(options).run()


if __name__ == "__main__":
    sys.exit(main())
