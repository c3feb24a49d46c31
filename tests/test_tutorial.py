"""The notebook of the first hour: it runs, and what is committed is what this version prints."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(notebook):
    """Return the text of all cells, and how many pictures they drew."""
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    text = "".join(out.text for out in outputs if out.output_type == "stream")
    pictures = sum("image/png" in out.get("data", {}) for out in outputs)
    return text, pictures


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook, run in a kernel of its own in an empty folder."""
    path = ROOT / "docs" / "site" / "tutorial.py"
    spec = importlib.util.spec_from_file_location("tutorial_of_site", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notebook = read()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        # The kernel imports this checkout, wherever it runs.
        patch.setenv("PYTHONPATH", str(ROOT))
        module.execute(notebook, folder)
    assert list(folder.iterdir()) == []  # it leaves nothing where it runs
    return notebook


# ipykernel's own: it says so when pyzmq has no CurveZMQ, and closes its event loop late.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_and_says_what_it_claims(executed):
    text, pictures = printed(executed)
    outputs = [out for cell in executed.cells for out in cell.get("outputs", [])]
    assert pictures == 4
    assert "the run continues from the checkpoint" in text
    assert "the labels of the first batch must be integers from 0 to 8" in text
    wrong = re.search(r"^(\d+) of 297 are wrong", text, re.MULTILINE)
    accuracy = re.search(r"\{'validation accuracy': ([\d.]+)", "".join(map(str, outputs)))
    assert 1 - int(wrong[1]) / 297 == pytest.approx(float(accuracy[1]))  # predict, and evaluate
    tables = [out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    assert [table.count("<tr>") for table in tables] == [7]  # the history: names and 6 epochs
    values = [
        out.data["text/plain"]
        for cell in executed.cells
        if "np.array_equal" in cell.source
        for out in cell.outputs
        if out.output_type == "execute_result"
    ]
    assert values == ["True"]  # continued to the bit
    found = re.findall(r"^epoch 5: .*validation accuracy ([\d.]+)", text, re.MULTILINE)
    assert found
    assert float(found[0]) > 0.85


def test_what_is_committed_was_executed_without_an_error():
    notebook = read()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    _, pictures = printed(notebook)
    assert pictures == 4
    for cell in code:
        for out in cell.outputs:
            assert out.output_type != "error"
            assert out.get("name") != "stderr"
            assert "application/vnd.jupyter.widget-view+json" not in out.get("data", {})
    assert NOTEBOOK.stat().st_size < 400_000


def test_its_links_lead_somewhere():
    for cell in read().cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", cell.source):
                assert (NOTEBOOK.parent / target).exists(), target
