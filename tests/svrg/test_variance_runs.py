"""A VarianceHandler in several runs: it measures the method of its run, and no other."""

import gc
import logging
import weakref

import gluon_svrg as gs
import problems
import pytest
from gluon_svrg.events import BatchEnd
from mxnet import gluon


class Break(BatchEnd):
    def __init__(self, after):
        self.after = after

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.after:
            raise RuntimeError("broken")


def estimator_of(trainer_class=gs.SVRGTrainer):
    problem = problems.make("softmax", samples=80)
    trainer = trainer_class(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    estimator.logger = logging.getLogger("test_variance_runs")
    return estimator, problem.ndarrays()


def test_after_an_exception_it_measures_a_plain_run():
    meter = gs.VarianceHandler(at=(50, 100), batches=2)
    estimator, data = estimator_of()
    svrg = gs.SVRGHandler(max_variance_ratio=1e-9)
    with pytest.raises(RuntimeError, match="broken"):
        estimator.fit(data, epochs=2, event_handlers=[svrg, meter, Break(8)])
    assert svrg.criterion.off_since == 0
    estimator, data = estimator_of(gluon.Trainer)
    estimator.fit(data, epochs=2, event_handlers=meter)
    assert len(meter.records) == 4


def test_the_coefficient_while_svrg_is_off_counts_the_batch_that_ends():
    asked = []

    def schedule(progress):
        asked.append(progress)
        return 0.5

    estimator, data = estimator_of()
    svrg = gs.SVRGHandler(coefficient=schedule, max_variance_ratio=1e-9)
    meter = gs.VarianceHandler(at=(50, 100), batches=2)
    estimator.fit(data, batches=20, event_handlers=[svrg, meter])
    # At the snapshot; then, once it was switched off, after 5 batches of the second epoch.
    assert asked[0] == 0
    assert asked[-1] == 15 / 20


@pytest.mark.slow
def test_a_handler_holds_on_to_nothing_of_a_run():
    svrg = gs.SVRGHandler(max_variance_ratio=1e9)
    meter = gs.VarianceHandler(at=(50, 100), batches=2)
    estimator, data = estimator_of()
    estimator.fit(data, epochs=1, event_handlers=[svrg, meter])
    held = weakref.ref(estimator)
    assert svrg.gradient_evaluations > 0
    del estimator
    gc.collect()
    assert held() is None
    assert svrg.gradient_evaluations > 0


def test_a_run_that_is_refused_leaves_the_trainer_of_the_last_one():
    svrg = gs.SVRGHandler()
    estimator, data = estimator_of()
    estimator.fit(data, epochs=1, event_handlers=svrg)
    trainer = estimator.trainer
    backward = problems.backward_of(estimator.net, estimator.loss)
    trainer.set_control_variate(gs.svrg.Interval(estimator.net, backward).begin(data))
    other, data = estimator_of(gluon.Trainer)
    with pytest.raises(ValueError, match="SVRGHandler needs an SVRGTrainer"):
        other.fit(data, epochs=1, event_handlers=svrg)
    assert trainer.full_gradient is not None
