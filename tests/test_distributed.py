"""A kvstore that the user has started: two workers, a server and a scheduler of MXNet's own."""

import os
from pathlib import Path

import numpy as np
import optimizer_oracle
import pytest
from cluster import Process, answers_of, finish, ps_lite, start_servers

WORKER = Path(__file__).with_name("distributed_worker.py")


def run_workers(task):
    """Run `task` of distributed_worker.py on two workers; return what each printed, as JSON."""
    environment = os.environ | ps_lite(2, 1) | {"OMP_NUM_THREADS": "1"}
    servers = start_servers(environment, 1, [WORKER, task])
    workers = [Process([WORKER, task], environment) for _ in range(2)]
    finish(workers, servers)
    return sorted(answers_of(workers, servers), key=lambda result: result["rank"])


def test_the_full_gradient_is_the_mean_over_the_samples_of_all_workers():
    """Worker 0 has gradients 1 and 1 (two samples), worker 1 has 4 (one sample): the mean is 2."""
    results = run_workers("svrg_trainer")
    for result in results:
        assert result["full_gradients"] == [2.0, 2.0, 2.0]
        # A step from the snapshot itself goes along the full gradient, on both workers.
        assert result["weights"] == [9.0, 8.0, 7.0]


def test_a_server_that_runs_the_optimizer_is_an_error():
    for result in run_workers("update_on_kvstore"):
        assert "update_on_kvstore=True is for one worker: over several" in result["error"]


@pytest.mark.parametrize("kind", ["LARS", "Signum"])
def test_a_server_of_mxnet_runs_our_optimizers_and_knows_names_and_multipliers(kind):
    """They travel by pickle and leave the Parameters behind: gamma is exempt, and has lr_mult."""
    grad = np.array([3.0, 4.0])
    expected = []
    for lr, exempt in ((0.25, False), (0.5 * 0.25, True)):
        rule = getattr(optimizer_oracle, kind)(lr=lr, momentum=0.5)
        weight, mom = np.ones(2), np.zeros(2)
        for _ in range(2):
            weight, mom = rule.step(weight, grad, mom, exempt=exempt)
        expected.append(weight)
    for result in run_workers(f"{kind.lower()}_on_the_server"):
        np.testing.assert_allclose(result["weights"], expected, rtol=1e-6)


def test_defect_4_of_svrgmodule_the_sum_over_workers_instead_of_the_mean():
    """Both workers of MXNet's SVRGModule have the same data, so the mean is that of each: 3."""
    for result in run_workers("svrg_module"):
        assert result["local"] == pytest.approx(3.0)
        assert result["distributed"] == pytest.approx(2 * 3.0)
