"""The Python code of scripts, notebooks and pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

FENCE = re.compile(r"^```\s*\{?\.?(\w*)([^}\n]*)\}?\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A notebook's commands; and what may not stand behind other blocks.
NOT_PYTHON = re.compile(r"^(\s*[%!]|from __future__)")


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
    blocks = ["\n".join(map(_without_commands, block.splitlines())) for block in blocks]
    return "\n".join(filter(_is_python, blocks))


def _without_commands(line: str) -> str:
    return "" if NOT_PYTHON.match(line) else line


def _is_python(block: str) -> bool:
    """Return whether a block is code: some pages have output in a fence of Python."""
    try:
        compile(block, "block", "exec")
    except SyntaxError:
        return False
    return True
