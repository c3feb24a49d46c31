"""What workers cost: sums, messages, a start, and the steps of a ResNet-20, on two and four.

All processes share this machine, a thread each, and no wire is measured. The engines are MPI and
PyTorch over Gloo, if there is one. In each round every engine has its turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import communication_jobs
import communication_pipes
import communication_steps
import report
import resnet
from communication_jobs import Engine

WORKERS = (2, 4)
MEASURED = ("1.09 MB in 65 arrays", "102 MB in 161 arrays", "message", "start")


def script_of(engine: Engine) -> str:
    return "communication_gloo.py" if engine.name == "gloo" else "communication_sums.py"


def sums(engines: dict[str, Engine], workers: int, rounds: int) -> dict[str, list[list[float]]]:
    """Return the seconds of each engine: by round, those of two sums and a message."""
    found: dict[str, list[list[float]]] = {name: [] for name in engines}
    with ExitStack() as stack:
        jobs = {}
        for name, engine in engines.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            communication_pipes.make(folder, workers)
            processes = communication_jobs.start(engine, workers, script_of(engine), [str(folder)])
            jobs[name] = communication_pipes.Job(folder, workers, processes)
            stack.callback(jobs[name].close)
        for _ in range(rounds):
            for name, job in jobs.items():
                time.sleep(report.PAUSE)
                found[name].append(job.turn())
    return found


def starts(engines: dict[str, Engine], workers: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each engine from the command to the first barrier."""
    contestants: dict[str, Callable[[], float]] = {
        name: partial(one_start, engine, workers) for name, engine in engines.items()
    }
    return report.interleaved(contestants, rounds)


def one_start(engine: Engine, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        arguments = [folder, "--start"]
        processes = communication_jobs.start(engine, workers, script_of(engine), arguments)
        for process in processes:
            process.wait()
        return max(float(path.read_text()) for path in Path(folder).glob("met-*")) - begin


def table(engines: dict[str, Engine], rounds: int) -> str:
    rows = []
    for workers in WORKERS:
        measured = sums(engines, workers, rounds)
        started = starts(engines, workers, max(2, rounds // 3))
        for name in engines:
            columns = [*zip(*measured[name], strict=True), started[name]]
            first = [*zip(*measured[next(iter(engines))], strict=True)]
            cells = []
            for number, (times, scale) in enumerate(
                zip(columns, (1e3, 1e3, 1e3, 1.0), strict=True)
            ):
                digits = 3 if number == 2 else 2
                text = f"**{report.median(times) * scale:.{digits}f}** "
                text += f"({report.spread(times, scale, digits)})"
                if name != next(iter(engines)) and number < len(first):
                    ratios = [a / b for a, b in zip(times, first[number], strict=True)]
                    text += f" {report.median(ratios):.1f}x"
                cells.append(text)
            rows.append([name, workers, *cells])
    units = ("ms", "ms", "ms", "s")
    header = ["engine", "workers", *(f"{n}, {u}" for n, u in zip(MEASURED, units, strict=True))]
    return report.markdown_table(header, rows)


def main() -> None:
    options = report.parser(__doc__, rounds=30).parse_args()
    has_torch = resnet.torch_version(options.peers_python) is not None
    engines = communication_jobs.engines(options.peers_python if has_torch else None)
    jobs = communication_steps.sets(engines)
    first = table(engines, options.rounds)
    # A round of these takes minutes: epochs so long that the begin of `fit` is a hundredth.
    steps = communication_steps.measure(max(1, options.rounds // 4), jobs)
    text = "\n\n".join(
        [
            "From a second barrier until all workers have the sums of their float32 arrays; one "
            "message that all gather, as the vote at each batch's end; and from the command that "
            "starts the job to the first barrier. Medians of the rounds (quartiles), a thread "
            "each; "
            "*2.0x* takes twice as long as MPI in the same round.",
            first,
            "Milliseconds (quartiles) a step of `fit`, 48 steps a run, on a CIFAR ResNet-20 with "
            "SGD, momentum and a global batch of 128 images; beside it PyTorch's loop by hand, "
            "without a metric or a handler. Ratios are those of the same round. Weak scaling: the "
            "step of one worker alone with as many samples, divided by that of all. Alone, a "
            "worker has a core for Python beside that of its kernels; of two workers on two cores "
            "each has one for both. So beside it the same from a worker that is kept on one core. "
            "Two processes share a machine's memory and caches, whatever they do: beside two that "
            "know nothing of each other is what working together costs. Four workers on two cores "
            "take turns.",
            communication_steps.table(steps, jobs),
            report.provenance("bench-communication"),
        ]
    )
    report.publish("bench-communication", text, options.out)


if __name__ == "__main__":
    main()
