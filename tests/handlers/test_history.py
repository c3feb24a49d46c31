"""HistoryHandler: one row an epoch, of this epoch's figures."""

import gluon_svrg as gs
import mxnet as mx
import problems
from mxnet.gluon.contrib.estimator import ValidationHandler


def fit(epochs, lr_scheduler=None, handlers=None):
    problem = problems.make("softmax")
    parameters = {"learning_rate": 0.1, "lr_scheduler": lr_scheduler}
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", parameters)
    estimator = gs.Estimator(problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer)
    given = handlers(estimator, problem) if handlers else []
    return estimator.fit(problem.ndarrays(), epochs=epochs, event_handlers=given).history


def test_the_learning_rate_is_the_one_at_the_epochs_end():
    scheduler = mx.lr_scheduler.FactorScheduler(step=5, factor=0.5)  # 5 batches an epoch
    assert [row["learning_rate"] for row in fit(3, scheduler)] == [0.1, 0.05, 0.025]


def test_validation_figures_are_in_the_epochs_that_have_them_only():
    history = fit(
        4,
        handlers=lambda estimator, problem: [
            ValidationHandler(problem.ndarrays(), estimator.evaluate, epoch_period=2)
        ],
    )
    assert ["validation accuracy" in row for row in history] == [False, True, False, True]


def test_an_evaluation_before_the_run_is_not_in_its_history():
    def evaluate_first(estimator, problem):
        estimator.evaluate(problem.ndarrays())
        return []

    (row,) = fit(1, handlers=evaluate_first)
    assert set(row) == {"epoch", "seconds", "samples", "learning_rate", "training accuracy"}
