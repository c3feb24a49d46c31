"""Checks of arguments: what they return and say."""

import ast
import inspect
import math
import re
import sys
from pathlib import Path

import gluon_svrg as gs
import numpy as np
import pytest
import runs
from gluon_svrg.arguments import (
    check_finite,
    check_integer,
    check_number,
    check_periods,
    explains_unknown,
    require,
)
from mxnet import gluon

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers(value):
    number = check_integer("n", value, 1, "")
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    ("value", "least", "error", "message"),
    [
        (0, 1, ValueError, "n must be a positive integer, got 0: meaning"),
        (-1, 0, ValueError, "n must be a non-negative integer, got -1: meaning"),
        (1.0, 1, TypeError, "n must be a positive integer, got 1.0: meaning"),
        (True, 1, TypeError, "n must be a positive integer, got True: meaning"),
        (None, 0, TypeError, "n must be a non-negative integer, got None: meaning"),
    ],
)
def test_no_such_integers(value, least, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check_integer("n", value, least, "meaning")


@pytest.mark.parametrize("check", [check_number, check_finite])
@pytest.mark.parametrize("value", [0.5, np.float32(0.5), 1, np.int8(1)])
def test_numbers(check, value):
    number = check("x", value, "", 0, above=True)
    assert number == value
    assert type(number) is float


@pytest.mark.parametrize("check", [check_number, check_finite])
@pytest.mark.parametrize(
    ("value", "bounds", "error", "message"),
    [
        ("1", (), TypeError, "x must be a number, got '1': meaning"),
        (True, (), TypeError, "x must be a number, got True: meaning"),
        (-1, (0,), ValueError, "x must be a number of at least 0, got -1: meaning"),
        (0, (0, True), ValueError, "x must be a number above 0, got 0: meaning"),
    ],
)
def test_no_such_numbers(check, value, bounds, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check("x", value, "meaning", *bounds)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float32("inf")])
@pytest.mark.parametrize("bounds", [(), (0,), (0, True)])
def test_no_finite_numbers(value, bounds):
    with pytest.raises(ValueError, match=r"^x must be a finite number, got .*: meaning$"):
        check_finite("x", value, "meaning", *bounds)


def test_infinity_is_a_number():
    assert check_number("x", math.inf, "") == math.inf


@pytest.mark.parametrize("periods", [(1, None), (None, 1), (2, 3)])
def test_periods(periods):
    check_periods(*periods, "a checkpoint")


