"""The Python code of scripts, notebooks and pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

FENCE = re.compile(r"^```\s*\{?\.?(\w*)([^}\n]*)\}?\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_PYTHON = re.compile(r"^\s*[%!]")  # a notebook's commands


def code_of(script: Path, tab: str = "mxnet") -> str:
    """Return the Python code of a script, a notebook, or a page of Markdown."""
    text = script.read_text()
    if script.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        blocks = ["".join(cell["source"]) for cell in cells]
    elif script.suffix == ".md":
        # A block of the book without a tab is MXNet's.
        blocks = []
        for language, more, code in FENCE.findall(text):
            tabs = re.match(r"\s*#\s*@tab (.*)", code)
            names = re.split(r"[,\s]+", tabs[1].strip()) if tabs else ["all"]
            if language == "python" and {"all", tab} & set(names) and "eval=false" not in more:
                blocks.append(code)
    else:
        return text
    lines = "\n".join(blocks).splitlines()
    return "\n".join("" if NOT_PYTHON.match(line) else line for line in lines)
