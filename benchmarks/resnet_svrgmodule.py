"""A worker of resnet.py: epochs of MXNet's own SVRGModule.

It imports nothing of gluon_svrg, so that MXNet runs as it comes, but for the aliases without
which it does not import on NumPy 1.26.
"""

from __future__ import annotations

import argparse
import builtins

import numpy as np
import resnet

for _name in ("bool", "float", "int", "object"):
    # vars(), not hasattr(): NumPy warns when a removed alias is asked for.
    if _name not in vars(np):
        setattr(np, _name, getattr(builtins, _name))

import mxnet as mx  # noqa: E402
from gluoncv.model_zoo import get_model  # noqa: E402
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule  # noqa: E402


def iterator(batches: int) -> mx.io.NDArrayIter:
    random = np.random.default_rng(0)
    samples = resnet.BATCH_SIZE * batches
    return mx.io.NDArrayIter(
        random.standard_normal((samples, *resnet.IMAGE), "float32"),
        random.integers(0, resnet.CLASSES, samples).astype("float32"),
        resnet.BATCH_SIZE,
        label_name="softmax_label",
    )


def module(data: mx.io.NDArrayIter) -> SVRGModule:
    """Return the module, ready to train."""
    net = get_model(resnet.MODEL, classes=resnet.CLASSES)
    scores = net(mx.sym.Variable("data"))
    output = mx.sym.SoftmaxOutput(scores, mx.sym.Variable("softmax_label"), name="softmax")
    result = SVRGModule(output, data_names=["data"], label_names=["softmax_label"], update_freq=1)
    result.bind(data.provide_data, data.provide_label)
    result.init_params(mx.init.Xavier())
    rates = tuple(resnet.OPTIMIZER.items())
    result.init_optimizer(kvstore="local", optimizer="sgd", optimizer_params=rates)
    return result


def run_epoch(svrg: SVRGModule, data: mx.io.NDArrayIter) -> None:
    """Do what SVRGModule.fit does in an epoch, but for the metric."""
    svrg.update_full_grads(data)
    data.reset()
    for batch in data:
        svrg.forward_backward(batch)
        svrg.update()


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--batches", type=int, required=True)
    data = iterator(command.parse_args().batches)
    svrg = module(data)
    resnet.serve(resnet.timed(lambda: run_epoch(svrg, data), mx.nd.waitall))


if __name__ == "__main__":
    main()
