"""Sphinx's settings. `build.py` copies this file beside the pages that it prepares."""

import importlib.util
import re
import sys
from pathlib import Path

import gluon_svrg
from docutils import nodes
from jinja2 import FileSystemLoader
from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from sphinx.util.math import wrap_displaymath

project = "gluon-svrg"
author = "The gluon-svrg developers"
copyright = f"2026, {author}"
PROJECT = Path(gluon_svrg.__file__).parent.parent / "pyproject.toml"
release = version = re.search(r'^version = "(.*)"', PROJECT.read_text(), re.MULTILINE)[1]

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
suppress_warnings = [
    "config.cache",
    "misc.highlighting_failure",  # a block whose language is a name for our own tools
]

# Markdown, and notebooks that are committed with their outputs.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"

# Formulas as MathML, which browsers draw themselves: MathJax would be fetched at each visit.
HAS_MATHML = importlib.util.find_spec("latex2mathml") is not None
html_math_renderer = "mathml" if HAS_MATHML else "mathjax"

# Docstrings.
default_role = "py:obj"
numpydoc_show_class_members = False  # autodoc shows them, with all that they say
autodoc_inherit_docstrings = False  # MXNet's are written in another markup
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types with shapes and units
autodoc_default_options = {
    "members": True,
    # scikit-learn writes them, with references into its own documentation.
    "exclude-members": ", ".join(
        f"set_{method}_request"
        for method in (
            *("fit", "score", "predict", "predict_proba", "predict_log_proba"),
            "decision_function",
        )
    ),
}
add_module_names = False
python_maximum_signature_line_length = 88
toc_object_entries = False  # each name has a heading

# The page.
html_theme = "furo"
html_title = f"gluon-svrg {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db3ec", "color-brand-content": "#7db3ec"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

# numpydoc would compile its template again for each docstring: a tenth of the time of a build.
TEMPLATES = Path(docscrape_sphinx.__file__).parent / "templates"
ENVIRONMENT = SandboxedEnvironment(loader=FileSystemLoader(TEMPLATES))
docscrape_sphinx.SandboxedEnvironment = lambda loader: ENVIRONMENT  # noqa: ARG005


def name_of_public(target):
    """Return the documented name of what a docstring calls by its module's name, or None."""
    module, _, name = target.rpartition(".")
    try:
        thing = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    for public in ("", ".svrg", ".events", ".optimizer", ".deploy", ".data", ".data.transforms"):
        package = importlib.import_module(f"gluon_svrg{public}")
        if getattr(package, name, None) is thing:
            return f"gluon_svrg{public}.{name}"
    return None


def resolve(app, env, node, contnode):
    """Find the page of `gluon_svrg.svrg.snapshot.Snapshot`: that of `gluon_svrg.Snapshot`."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    candidates = [target, *(f"{node.get(key)}.{target}" for key in ("py:class", "py:module"))]
    names = env.get_domain("py").objects
    for candidate in candidates:
        public = name_of_public(candidate)
        if public in names:
            return env.get_domain("py").resolve_xref(
                env, node["refdoc"], app.builder, "obj", public, node, contnode
            )
    if node["reftype"] == "obj":  # a word in backticks, and no name of ours
        return None
    # Last, a name that only one documented thing has.
    found = [name for name in names if name.endswith(f".{target.removeprefix('gluon_svrg.')}")]
    if len(found) == 1:
        return env.get_domain("py").resolve_xref(
            env, node["refdoc"], app.builder, "obj", found[0], node, contnode
        )
    return None


def module_of(_, module, name):
    """Return where to look for the source of a name: not in `builtins`, as for an alias.

    What `events` has from another module gets no link to it: viewcode would take `events` for the
    public module of all names in that file, such as `gluon_svrg.Position`.
    """
    thing = getattr(sys.modules.get(module), name.partition(".")[0], None)
    return (
        module
        if module == "gluon_svrg.events" or getattr(thing, "__module__", None) == "builtins"
        else None
    )


def mathml(latex, display):
    """Return a formula as MathML; words in it, such as `momentum`, are one name each."""
    from latex2mathml.converter import convert

    text = convert(latex, display=display)
    text = re.sub(r'columnalign="(\w+)"', r'style="text-align: \1; padding: 0.2em"', text)
    letters = r'(?:<mi mathvariant="normal">[^<]*</mi>){2,}'
    return re.sub(letters, lambda run: f"<mi>{re.sub('<[^>]*>', '', run[0])}</mi>", text)


def visit_math(translator, node):
    """Write a formula in a line of text."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_displaymath(translator, node):
    """Write a formula that stands by itself, of one line or several."""
    latex = wrap_displaymath(node.astext(), None, False)
    latex = re.sub(r"\\\[|\\\]|\\(begin|end)\{(equation|align)\*\}", "", latex).strip()
    translator.body.append(f'<div class="math">{mathml(latex, "block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Connect the functions above."""
    if HAS_MATHML:
        app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("viewcode-follow-imported", module_of)
    app.connect("missing-reference", resolve)
