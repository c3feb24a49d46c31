"""History: a list of rows, its columns, and the panels of its plot."""

import copy
import math
import pickle
import sys

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.reporting.history import MEASURED, History, to_python_number


def row(epoch, **figures):
    return {"epoch": epoch, "seconds": 2.0, "samples": 8, "learning_rate": 0.1, **figures}


def panels_of(figure):
    """The lines of each panel, by its label: their labels, x and y."""
    return {
        axes.get_ylabel(): [
            (line.get_label(), list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.lines
        ]
        for axes in figure.axes
    }


def legend_of(figure, label):
    (axes,) = (axes for axes in figure.axes if axes.get_ylabel() == label)
    legend = axes.get_legend()
    return None if legend is None else [text.get_text() for text in legend.get_texts()]


def test_it_is_a_list():
    history = History([row(0)])
    history.append(row(1))
    assert history == [row(0), row(1)]
    assert [row(0), row(1)] == history
    assert isinstance(history, list)
    assert history[-1]["epoch"] == 1


def test_names_are_in_the_order_in_which_they_appear():
    history = History([{"epoch": 0, "b": 1}, {"epoch": 1, "a": 2, "b": 3}])
    assert history.names() == ["epoch", "b", "a"]
    assert History().names() == []


def test_a_column_has_none_where_an_epoch_has_no_such_figure():
    history = History([{"epoch": 0, "b": 1}, {"epoch": 1}, {"epoch": 2, "b": math.inf}])
    assert history.column("b") == [1, None, math.inf]
    assert history.column("epoch") == [0, 1, 2]


@pytest.mark.parametrize(
    ("history", "match"),
    [
        (History([{"epoch": 0, "b": 1}]), r"no figure 'c' in the history: it has 'epoch', 'b'$"),
        (History(), r"no figure 'c' in the history: it has no epoch yet$"),
    ],
)
def test_a_column_that_is_not_there_is_an_error(history, match):
    with pytest.raises(ValueError, match=match):
        history.column("c")


def test_measured_figures_are_named():
    assert MEASURED == ("seconds", "samples_per_second", "peak_memory_mib")


def test_training_and_validation_of_a_metric_share_a_panel():
    history = History(
        [
            row(0, **{"training accuracy": 0.5, "training l2loss0": 2.0}),
            row(
                1,
                **{
                    "training accuracy": 0.75,
                    "training l2loss0": 1.0,
                    "validation accuracy": 0.25,
                    "validation l2loss0": 1.5,
                },
            ),
        ]
    )
    figure = history.plot()
    assert panels_of(figure) == {
        "loss": [("training", [0, 1], [2, 1]), ("validation", [1], [1.5])],
        "accuracy": [("training", [0, 1], [0.5, 0.75]), ("validation", [1], [0.25])],
        "seconds per epoch": [("_child0", [0, 1], [2, 2])],
    }
    assert figure.get_suptitle() == "learning rate 0.1"
    for label in ("loss", "accuracy"):
        assert legend_of(figure, label) == ["training", "validation"]
    assert legend_of(figure, "seconds per epoch") is None
    assert {axes.get_xlabel() for axes in figure.axes} == {"epoch"}


@pytest.mark.parametrize(
    ("figures", "labels"),
    [
        ({}, ["seconds per epoch"]),
        ({"learning_rate": 0.2}, ["learning rate", "seconds per epoch"]),
        (
            {"variance_ratio": 0.5, "coefficient": 0.75},
            ["SVRG coefficient", "variance ratio", "seconds per epoch"],
        ),
        (
            {"peak_memory_mib": 9.0, "samples_per_second": 4.0, "gradient_norm": 1.0},
            ["gradient norm", "seconds per epoch"],
        ),
        (
            {"training accuracy": 0.5, "training a loss": 1.0},
            ["loss", "accuracy", "seconds per epoch"],
        ),
        ({"note": "warm"}, ["seconds per epoch"]),
    ],
)
def test_there_is_a_panel_for_what_there_is(figures, labels):
    before = row(0, coefficient=1.0) if "coefficient" in figures else row(0)
    assert list(panels_of(History([before, row(1, **figures)]).plot())) == labels


@pytest.mark.parametrize(
    ("rows", "labels", "title"),
    [
        ([row(0, coefficient=1.0)], ["seconds per epoch"], "learning rate 0.1, SVRG coefficient 1"),
        (
            [row(0), row(1, coefficient=0.5)],
            ["seconds per epoch"],
            "learning rate 0.1, SVRG coefficient 0.5",
        ),
        ([{"epoch": 0, "learning_rate": 0.1}], ["learning rate"], ""),
    ],
)
def test_what_never_changes_is_told_and_not_drawn(rows, labels, title):
    figure = History(rows).plot()
    assert list(panels_of(figure)) == labels
    assert figure.get_suptitle() == title
    assert History(rows).plot(title="a run").get_suptitle() == "\n".join(
        filter(None, ["a run", title])
    )


@pytest.mark.parametrize(
    ("seconds", "top", "notes"),
    [
        ([40.0, 2.0, 1.5], 2.0 * 1.1 * 1.08, ["epoch 0: 40 s"]),
        ([40.0, 2.0], 40.0 * 1.08, []),  # two epochs: either may be the odd one
        ([5.9, 2.0, 1.5], 5.9 * 1.08, []),
        ([1.0, 2.0, 40.0], 40.0 * 1.08, []),  # a slow epoch later on is news
    ],
)
def test_the_first_epoch_does_not_dwarf_the_seconds_of_the_others(seconds, top, notes):
    history = History([{**row(epoch), "seconds": s} for epoch, s in enumerate(seconds)])
    (axes,) = (axes for axes in history.plot().axes if axes.get_ylabel() == "seconds per epoch")
    assert axes.get_ylim()[1] == pytest.approx(top)
    assert [text.get_text() for text in axes.texts] == notes


@pytest.mark.slow
def test_a_notebook_shows_a_table_and_the_figure():
    history = History([row(0, **{"training loss": 1.23456, "note": "<b>"}), row(1)])
    table = history._repr_html_()
    assert table.splitlines()[1].startswith("<tr><th>epoch</th><th>seconds</th><th>samples</th>")
    assert "<td>1.235</td><td>&lt;b&gt;</td>" in table
    assert table.splitlines()[3].endswith("<td></td><td></td></tr>")
    figure = history.plot()
    for shown in (figure, pickle.loads(pickle.dumps(figure)), copy.deepcopy(figure)):
        assert shown._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (mx.nd.array([2.5]), 2.5),
        (mx.nd.array([[1, 2], [3, 4]], dtype="int32"), [[1, 2], [3, 4]]),
        (np.float32(0.5), 0.5),
        (np.array(3), 3),
        ("warm", "warm"),
        (None, None),
        ([1, 2], [1, 2]),
    ],
)
def test_arrays_in_a_row_are_numbers(value, expected):
    found = to_python_number(value)
    assert (type(found), found) == (type(expected), expected)


