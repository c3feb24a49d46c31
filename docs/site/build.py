"""Builds the site: ``python docs/site/build.py`` writes HTML into ``runs/site``.

The pages are those that are read on their own, as plain Markdown: README.md, docs/ and a few
others. They are copied into a folder of their own, with links between them as they stand on the
site; links to other files of the repository lead to a page that shows the file. The reference is
generated: a page for each section of docs/api.md, with the docstrings of the names listed there.
"""

import argparse
import html
import importlib
import inspect
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import docutils_namespace, patch_docutils

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

# Of the repository, and what they are on the site. All of docs/ comes under its own names.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGES.md": "changes.md",
    "recipes/README.md": "recipes.md",
    "linear/README.md": "provenglm.md",
    "linear/CHANGES.md": "provenglm_changes.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".md": "markdown"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#:\s]+)((?:#[^)]*)?\))")
# In docs/api.md: "- **`a`, `b`**: what they are".
NAMES_OF_ENTRY = re.compile(r"^- \*\*(?:`[^`]+`,?\s*)+\*\*:", re.MULTILINE)
# What docutils, Pygments and furo write: quoted values without angle brackets.
TAG = re.compile(r"<[a-z][^<>]*>")
ATTRIBUTE = re.compile(r'\s(href|src|id|name)="([^"]+)"')


class Stage:
    """The folder of the pages, before Sphinx makes HTML of them."""

    def __init__(self, folder):
        self.folder = folder
        self.pages = dict(PAGES)
        self.sources = {}
        for path in sorted((ROOT / "docs").rglob("*")):
            inside = path.relative_to(ROOT / "docs")
            if inside.parts[0] != "site" and path.suffix in {".md", ".ipynb", ".png"}:
                self.pages[path.relative_to(ROOT).as_posix()] = inside.as_posix()

    def write(self, with_reference=True):
        """Write all pages."""
        shutil.copy(HERE / "conf.py", self.folder)
        shutil.copytree(HERE / "static", self.folder / "static")
        sections = reference_sections() if with_reference else {}
        for source, page in self.pages.items():
            target = self.folder / page
            target.parent.mkdir(parents=True, exist_ok=True)
            if not source.endswith(".md"):
                shutil.copy(ROOT / source, target)
                continue
            text = self.with_links((ROOT / source).read_text(), source, page)
            if source == "README.md":
                text = self.landing_page(text, with_reference)
            if source == "docs/api.md":
                text = with_references(text, sections)
            target.write_text(text)
        shutil.copy(HERE / "howto.md", self.folder / "howto" / "index.md")
        for source, page in self.sources.items():
            self.write_source(source, page)
        if with_reference:
            write_reference(self.folder / "reference", sections)

    def with_links(self, text, source, page):
        """Return Markdown whose links lead to pages of the site."""

        def replace(match):
            path = os.path.normpath(os.path.join(os.path.dirname(source), match[2]))
            if path not in self.pages:
                if not (ROOT / path).is_file():
                    raise FileNotFoundError(
                        f"{source} has a link to {match[2]}, which is not there"
                    )
                self.pages_of_source(path)
            there = self.pages.get(path) or self.sources[path]
            link = os.path.relpath(there, os.path.dirname(page) or ".")
            return f"{match[1]}{Path(link).as_posix()}{match[3]}"

        blocks = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(
            block if block.startswith("```") else LINK.sub(replace, block) for block in blocks
        )

    def other_pages(self, contents):
        """Return the pages that neither the list of contents names nor another page lists."""
        names = [page.rpartition(".")[0] for page in self.pages.values()]
        listed = {*contents.split(), "index"}
        others = [
            name
            for source, name in zip(self.pages, names, strict=True)
            if name not in listed and source.endswith(".md") and not name.startswith("howto/")
        ]
        return "".join(f"{name}\n" for name in others)

    def pages_of_source(self, path):
        """Give a file that is no page, such as a script, a page that shows it."""
        self.sources[path] = f"source/{path.replace('/', '-')}.md"

    def write_source(self, source, page):
        """Write the page of a file."""
        target = self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        language = LANGUAGES.get(Path(source).suffix, "text")
        text = (ROOT / source).read_text().rstrip("\n")
        target.write_text(f"---\norphan: true\n---\n# {source}\n\n````{language}\n{text}\n````\n")

    def landing_page(self, text, with_reference):
        """Return README.md with what a site adds: cards, and the contents beside each page."""
        cards = (HERE / "cards.md").read_text()
        contents = (HERE / "contents.md").read_text()
        contents = contents.replace("(others)\n", self.other_pages(contents))
        if not with_reference:
            contents = contents.replace("reference/index\n", "")
        head, why, rest = text.partition("\n## Why\n")
        if not why:
            raise ValueError("README.md has no section 'Why', before which the cards stand")
        return head + "\n" + cards + why + rest + "\n" + contents


