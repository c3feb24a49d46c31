"""In a notebook: bars, lines below them, the figure, and the history as a table."""

import base64
import os
import struct

import nbformat
import problems
import pytest

pytestmark = pytest.mark.full

nbclient = pytest.importorskip("nbclient")

CELLS = [
    """
import gluon_svrg as gs
import problems

problem = problems.make("softmax")
data = problem.ndarrays()
trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.25})
estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
""",
    "result = estimator.fit(data, data, epochs=3, event_handlers=[gs.SVRGHandler()])",
    "result.history",
    "result.history.plot()",
    "estimator.fit(data, data, epochs=2, event_handlers=[gs.SVRGHandler()], verbose=0);",
    "%matplotlib inline\nresult.history.plot()",
]


@pytest.fixture(scope="module")
def cells():
    """The notebook after it was run in a fresh kernel: its code cells."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS]
    tests = os.path.dirname(problems.__file__)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(tests), tests])
    try:
        client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
        client.execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    if os.environ.get("NOTEBOOK"):  # to be looked at
        nbformat.write(notebook, os.environ["NOTEBOOK"])
    states = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    return notebook.cells, [state["state"] for state in states.values()]


def text_of(cell, name="stdout"):
    return "".join(out.text for out in cell.outputs if out.get("name") == name)


def data_of(cell):
    (output,) = (out for out in cell.outputs if out.output_type == "execute_result")
    return output.data


def test_there_are_bars_for_run_epoch_full_pass_and_validation(cells):
    cells, widgets = cells
    texts = [widget["value"] for widget in widgets if widget["_model_name"] == "HTMLModel"]
    drawn = [text.replace("\u2007", " ") for text in texts]  # a space as wide as a digit
    for bar in ("training:", "epoch 0:", "full gradient:", "validation:"):
        assert any(bar in text for text in drawn), bar
    bars = [widget for widget in widgets if widget["_model_name"] == "FloatProgressModel"]
    (run,) = (bar for bar in bars if (bar["value"], bar["max"]) == (3.0, 3.0))
    assert run["bar_style"] == "success"
    assert any("application/vnd.jupyter.widget-view+json" in str(out) for out in cells[1].outputs)


def test_the_lines_are_text_on_lines_of_their_own(cells):
    lines = text_of(cells[0][1]).splitlines()
    assert [line[:17] for line in lines if "training" in line] == [
        f"epoch {epoch}: training" for epoch in range(3)
    ]
    assert text_of(cells[0][1], "stderr") == ""


def test_the_history_is_a_table(cells):
    shown = data_of(cells[0][2])["text/html"]
    assert shown.startswith("<table>")
    assert shown.count("<tr>") == 4
    assert "<th>validation loss</th>" in shown


@pytest.mark.parametrize("cell", [3, 5], ids=["fresh kernel", "inline backend"])
def test_the_figure_shows_itself(cell, cells):
    image = base64.b64decode(data_of(cells[0][cell])["image/png"])
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", image[16:24])
    assert width > 500
    assert height > 200


def test_quiet_is_quiet(cells):
    assert cells[0][4].outputs == []
