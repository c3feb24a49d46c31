"""Run the notebook docs/tutorial.ipynb again: ``make tutorial``.

What it printed and drew is kept in the file, so that the site shows it. Bars are not kept: they are
of the program that drew them, and a page would show them as they stood at the beginning.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "tutorial.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook, folder):
    """Run all cells in a new kernel, in a folder."""
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
    )
    client.execute()
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [
                output
                for output in cell.outputs
                if WIDGET not in output.get("data", {}) and output.get("name") != "stderr"
            ]
            merge_streams(cell)


def merge_streams(cell):
    """Put together what was printed before a bar and after it."""
    merged = []
    for output in cell.outputs:
        if output.output_type == "stream" and merged and merged[-1].output_type == "stream":
            merged[-1].text += output.text
        else:
            merged.append(output)
    cell.outputs = merged


def main():
    """Run the notebook and write it back."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    execute(notebook, NOTEBOOK.parent)
    nbformat.write(notebook, NOTEBOOK)
    print(f"executed {NOTEBOOK}")


if __name__ == "__main__":
    sys.exit(main())
