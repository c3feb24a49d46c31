"""States under one key are told apart by class; what a checkpoint lacks begins now."""

import gluon_svrg as gs
import problems
import pytest
from gluon_svrg.events import EpochEnd, Stateful


class Counter(EpochEnd, Stateful):
    state_key = "tests.counter"

    def __init__(self, step):
        self.step, self.count = step, 0

    def epoch_end(self, estimator, *args, **kwargs):
        self.count += self.step

    def state_dict(self, estimator):
        return {"count": self.count}

    def load_state_dict(self, estimator, state):
        self.count = state["count"]


class Ones(Counter):
    pass


class Tens(Counter):
    pass


class Hundreds(Counter):
    pass


def fit(folder, handlers, epochs, resume=None):
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
        problem.ndarrays(),
        epochs=epochs,
        event_handlers=[gs.CheckpointHandler(folder), *handlers],
        resume=resume,
    )


@pytest.mark.parametrize("turn", [1, -1])
def test_in_any_order(turn, tmp_path):
    fit(tmp_path, [Ones(1), Tens(10)], 2)
    ones, tens = Ones(1), Tens(10)
    fit(tmp_path, [ones, tens][::turn], 3, resume="auto")
    assert (ones.count, tens.count) == (3, 30)


def test_one_that_is_new_begins_now(tmp_path):
    fit(tmp_path, [Ones(1)], 2)
    hundreds, ones = Hundreds(100), Ones(1)
    fit(tmp_path, [hundreds, ones], 3, resume="auto")
    assert (hundreds.count, ones.count) == (100, 3)


def test_one_whose_class_has_another_name_now_continues(tmp_path):
    fit(tmp_path, [Ones(1)], 2)
    hundreds = Hundreds(100)
    fit(tmp_path, [hundreds], 3, resume="auto")
    assert hundreds.count == 102