def reference_sections():
    """Return the public names as ``docs/api.md`` groups them: by section, in order."""
    sections = {}
    for part in re.split(r"^## ", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        names = []
        for entry in NAMES_OF_ENTRY.findall(body):
            for code in re.findall(r"`([^`]+)`", entry):
                name = public_name(code)
                if name and name not in names:
                    names.append(name)
        sections[title] = names
    return {title: names for title, names in sections.items() if names}


def public_name(code):
    """Return the full name of what an entry calls `code`, or None if that is no public name."""
    name = f"gluon_svrg.{code}"
    module, _, last = name.rpartition(".")
    try:
        thing = getattr(importlib.import_module(module), last)
    except (ImportError, AttributeError):
        return None
    return None if inspect.ismodule(thing) or last not in vars(sys.modules[module]) else name


def slug(title):
    """Return the name of a section's file."""
    return re.sub(r"\W+", "-", title.lower())


def with_references(text, sections):
    """Return ``docs/api.md`` with each name that the reference has as a link to it."""
    known = {name for names in sections.values() for name in names}

    def replace(match):
        name = public_name(match[1])
        if name not in known:
            return match[0]
        return f"{{py:obj}}`{match[1]} <{name}>`"

    text = NAMES_OF_ENTRY.sub(lambda entry: re.sub(r"`([^`]+)`", replace, entry[0]), text)
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if line.startswith("## ") and line[3:] in sections:
            lines += [
                "",
                f"[All of it, with parameters and errors](reference/{slug(line[3:])}.rst)",
            ]
    return "\n".join(lines) + "\n"


def write_reference(folder, sections):
    """Write a page for each section, in reStructuredText, as the docstrings are."""
    folder.mkdir()
    entries = "\n".join(f"   {slug(title)}" for title in sections)
    (folder / "index.rst").write_text(
        "Reference\n=========\n\nThe docstrings of all public names, grouped as in the "
        ":doc:`list of public names </api>`.\n\n.. toctree::\n   :maxdepth: 2\n\n" + entries + "\n"
    )
    for title, names in sections.items():
        lines = [title, "=" * len(title), ""]
        for name in names:
            module, _, last = name.rpartition(".")
            thing = getattr(importlib.import_module(module), last)
            lines += [last, "-" * len(last), "", f".. currentmodule:: {module}", ""]
            lines += [*directive(name, thing), ""]
        (folder / f"{slug(title)}.rst").write_text("\n".join(lines))


def directive(name, thing):
    """Return the lines that show the docstring of a name."""
    origin = getattr(thing, "__module__", "") or ""
    if origin.startswith("mxnet"):
        return [f".. py:class:: {name}", "   :no-index-entry:", "", "   MXNet's own."]
    if inspect.isclass(thing):
        return [f".. autoclass:: {name}"]
    if callable(thing) and inspect.isfunction(thing):
        return [f".. autofunction:: {name}"]
    module, _, last = name.rpartition(".")
    comments = ModuleAnalyzer.for_module(module).find_attr_docs()
    text = [f"   {line}" for line in comments.get(("", last), [])]
    return [f".. py:data:: {last}", "", *text]


class Links:
    """The links of a page, and the places in it that a link may lead to."""

    def __init__(self, path):
        self.links, self.places = set(), set()
        # Not by html.parser: to read every tag of the sources' pages takes seconds.
        for tag in TAG.findall(path.read_text()):
            for name, value in ATTRIBUTE.findall(tag):
                kind = self.links if name in {"href", "src"} else self.places
                kind.add(html.unescape(value))


def broken_links(site):
    """Return the internal links of all pages that lead nowhere, as text."""
    pages = {path: Links(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            places = pages[there].places if there in pages else {unquote(parts.fragment)}
            if not there.is_file() or unquote(parts.fragment) not in places | {""}:
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def build(out, with_reference=True):
    """Build the site into a folder; raise if anything is amiss."""
    out = Path(out).resolve()
    with tempfile.TemporaryDirectory() as folder:
        pages, trees, made = (Path(folder) / name for name in ("pages", "trees", "html"))
        pages.mkdir()
        Stage(pages).write(with_reference)
        with patch_docutils(str(pages)), docutils_namespace(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python; those of Sphinx are errors
            app = Sphinx(
                *(pages, pages, made, trees, "html"),
                status=None,
                warningiserror=True,
            )
            app.build()
        if app.statuscode:
            raise ValueError("Sphinx warns: see above")
        broken = broken_links(made.resolve())
        if broken:
            raise ValueError("links that lead nowhere:\n" + "\n".join(broken))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=ROOT / "runs" / "site", type=Path)
    out = parser.parse_args().out
    build(out)
    print(f"the site is in {out}/index.html")


if __name__ == "__main__":
    main()
