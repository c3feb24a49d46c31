"""The code on the cards runs, and the cards name what there is."""

import inspect
import re
from pathlib import Path

import gluon_svrg as gs
import pytest

CARDS = Path(__file__).parents[2] / "docs" / "optimizers"


@pytest.mark.parametrize("name", ["lars", "signum"])
def test_the_code_of_the_card_runs(name):
    text = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    scope = {}
    exec(code, scope)
    assert scope["trainer"].optimizer.num_update == 1


@pytest.mark.parametrize("kind", [gs.LARS, gs.Signum])
def test_every_public_name_is_documented(kind):
    members = [kind, *(m for n, m in vars(kind).items() if callable(m) and n[0] != "_")]
    assert all(inspect.getdoc(member) for member in members)
