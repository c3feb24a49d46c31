"""What the benchmarks share: the page they write, and how a peer's least budget is found."""

import re
from pathlib import Path

import convex_peers
import pytest
import report

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]


def test_a_section_is_replaced_and_all_else_stays(tmp_path):
    page = tmp_path / "page.md"
    report.write_section(page, "one", "first")
    report.write_section(page, "two", "second")
    text = page.read_text() + "\nA note by hand.\n"
    page.write_text(text)
    report.write_section(page, "one", "third\nline")
    assert page.read_text() == text.replace("first", "third\nline")


def test_rounds_are_interleaved_after_the_warm_up(monkeypatch):
    monkeypatch.setattr(report, "PAUSE", 0)
    calls = []

    def contestant(name):
        calls.append(name)
        return float(len(calls))

    names = {name: lambda name=name: contestant(name) for name in "ab"}
    seconds = report.interleaved(names, rounds=8, warm_up=1)
    rounds = ["".join(calls[begin : begin + 2]) for begin in range(0, len(calls), 2)]
    assert rounds[0] == "ab"
    assert set(rounds[1:]) == {"ab", "ba"}
    assert sorted(seconds["a"] + seconds["b"]) == list(range(3, 19))


def budgets_asked_for(gap_of, target=1e-8):
    search = convex_peers.next_budgets(target)
    asked, budget = [], next(search)
    try:
        while True:
            asked.append(budget)
            budget = search.send(gap_of(budget))
    except StopIteration:
        return asked


@pytest.mark.parametrize("least", [1, 2, 3, 17, 100, 129, 1000])
def test_the_least_budget_that_reaches_the_target_is_found(least):
    asked = budgets_asked_for(lambda budget: 10 ** (-8 * budget / least))
    reached = min(budget for budget in asked if budget >= least)
    assert least <= reached <= max(least + 1, 1.05 * least)
    assert len(asked) == len(set(asked))


def test_a_solver_that_stands_still_is_not_asked_for_ever():
    asked = budgets_asked_for(lambda budget: max(1e-4, 1 / budget))
    assert max(asked) < 2**17


# Not those of a name: L-BFGS, ResNet-18, 0.7.0.
NUMBER = r"(?<![\w.-])(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)x?(?!\w|[.,]\d)"
PAGES = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_begins_with_its_result_in_figures_of_its_tables(path):
    title, result, rest = path.read_text().split("\n\n", 2)
    assert title.startswith("# ")
    assert re.search(r"\| ?--- ?\|", rest)
    known = set(re.findall(NUMBER, rest))
    for figure in re.findall(NUMBER, result):
        assert figure in known, figure
    for image in re.findall(r"\((\.\./images/.*?)\)", rest):
        assert (path.parent / image).is_file()


# Pages that this version has not made yet: `make bench` makes them; then they leave this list.
OF_EARLIER_VERSIONS = {
    *("communication", "constants", "convex", "large", "soak", "upstream", "versions"),
}


def test_all_other_pages_are_of_one_version():
    found = {}
    for path in PAGES:
        made = re.findall(r"^.*; `make [a-z-]+`\.", path.read_text(), re.MULTILINE)
        assert made, path.name
        versions = {re.search(r"\bVersion (\S+ \(\w+\)); ", line) for line in made}
        found[path.stem] = {version and version[1] for version in versions}
    of_one = {page: versions for page, versions in found.items() if page not in OF_EARLIER_VERSIONS}
    one = set().union(*of_one.values())
    assert len(one) == 1, of_one
    assert all(found[page] != one for page in OF_EARLIER_VERSIONS)


def test_every_benchmark_has_its_page():
    targets = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {target.removeprefix("bench-") for target in targets[1].split()} < {
        path.stem for path in PAGES
    }
    index = (ROOT / "docs" / "benchmarks.md").read_text()
    for path in PAGES:
        assert f"(benchmarks/{path.name})" in index
        targets = re.findall(r"`make ([a-z-]+)`", path.read_text())
        assert path.stem in {target.removeprefix("bench-") for target in targets}
