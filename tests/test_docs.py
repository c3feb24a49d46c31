"""The code in the documents runs; every public name has a docstring and stands in docs/."""

import inspect
import re
from pathlib import Path

import gluon_svrg as gs
import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "linear" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
CHANGES = [ROOT / "CHANGES.md", ROOT / "linear" / "CHANGES.md"]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
MODULES = [gs, gs.schedules, gs.svrg, gs.events, gs.optimizer, gs.deploy]
MODULES += [gs.data, gs.data.transforms, gs.linear]


def code_of(document):
    """All Python blocks of a document, as one program with the document's line numbers."""
    lines = document.read_text().splitlines()
    inside, program = False, []
    for line in lines:
        if line.startswith("```"):
            inside = line == "```python"
            program.append("")
        else:
            program.append(line if inside else "")
    return "\n".join(program)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if code_of(document).strip()],
    ids=lambda document: document.name,
)
def test_the_code_runs_and_runs_again_in_the_same_folder(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, extra in (("onnx", "onnx"), ("optuna", "search")):
        if name in code_of(document):
            pytest.importorskip(name, reason=f"the extra {extra} is not installed")
    program = compile(code_of(document), document, "exec")
    exec(program, {"__name__": "__main__"})
    if any(tmp_path.iterdir()):
        exec(program, {"__name__": "__main__"})


@pytest.mark.parametrize("document", [*DOCUMENTS, *CHANGES], ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", CHANGES, ids=["gluon-svrg", "provenglm"])
def test_changes_are_short_lines_under_the_headings_of_keep_a_changelog(document):
    versions = re.split(r"^## ", document.read_text(), flags=re.MULTILINE)[1:]
    newest = re.search(r'^version = "(.*)"$', PYPROJECT, re.MULTILINE)[1]
    assert versions[0].startswith(("[Unreleased]\n", f"[{newest}] - "))
    for version in versions:
        headings = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert set(headings) <= {"Added", "Changed", "Removed", "Fixed", "Security"}
        assert len(set(headings)) == len(headings), version.splitlines()[0]
        for entry in re.findall(r"^- .*(?:\n  .*)*", version, re.MULTILINE):
            assert len(entry) <= 160, entry  # a paragraph belongs on a page


PUBLIC = [(module, name) for module in MODULES for name in module.__all__]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_every_public_name_has_a_docstring_and_stands_in_docs(module, name):
    thing = getattr(module, name)
    if module is not gs.events:
        in_backticks = re.findall(r"`[^`\n]+`", (ROOT / "docs" / "api.md").read_text())
        assert any(re.search(rf"\b{name}\b", code) for code in in_backticks)
    if callable(thing) and thing.__module__.startswith("gluon_svrg"):
        assert inspect.getdoc(thing)


def test_every_make_target_and_recipe_that_is_named_exists():
    text = "".join(document.read_text() for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"])
    makefile = (ROOT / "Makefile").read_text()
    benchmarks = re.search(r"^BENCHMARKS := (.*)$", makefile, re.MULTILINE)[1].split()
    targets = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)\b", text, re.MULTILINE))
    assert targets > {"demo", "test", "bench"}
    for target in targets - set(benchmarks):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for recipe in re.findall(r"python (recipes/\w+\.py)", text):
        assert (ROOT / recipe).is_file()


def test_the_map_of_the_architecture_is_that_of_the_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    layers = page.split("## The layers")[1].split("\n## ")[0]
    checked = re.search(r"^layers = \[$(.*?)^\]$", PYPROJECT, re.MULTILINE | re.DOTALL)[1]
    drawn = [
        re.findall(r"\w+", line)
        for line in re.findall(r"(?s)```text\n(.*?)\n```", layers)[0].split("\n")
    ]
    assert drawn == [re.findall(r"\w+", line) for line in checked.strip().splitlines()]
    named = re.findall(r"`(\w+(?:/|\.py))`", layers.split("Outside the package")[0])
    packages = {name.strip("/") for name in named} - {"gluon_svrg"} | {"__init__.py"}
    unnamed = {"py.typed", "__init__.pyi", "__pycache__"}
    there = {path.name for path in (ROOT / "gluon_svrg").iterdir()} - unnamed
    assert there <= packages
    assert packages <= {path.name for path in (ROOT / "gluon_svrg").rglob("*")}
