"""What a terminal of 80 or 200 columns shows of a history, of a result and of the handlers."""

import math
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.text_table import MAX_ROWS, abridged, cell, text_table, wrapped
from mxnet import gluon


def rows(epochs, **figures):
    return [
        {
            "epoch": epoch,
            "seconds": 1.25,
            "samples": 60000,
            "samples_per_second": 48000.0,
            "batches": 469,
            "complete": True,
            "learning_rate": 0.1,
            "peak_memory_mib": 1314.25,
            "training accuracy": 0.912345,
            "training loss": 0.6673123,
            "validation accuracy": 0.8485,
            "validation loss": 1.2345e-7,
            "variance_ratio_at_100": 0.05,
            **figures,
        }
        for epoch in range(epochs)
    ]


@pytest.fixture(params=[40, 80, 200])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


@pytest.mark.parametrize("epochs", [1, 3, 1000])
def test_a_history_fits_the_terminal_and_has_every_figure(width, epochs):
    history = History(rows(epochs))
    lines = repr(history).splitlines()
    assert max(map(len, lines)) <= width
    blocks = repr(history).split("\n\n")
    assert (len(blocks) == 1) == (width == 200)
    words = repr(history).replace("\n", " ").split()
    for name in history.names():
        assert set(name.replace("_", " ").split()) <= set(words)
        assert cell(history[0][name]) in words
    for block in blocks:  # each begins with the number of the epoch
        numbers = [int(n) for n in re.findall(r"^ *(\d+) ", block, re.MULTILINE)]
        shown = range(epochs) if epochs <= MAX_ROWS else [*range(5), *range(epochs - 5, epochs)]
        assert numbers == list(shown)


def test_a_history_without_epochs():
    assert repr(History()) == "History: no epoch yet"
    assert History()._repr_html_() == "<table>\n<tr></tr>\n</table>"


def test_a_notebook_shows_the_ends_of_a_long_history():
    lines = History(rows(1000))._repr_html_().splitlines()
    assert len(lines) == 2 + 1 + 5 + 1 + 5
    assert "<td>...</td>" in lines[7]


def test_columns_as_a_reader_expects_them():
    table = text_table(["epoch", "a b", "c"], [["0", "1", "2"], ["1", "10", "x" * 9]], 80)
    assert table.splitlines() == [
        "        a", "epoch   b          c", "    0   1          2", "    1  10  xxxxxxxxx"
    ]  # fmt: skip
    narrow = text_table(["epoch", "a b", "c"], [["0", "1", "2"], ["1", "10", "x" * 9]], 14)
    assert narrow.splitlines() == [
        "        a", "epoch   b", "    0   1", "    1  10", "",
        "epoch          c", "    0          2", "    1  xxxxxxxxx",
    ]  # fmt: skip
    assert text_table(["epoch"], [["0"]], 80) == "epoch\n    0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "yes"), (False, "no"), (7, "7"), (60000, "60,000"), (-1234, "-1,234"),
        (np.int64(60000), "60,000"), (0.123456, "0.1235"), (999.96, "1000"), (1234.5, "1,234"),
        (1e9, "1e+09"), (1e-9, "1e-09"), (0.0, "0"), (np.float32(0.5), "0.5"), (math.nan, "nan"),
        (-math.inf, "-inf"), ("warm", "warm"), ([1.25, 2], "[1.25, 2]"),
        ([1, 2, 3, 4], "[1, 2, 3, ...]"), ([[1, 2], []], "[[1, 2], []]"),
    ],
)  # fmt: skip
def test_a_cell(value, text):
    assert cell(value) == text


def test_abridged():
    rows = [[str(n)] for n in range(MAX_ROWS)]
    assert abridged(rows) == rows
    assert [row[0] for row in abridged([*rows, ["end"]])] == [
        "0", "1", "2", "3", "4", "...", *map(str, range(MAX_ROWS - 4, MAX_ROWS)), "end"
    ]  # fmt: skip


def test_a_result_fits_the_terminal(width):
    result = gs.FitResult(gs.StopReason.NO_IMPROVEMENT, 3, History(rows(3)))
    lines = repr(result).splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text == (
        "FitResult: the monitored figure improved no longer 3 epochs in 3.8 s training accuracy "
        "0.9123, training loss 0.6673, validation accuracy 0.8485, validation loss 1.235e-07"
    )


def test_a_result_in_a_notebook():
    result = gs.FitResult(gs.StopReason.SIGNAL, 1, History(rows(1, **{"training <b>": 1.0})))
    shown = result._repr_html_()
    assert shown.startswith(
        "<p>FitResult: a signal (such as Ctrl-C or SIGTERM) asked to stop<br>1 epoch in"
    )
    assert "training &lt;b&gt; 1" in shown
    assert shown.endswith(result.history._repr_html_())
    nothing = gs.FitResult(gs.StopReason.SIGNAL, 0, History())
    assert nothing._repr_html_().endswith("0 epochs in 0 s</p>")


def test_the_description_of_the_handlers_fits_80_columns(capsys):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    estimator = runs.estimator_of(net, gluon.loss.L2Loss(), mx.metric.MSE(), lr=0.01)
    batches = [(mx.nd.ones((2, 1)), mx.nd.ones((2, 1)))]
    handlers = [gs.SVRGHandler(), gs.VarianceHandler(), gs.ProfilerHandler(), gs.EMAHandler()]
    estimator.describe(batches, handlers)
    lines = capsys.readouterr().out.splitlines()
    assert "    - SVRGHandler (priority -3000)" in lines
    assert max(map(len, lines)) <= 80


LINE = (
    "epoch 3: training accuracy 0.8764, training loss 1.76, validation accuracy 0.8186, variance "
    "ratio 0.0032 [1.3e-05 to 0.0085], learning rate 0.1, coefficient 1 (0.1 s, 13140 samples/s)"
)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_long_line_is_broken_after_commas(width):
    lines = wrapped(LINE, width).split("\n")
    assert " ".join(line.strip() for line in lines) == LINE
    assert max(map(len, lines)) <= width
    assert len(lines) <= -(-len(LINE) // width) + (width < 100) + (width < 50)
    assert all(line.startswith("    ") for line in lines[1:])
    if width >= 80:
        assert all(line.endswith(",") for line in lines[:-1])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ""),
        ("as it is, all of it", "as it is, all of it"),
        ("one two three four five", "one two three\n    four five"),
        ("x, one two three four five", "x,\n    one two\n    three four\n    five"),
        ("a" * 20 + ", b", "a" * 20 + ",\n    b"),
    ],
)
def test_what_has_no_comma_is_broken_between_words(line, expected):
    assert wrapped(line, 14 if line.startswith(("one", "x")) else 19) == expected
