"""ValidationHandler: when it evaluates, and what is told of it."""

import re

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
import runs
from gluon_svrg.events import EpochEnd


class Count(EpochEnd):
    def __init__(self):
        self.at = []

    def epoch_end(self, estimator, *args, **kwargs):
        self.at.append(None)


def fit(capsys, epochs=3, **periods):
    problem = problems.make("softmax")  # 5 batches an epoch
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    count = Count()
    handler = gs.ValidationHandler(problem.ndarrays(), event_handlers=[count], **periods)
    result = estimator.fit(problem.ndarrays(), epochs=epochs, event_handlers=[handler])
    return result.history, len(count.at), capsys.readouterr().out


@pytest.mark.parametrize(
    ("periods", "evaluations", "rows"),
    [
        ({}, 3, [True, True, True]),
        ({"every_n_epochs": 2}, 1, [False, True, False]),
        ({"every_n_epochs": None, "every_n_batches": 7}, 2, [False, True, True]),
        ({"every_n_batches": 5}, 3, [True, True, True]),
    ],
)
def test_when(root_logger, capsys, periods, evaluations, rows):
    history, count, _ = fit(capsys, **periods)
    assert count == evaluations
    assert ["validation accuracy" in row for row in history] == rows


def test_an_evaluation_after_some_batches_is_a_line(root_logger, capsys):
    *_, printed = fit(capsys, every_n_epochs=None, every_n_batches=7)
    lines = re.findall(
        r"^epoch (\d), after (\d) batches: validation accuracy [\d.]+, validation loss [\d.]+$",
        printed,
        re.M,
    )
    assert lines == [("1", "2"), ("2", "4")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"val_data": []}, "val_data is empty: give at least one batch"),
        ({"every_n_epochs": 0}, "got 0: an evaluation is made every that many epochs"),
        ({"every_n_epochs": 0}, "every_n_epochs must be a positive integer, got 0"),
        ({"every_n_batches": 0.5}, "every_n_batches must be a positive integer, got 0.5"),
        ({"every_n_epochs": None}, "both None, so there would never be an evaluation: give"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        gs.ValidationHandler(**{"val_data": [(1, 2)]} | arguments)
