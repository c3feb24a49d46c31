"""Time the ways to serve gluoncv's cifar_resnet20_v1 on the CPU.

They take turns, call by call. Run it by ``make bench-deploy``, which puts the table into
docs/benchmarks/deploy.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import report
from gluon_svrg import deploy
from gluon_svrg.deploy.benchmark import format_timings
from gluoncv.model_zoo import get_model


def model_in(folder: str) -> Path:
    """Export the network, with random weights, tuned as an Estimator tunes it."""
    gs.seed_everything(0)
    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize(mx.init.Xavier())
    gs.tune_for_cpu(net)
    sample = mx.nd.random.normal(shape=(1, 3, 32, 32))
    net(sample)  # finds the shapes of its parameters
    return deploy.export(net, Path(folder) / "model", sample)


def main() -> None:
    options = report.parser(__doc__, rounds=30).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        timings = deploy.benchmark(model_in(folder), (1, 64), seconds=float(options.rounds))
    p50 = {(timing.name, timing.batch): timing.p50 for timing in timings}
    beside = " and ".join(
        f"{p50['predictor, onnxruntime', batch] / p50['onnxruntime', batch]:.2f} (batch {batch})"
        for batch in (1, 64)
    )
    packages = ("mxnet", "numpy", "gluoncv", "onnxruntime")
    provenance = report.provenance("bench-deploy", packages)
    text = f"""\
`cifar_resnet20_v1`, 3 x 32 x 32, float32 and int8, from NumPy arrays to NumPy arrays, all cores;
{options.rounds} seconds a batch size, for all ways in turn, in a random order. "eager" is the graph
run operator by operator from Python, "onnxruntime" the ONNX file without this package.
A predictor by onnxruntime takes {beside} of the median time of onnxruntime alone. {provenance}

{format_timings(timings)}"""
    report.publish("bench-deploy", text, options.out)


if __name__ == "__main__":
    main()
