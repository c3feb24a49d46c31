"""Only the folder of the rows reads features."""

import ast
from pathlib import Path

import provenglm
import pytest

PACKAGE = Path(provenglm.__file__).parent
READERS = {"slices", "block", "pick", "take"}


def readers_in(source):
    """Return the lines that use a name of what reads rows."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in READERS
    ]


def test_other_folders_do_not_read_rows():
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "rows"]
    assert len(paths) > 60
    # The types say the same, except where they are `Any`.
    assert [path.name for path in paths if readers_in(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("source", ["a.rows.block(b)", "rows: Any = a\nmap(rows.pick, b)"])
def test_a_use_is_seen(source):
    assert readers_in(source)
