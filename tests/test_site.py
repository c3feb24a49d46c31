"""The site: built without a warning, no link of it broken, and both checks can fail."""

import importlib.util
import re
import sys
from pathlib import Path

import gluon_svrg as gs
import pytest

pytestmark = pytest.mark.full

pytest.importorskip("myst_nb", reason="the extra `site` is not installed")
pytest.importorskip("furo", reason="the extra `site` is not installed")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def build():
    """The module docs/site/build.py."""
    path = ROOT / "docs" / "site" / "build.py"
    spec = importlib.util.spec_from_file_location("build_of_site", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def site(build, tmp_path_factory):
    """The site as built: warnings are errors, and every internal link is followed."""
    out = tmp_path_factory.mktemp("site") / "html"
    build.build(out)
    return out


def test_every_document_is_a_page(site):
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages = [path.with_suffix(".html") for path in documents if path.parts[0] != "site"]
    assert len(pages) > 15
    for page in [*pages, "index.html", "changes.html", "contributing.html", "recipes.html"]:
        assert (site / page).is_file(), page


def test_every_page_is_in_the_contents(site):
    contents = (site / "index.html").read_text().split('class="sidebar-tree"')[1]
    listed = set(re.findall(r'href="([^"#:]+\.html)"', contents))
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    made = {"genindex.html", "search.html", "py-modindex.html", "index.html"}
    not_listed = {
        page for page in pages - made - listed if not page.startswith(("_modules/", "source/"))
    }
    assert not_listed == set()


def test_the_overview_leads_to_every_page():
    docs = ROOT / "docs"
    # benchmarks.md leads to the pages of the single benchmarks.
    overview = (docs / "overview.md").read_text() + (docs / "benchmarks.md").read_text()
    for page in (path.relative_to(docs).as_posix() for path in docs.rglob("*.md")):
        if not page.startswith(("site/", "overview")):
            assert f"({page})" in overview, page


def test_a_warning_is_an_error(build, tmp_path, monkeypatch):
    def write(stage, with_reference):
        (stage.folder / "conf.py").write_text("html_theme = 'basic'\n")
        (stage.folder / "index.rst").write_text("Title\n=====\n\n`unfinished\n")

    monkeypatch.setattr(build.Stage, "write", write)
    with pytest.raises(ValueError, match="Sphinx warns"):
        build.build(tmp_path / "html")
    assert not (tmp_path / "html").exists()


def test_the_reference_has_every_public_name(site, build):
    reference = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    places = set(re.findall(r'id="(gluon_svrg\.[\w.]+)"', reference))
    for name in gs.__all__:
        assert f"gluon_svrg.{name}" in places, name
    assert "gluon_svrg.Estimator.fit" in places
    # The table of names leads there.
    assert "reference/training.html#gluon_svrg.Estimator" in (site / "api.html").read_text()


def test_the_notebook_shows_its_pictures(site):
    page = (site / "tutorial.html").read_text()
    assert page.count('<div class="cell docutils container">') > 8
    pictures = re.findall(r'<img [^>]*src="(_images/[^"]+)"', page)
    assert len(pictures) >= 4
    assert all((site / picture).is_file() for picture in pictures)


def test_a_broken_link_is_found(build, tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a> <a href="#here">')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><a href="https://example.org/x.html">')
    assert build.broken_links(tmp_path) == []
    (tmp_path / "b.html").write_text('<h1 id="other"></h1><img src="picture.png">')
    assert sorted(build.broken_links(tmp_path)) == ["a.html: b.html#there", "b.html: picture.png"]


def test_links_between_files_become_links_between_pages(build, tmp_path):
    stage = build.Stage(tmp_path)
    text = "[a](docs/cost.md#memory) [b](recipes/README.md) [c](CHANGES.md)\n```\n[d](no.md)\n```\n"
    moved = "[a](cost.md#memory) [b](recipes.md) [c](changes.md)\n```\n[d](no.md)\n```\n"
    assert stage.with_links(text, "README.md", "index.md") == moved
    assert stage.with_links("[a](../api.md)", "docs/howto/resume.md", "howto/resume.md") == (
        "[a](../api.md)"
    )
    # A file that is no page gets one.
    link = stage.with_links("[t](../tests/oracle.py)", "docs/comparison.md", "comparison.md")
    assert link == "[t](source/tests-oracle.py.md)"
    assert stage.sources == {"tests/oracle.py": "source/tests-oracle.py.md"}
    with pytest.raises(FileNotFoundError, match=r"README.md has a link to docs/none.md"):
        stage.with_links("[a](docs/none.md)", "README.md", "index.md")
