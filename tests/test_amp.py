"""Mixed precision by MXNet's AMP: bfloat16 on CPU, with a loss scale that SVRG follows."""

import re
import subprocess
import sys
from pathlib import Path

import gluon_svrg as gs
import problems
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler
from problems import TWO


@pytest.mark.full
@pytest.mark.skipif(not problems.has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN")
def test_a_loss_scale_changes_no_bit():
    worker = Path(__file__).parent / "amp_worker.py"
    done = subprocess.run(
        [sys.executable, str(worker)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"^([a-zA-Z0-9 ]+): (True|False)$", done.stdout, re.MULTILINE)
    assert len(found) == 10
    assert [name for name, value in found if value == "False"] == []


def test_a_kvstore_that_updates_is_an_error():
    problem = problems.make("mlp", TWO)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", update_on_kvstore=True)
    trainer._amp_loss_scaler = LossScaler()
    trainer._amp_original_scale = trainer._scale
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer, context=TWO)
    with pytest.raises(ValueError, match="make the trainer with update_on_kvstore=False"):
        estimator.fit(problem.ndarrays(), epochs=1)


def test_a_loop_by_hand_says_its_loss_scale():
    """Without it, a table's gradients would be off by a factor once AMP changes the scale."""
    problem = problems.make("mlp")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", update_on_kvstore=False)
    trainer._amp_loss_scaler = LossScaler()
    backward, batches = problems.backward_of(problem.net, problem.loss), problem.ndarrays()
    with pytest.raises(ValueError, match="give loss_scaler=trainer to the"):
        trainer.set_control_variate(gs.svrg.Interval(problem.net, backward).begin(batches))
    interval = gs.svrg.Interval(problem.net, backward, loss_scaler=trainer)
    trainer.set_control_variate(interval.begin(batches))