def test_several_losses_are_told_apart_by_their_names():
    names = ["training l2loss0", "training l1loss0"]
    figure = History([row(0, **dict.fromkeys(names, 1.0))]).plot()
    assert legend_of(figure, "loss") == names


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([1.0, 0.011], "linear"),
        ([1.0, 0.009], "log"),
        ([1.0, 0.0], "linear"),
        ([100.0, -1.0], "linear"),
        ([math.nan, math.nan], "linear"),
        ([math.nan, 1.0, 0.001], "log"),
        ([math.inf, 1.0], "linear"),
    ],
)
def test_a_loss_over_decades_has_a_logarithmic_axis(losses, scale, tmp_path):
    history = History([row(i, **{"training loss": loss}) for i, loss in enumerate(losses)])
    figure = history.plot(tmp_path / "loss.png")  # drawn, so that matplotlib may complain
    assert figure.axes[0].get_yscale() == scale
    assert {axes.get_yscale() for axes in figure.axes[1:]} == {"linear"}


@pytest.mark.parametrize("epochs", [1, 2, 7, 200])
def test_the_ticks_of_epochs_are_integers(epochs):
    figure = History([row(epoch, **{"training loss": 1.0}) for epoch in range(epochs)]).plot()
    figure.canvas.draw()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(tick == round(tick) for tick in ticks)
        assert low < 0
        assert epochs - 1 < high


def test_it_goes_on_with_the_epochs_of_its_rows():
    history = History([row(5, **{"training loss": 1.0}), row(6, **{"training loss": 2.0})])
    assert panels_of(history.plot())["loss"] == [("training", [5, 6], [1, 2])]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_it_is_saved_where_that_is_asked_for(suffix, tmp_path):
    path = tmp_path / "new" / f"history{suffix}"
    figure = History([row(0)]).plot(path, title="a run")
    assert figure.get_suptitle() == "a run\nlearning rate 0.1"
    assert path.stat().st_size > 1000


def test_pyplot_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import would raise
    assert len(History([row(0)]).plot().axes) == 1


@pytest.mark.parametrize(
    ("history", "match"),
    [
        (History(), "has no epoch yet, so there is nothing to draw: plot it after fit"),
        (History([{"epoch": 0, "note": "warm"}]), "has no number to draw: plot it after fit"),
    ],
)
def test_nothing_to_draw_is_an_error(history, match):
    with pytest.raises(ValueError, match=match):
        history.plot()


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'gluon-svrg\[plot\]'"):
        History([row(0)]).plot()
