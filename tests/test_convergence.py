"""SVRG reaches the optimum of a convex problem in a straight line; SGD does not."""

import gluon_svrg as gs
import numpy as np
import oracle
import pytest
import softmax_regression as recipe
from sklearn.datasets import load_digits

pytestmark = [pytest.mark.full, pytest.mark.long]


@pytest.fixture(scope="module")
def judge():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order] / np.linalg.norm(x, axis=1).mean(), y[order]
    return recipe.Judge(recipe.Data(x, y, x, y), recipe.Objective(x, y, 1e-3))


def distances(judge, **arguments):
    run = recipe.train("run", judge, batch_size=16, l2=1e-3, **arguments)
    return np.array([row["above_optimum"] for row in run.rows])


def test_the_optimum_is_exact(judge):
    assert judge.gradient_at_optimum < 1e-13


def test_svrg_falls_in_a_straight_line_to_the_last_bit(judge):
    above = distances(judge, epochs=44, lr=4.0, svrg=gs.SVRGHandler())
    assert above[40] < 1e-10
    # In the log plot a straight line: within a fifth of a decade of it, over more than six.
    epochs = np.arange(12, 33)
    logs = np.log10(above[epochs])
    slope, intercept = np.polyfit(epochs, logs, 1)
    assert logs[0] - logs[-1] > 6
    assert np.abs(logs - (slope * epochs + intercept)).max() < 0.2
    # The objective is 0.87: its last bit is 1.1e-16, and the mean of 1,797 terms rounds, too.
    assert np.abs(above[-4:]).max() <= 4.5e-16


def test_sgd_with_the_same_step_stays_away(judge):
    above = distances(judge, epochs=40, lr=4.0)
    assert 1e-2 < above[-10:].min() < above[-10:].max() < 1e-1


def test_sgd_with_a_decayed_step_and_the_same_gradients_stays_away(judge):
    options = recipe.parse([])
    schedule = recipe.InverseTime(options.decayed_lr, options.half_life * 113)
    above = distances(judge, epochs=2 * 40, lr=schedule)
    assert 1e-5 < above[-1] < 1e-3


def decayed_sgd(objective, lr, half_life, epochs):
    """SGD in NumPy on the recipe's batches; how far it is from zero is not what is asked here."""
    samples = len(objective.x)
    batches = [slice(i, i + 16) for i in range(0, samples, 16)]
    weight, bias = np.zeros(objective.shape), np.zeros(objective.shape[0])
    steps = 0
    for _ in range(epochs):
        for rows in batches:
            x, one_hot = objective.x[rows], objective.one_hot[rows]
            error = (oracle.softmax(x @ weight.T + bias) - one_hot) / len(x)
            steps += 1
            rate = lr / (1 + steps / (half_life * len(batches)))
            weight -= rate * (error.T @ x + objective.l2 * weight)
            bias -= rate * error.sum(axis=0)
    return objective.value(np.concatenate([weight.ravel(), bias]))


def test_the_recipes_decayed_step_is_the_best_of_its_neighbours():
    options, data = recipe.parse([]), recipe.load("digits", "")
    objective = recipe.Objective(data.x, data.y, options.l2)
    lr, half_life = options.decayed_lr, options.half_life
    chosen = decayed_sgd(objective, lr, half_life, 2 * options.epochs)
    for other in (
        (lr / 2, half_life),
        (lr * 2, half_life),
        (lr, half_life / 2),
        (lr, half_life * 2),
    ):
        assert chosen < decayed_sgd(objective, *other, 2 * options.epochs)
