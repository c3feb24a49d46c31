"""The table of the methods in docs/linear/solver.md is the one of the code.

``python tests/linear/test_solver_page.py`` writes it there.
"""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/linear/solver.md"
BEGIN, END = "<!-- the table of plan.py -->\n", "<!-- end of the table -->\n"


def table():
    plan = pytest.importorskip("provenglm.plan")
    lines = ["| `solver_` | needs | costs |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.needs} | {row.costs} |" for row in plan.TABLE]
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), __doc__


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
