"""A loop of one's own under several workers: it is right, or a sentence at the end."""

import re

import pytest
from launching import launch

pytestmark = [pytest.mark.full, pytest.mark.long]

# The trainer is gone before the end of the script.
SCRIPT = """
import sys
{imports}
from mxnet import autograd, gluon
import numpy as np

def train():
    gs.seed_everything(0)
    net = gluon.nn.Dense(1, in_units=4)
    net.initialize(mx.init.Normal(0.5))
    x = np.random.RandomState(0).normal(size=(16, 4)).astype("float32")
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(x, x.sum(1)), 8)
    data = gs.data.shard(data) if "shard" in sys.argv else data
    kind = gluon.Trainer if "plain" in sys.argv else gs.SVRGTrainer
    trainer = kind(net.collect_params(), "sgd", {{"learning_rate": 0.1}})
    for _ in range(2):
        for batch, label in data:
            with autograd.record():
                loss = gluon.loss.L2Loss()(net(batch), label)
            loss.backward()
            trainer.step(len(loss))
    return float(net.weight.data().sum().asscalar())

if "alone" in sys.argv:
    with gs.workers.single_process():
        weights = train()
else:
    weights = train()
print("weights", repr(weights), flush=True)
"""
IMPORTS = {
    "gluon_svrg first": "import gluon_svrg as gs\nimport mxnet as mx",
    "MXNet first": "import mxnet as mx\nimport gluon_svrg as gs",
}
SENTENCE = (
    r"\[worker 0\] each of 2 workers has trained a network of its own: gluon.Trainer took 4 steps "
    r"on each without summing the gradients; use gluon_svrg.SVRGTrainer, which takes the same "
    r"arguments, and divide the batches by gluon_svrg.data.shard\(train_data\)\n"
)


def run(folder, *arguments, imports="gluon_svrg first", workers=2):
    (folder / "train.py").write_text(SCRIPT.format(imports=IMPORTS[imports]))
    launched = launch(folder, "-n", workers, "--max-restarts", 0, "train.py", *arguments)
    return launched, re.findall(r"weights (\S+)", launched.out)


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("divided", [["shard"], []], ids=["divided", "undivided"])
def test_a_plain_trainer(divided, imports, tmp_path):
    """On 0.8 nothing was said if the Trainer was made before anything of this package."""
    launched, weights = run(tmp_path, "plain", *divided, imports=imports)
    assert launched.code == 0
    assert len(weights) == 2
    assert len(set(weights)) == 1 + len(divided)  # two networks
    said = launched.out + launched.err
    assert len(re.findall(SENTENCE, said)) == 1
    assert said.count("gluon.Trainer does not sum the gradients of the 2 workers") == 1


@pytest.mark.parametrize("divided", [["shard"], []], ids=["divided", "undivided"])
def test_an_svrg_trainer(divided, tmp_path):
    """It trains one network, faster if the batches are divided."""
    launched, weights = run(tmp_path, *divided)
    assert launched.code == 0
    assert len(weights) == 2
    assert len(set(weights)) == 1
    assert "network of its own" not in launched.out + launched.err
    _, alone = run(tmp_path, workers=1)
    assert float(weights[0]) == pytest.approx(float(alone[0]), rel=1e-6)


@pytest.mark.parametrize(("arguments", "workers"), [(["plain", "alone"], 2), (["plain"], 1)])
def test_a_network_that_is_meant_to_be_its_own(arguments, workers, tmp_path):
    launched, weights = run(tmp_path, *arguments, workers=workers)
    assert launched.code == 0
    assert len(weights) == workers
    assert "own: gluon.Trainer" not in launched.out + launched.err
    assert "does not sum the gradients" not in launched.out + launched.err