@pytest.mark.parametrize(
    ("periods", "error", "message"),
    [
        (
            (0, None),
            ValueError,
            "every_n_epochs must be a positive integer, got 0: a checkpoint is written every that "
            "many epochs",
        ),
        (
            (1, 0.5),
            TypeError,
            "every_n_batches must be a positive integer, got 0.5: a checkpoint is written every "
            "that many batches",
        ),
        (
            (None, None),
            ValueError,
            "every_n_epochs and every_n_batches are both None, so there would never be a "
            "checkpoint: give one of them",
        ),
    ],
)
def test_no_such_periods(periods, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check_periods(*periods, "a checkpoint")


# Names in Keras, Lightning, ignite, skorch and MXNet's own Estimator, and the way out.
ELSEWHERE = {
    (gs.Estimator, "callbacks"): "give event_handlers to fit",
    (gs.Estimator, "event_handlers"): "give it to fit",
    (gs.Estimator, "optimizer"): "give trainer=gluon_svrg.SVRGTrainer",
    (gs.Estimator, "metrics"): "did you mean train_metrics?",
    (gs.Estimator.fit, "callbacks"): "did you mean event_handlers?",
    (gs.Estimator.fit, "validation_data"): "did you mean val_data?",
    (gs.Estimator.fit, "batch_size"): "ArrayLoader(x, y, batch_size=32",
    (gs.Estimator.fit, "max_epochs"): "did you mean epochs?",
    (gs.Estimator.fit, "ckpt_path"): "did you mean resume?",
    (gs.Estimator.fit, "event_handler"): "did you mean event_handlers?",
    (gs.Estimator.fit, "sample_weight"): "let the batches be (data, label, sample_weight)",
    (gs.Estimator.evaluate, "data"): "did you mean val_data?",
    (gs.Estimator.evaluate, "batch_size"): "ArrayLoader(x, y, batch_size=32",
    (gs.Estimator.predict, "x"): "did you mean data?",
    (gs.SVRGTrainer, "learning_rate"): "give optimizer_params={'learning_rate': 0.1}",
    (gs.SVRGHandler, "alpha"): "did you mean coefficient?",
    (gs.CheckpointHandler, "dirpath"): "did you mean directory?",
    (gs.CheckpointHandler, "epoch_period"): "did you mean every_n_epochs?",
    (gs.CheckpointHandler, "save_top_k"): "did you mean keep_best?",
    (gs.CheckpointHandler, "resume_from_checkpoint"): "give resume='auto' to fit",
    (gs.EarlyStoppingHandler, "restore_best_weights"): "did you mean restore_best?",
    (gs.EarlyStoppingHandler, "patients"): "did you mean patience?",
    (gs.EMAHandler, "momentum"): "did you mean decay?",
    (gs.ValidationHandler, "validation_freq"): "did you mean every_n_epochs?",
    (gs.GradientUpdateHandler, "max_norm"): "did you mean clip_norm?",
    (gs.GradientUpdateHandler, "gradient_accumulation_steps"): "did you mean accumulate?",
    (gs.PlateauHandler, "min_lr"): "did you mean minimum?",
    (gs.TensorBoardHandler, "logdir"): "did you mean log_dir?",
    (gs.data.ArrayLoader, "drop_last"): "did you mean last_batch?",
    (gs.data.ArrayLoader, "num_workers"): "a thread prepares the batches",
}


@pytest.mark.parametrize(("function", "name"), ELSEWHERE)
def test_the_names_of_other_libraries(function, name):
    message = f"{function.__qualname__} got an unexpected keyword argument {name!r}: "
    way_out = ELSEWHERE[function, name]
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    owner = runs.estimator_of(net, gluon.loss.L2Loss())
    with pytest.raises(TypeError, match=f"^{re.escape(message)}.*{re.escape(way_out)}"):
        function(owner, **{name: 1})
    asked = re.fullmatch(r"did you mean (\w+)\?", way_out)
    if asked:
        assert asked[1] in inspect.signature(function).parameters


@explains_unknown(most="largest", per="write it into a file")
def measure(smallest=0, *, largest=10):
    return smallest, largest


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("most", "did you mean largest?"),
        ("largst", "did you mean largest?"),
        ("per", "write it into a file"),
        ("colour", "it has smallest, largest"),
    ],
)
def test_an_unknown_argument_is_explained(name, hint):
    with pytest.raises(
        TypeError, match=f"measure got an unexpected .* '{name}': {re.escape(hint)}$"
    ):
        measure(1, **{name: 2})
    assert measure(1, largest=2) == (1, 2)
    assert str(inspect.signature(measure)) == "(smallest=0, *, largest=10)"


def test_what_is_required_is_returned():
    assert require("json.decoder", "test", "the test") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["missing_package", "missing_package.part"])
def test_what_is_required_and_missing(module):
    with pytest.raises(ImportError) as error:
        require(module, "plot", "the test")
    assert str(error.value) == (
        "the test needs missing_package, which cannot be imported (No module named "
        "'missing_package'): install it with pip install 'gluon-svrg[plot]'"
    )
    assert error.value.name == "missing_package"


def test_each_extra_that_is_required_is_one_of_the_distribution():
    text = Path(gs.__file__).parents[1].joinpath("pyproject.toml").read_text()
    extras = set(tomllib.loads(text)["project"]["optional-dependencies"])
    trees = (ast.parse(path.read_text()) for path in Path(gs.__file__).parent.rglob("*.py"))
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = {ast.literal_eval(c.args[1]) for c in calls if getattr(c.func, "id", "") == "require"}
    assert found
    assert found <= extras
