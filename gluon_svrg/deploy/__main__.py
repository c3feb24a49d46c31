"""The command line: ``python -m gluon_svrg.deploy``; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np
from gluon_svrg import deploy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.files import DAMAGED

# How messages name an argument, and the option that gives it.
_OPTIONS = {
    "or ask for resize=True (--resize)": "or ask for --resize",
    "this one as int8_directory (--int8)": "this one as --int8",
    "replace it with overwrite=True": "replace it with --overwrite",
    "give some as sample": "give some with --sample",
    "calibration_data of ": "--calibration of ",
    "load it with operators=": "give --operator for each of ",
    "leave out layers with exclude_layers, or use": "use",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        The exit code: 0; 2 after an error, which is one sentence on stderr; 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ImportError, OSError, TypeError, ValueError) as e:
        print(f"error: {_as_options(str(e))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _as_options(message: str) -> str:
    """Return a message of the package with options for the arguments that it names."""
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    return message


def _predict(options: argparse.Namespace) -> None:
    predictor = deploy.Predictor.load(options.directory, operators=options.operator)
    batch = predictor.read_images(options.images, resize=options.resize)
    found = predictor.classes(batch, top=options.top)
    if options.json:
        rows = [
            {"image": image, "classes": [prediction._asdict() for prediction in predictions]}
            for image, predictions in zip(options.images, found, strict=True)
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for image, predictions in zip(options.images, found, strict=True):
        print(f"{image}: " + ", ".join(f"{name} {value:.3f}" for name, value in predictions))


def _benchmark(options: argparse.Namespace) -> None:
    from gluon_svrg.deploy.benchmark import format_timings, machine

    timings = deploy.benchmark(
        options.directory, options.batch, options.seconds, options.int8, options.operator
    )
    print(f"{machine()}\n")
    print(format_timings(timings))


def _export_onnx(options: argparse.Namespace) -> None:
    sample = None if options.sample is None else _read_archive(options.sample)
    difference = deploy.export_onnx(
        options.directory, options.path, sample=sample, operators=options.operator
    )
    print(f"{options.path}: outputs within {difference:.2g} of MXNet's")


def _quantize(options: argparse.Namespace) -> None:
    arrays = _read_archive(options.calibration)
    report = deploy.quantize(
        options.directory,
        options.out_directory,
        arrays,
        overwrite=options.overwrite,
        operators=options.operator,
    )
    print(f"{options.out_directory}: calibrated on {report['calibration_samples']} samples")


def _read_archive(path: str) -> list[NumPyArray]:
    """Return the arrays of an .npz, in their order; raises ValueError if it is not one."""
    try:
        # Opened here, since NumPy does not close a file that it cannot read.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array and no names")
            return [archive[name] for name in archive.files]
    except FileNotFoundError as e:
        raise FileNotFoundError(f"there is no file {path!r}: write it with numpy.savez") from e
    except DAMAGED as e:
        raise ValueError(
            f"{path!r} is not an .npz of arrays of numbers ({e}): write it with numpy.savez"
        ) from e


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gluon_svrg.deploy", description="Run models that gluon_svrg exported."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    predict = commands.add_parser("predict", help="print the classes of image files")
    predict.add_argument("directory", help="the model directory")
    predict.add_argument("images", nargs="+", help="JPEG or PNG files")
    predict.add_argument("--top", type=int, default=1, help="classes per image (default 1)")
    predict.add_argument("--resize", action="store_true", help="resize images of another size")
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.set_defaults(run=_predict)

    timing = commands.add_parser(
        "benchmark", aliases=["bench"], help="latency and throughput of each way to run it"
    )
    timing.add_argument("directory", help="the model directory, of float32")
    timing.add_argument("--batch", type=int, nargs="+", default=[1, 64], help="samples per call")
    timing.add_argument("--seconds", type=float, default=5.0, help="per batch size (default 5)")
    timing.add_argument("--int8", help="its int8 model directory (default: one made for this)")
    timing.set_defaults(run=_benchmark)

    onnx = commands.add_parser("export-onnx", help="write an ONNX file, checked by onnxruntime")
    onnx.add_argument("directory", help="the model directory, of float32")
    onnx.add_argument("path", help="the ONNX file")
    onnx.add_argument(
        "--sample", help="an .npz with a batch for each input, in order, to compare on"
    )
    onnx.set_defaults(run=_export_onnx)

    int8 = commands.add_parser("quantize", help="write the model in int8")
    int8.add_argument("directory", help="the model directory, of float32")
    int8.add_argument("out_directory", help="the directory to write")
    int8.add_argument(
        "--calibration", required=True, help="an .npz with a batch for each input, in order"
    )
    int8.add_argument("--overwrite", action="store_true", help="replace an existing model")
    int8.set_defaults(run=_quantize)

    for command in (predict, timing, onnx, int8):
        command.add_argument(
            "--operator",
            action="append",
            default=[],
            metavar="NAME",
            help="an operator to load beside those that are known to be safe; may be repeated",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
