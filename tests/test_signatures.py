"""Every signature that docs/api.md writes is the signature of the thing."""

import ast
import functools
import inspect
import math
import re
from pathlib import Path

import gluon_svrg as gs
import pytest

API = Path(__file__).parent.parent / "docs" / "api.md"
CALL = re.compile(r"(\.?\w[\w.]*)\((.*)\)", re.DOTALL)


ENTRY = re.compile(r"^- \*\*((?:`[^`]+`,?\s*)+)\*\*:.*\n(?:(?:  .*)?\n)*", re.MULTILINE)
BLOCK = re.compile(r"^  ```text\n(.*?)^  ```$", re.MULTILINE | re.DOTALL)


def entries(text):
    """The names of each entry, and the lines of its blocks; a long signature is one line."""
    for entry in ENTRY.finditer(text):
        lines = re.sub(r"\n {6}\s*", " ", "".join(BLOCK.findall(entry[0]))).replace("( ", "(")
        yield re.findall(r"`([^`]+)`", entry[1]), [line.strip() for line in lines.splitlines()]


def signatures(text):
    """Every signature that is written, with the thing that it is of."""
    for names, lines in entries(text):
        owner = resolve(names[0])
        for line in lines:
            if call := CALL.fullmatch(line):
                thing = getattr(owner, call[1][1:]) if line.startswith(".") else resolve(call[1])
                yield line, thing


def resolve(name):
    """The thing with this dotted name."""
    return functools.reduce(getattr, name.split("."), gs)


def written(span):
    """(kind, name, default) of each parameter that is written; and whether ``...`` ends them."""
    arguments = CALL.fullmatch(span)[2]
    goes_on = re.search(r"(^|,\s*)\.\.\.$", arguments)
    arguments = arguments[: goes_on.start()] if goes_on else arguments
    args = ast.parse(f"def f({arguments}): ...").body[0].args
    found = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    for arg, default in zip(positional, defaults, strict=True):
        found.append(("positional", arg.arg, value(default)))
    if args.vararg:
        found.append(("*", args.vararg.arg, inspect.Parameter.empty))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(("keyword", arg.arg, value(default)))
    if args.kwarg:
        found.append(("**", args.kwarg.arg, inspect.Parameter.empty))
    return found, bool(goes_on)


def value(node):
    """A default as it is written; ``...`` for one that is not said."""
    if node is None:
        return inspect.Parameter.empty
    return eval(ast.unparse(node), {"inf": math.inf})


KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "**",
}


# Parameters that warn and will be removed are not documented here.
DEPRECATED = {"GLMClassifier": "metric", "GLMRegressor": "metric"}


def difference(span, thing):
    """What is written and is not so; None where all is."""
    expected, goes_on = written(span)
    actual = [
        (KINDS[parameter.kind], parameter.name, parameter.default)
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name not in ("self", DEPRECATED.get(thing.__name__))
    ]
    # Every handler has one: docs/api.md says so once, for all.
    if actual and actual[-1][1] == "priority" and "priority" not in span:
        del actual[-1]
    if goes_on:
        actual = actual[: len(expected)]
    actual = [
        (kind, name, ... if said[2] is ... and default is not inspect.Parameter.empty else default)
        for (kind, name, default), said in zip(
            actual, [*expected, *[("", "", "")] * len(actual)], strict=False
        )
    ]
    return None if actual == expected else f"{expected} is written, {actual} is so"


FOUND = list(signatures(API.read_text(encoding="utf-8")))


@pytest.mark.parametrize(("span", "thing"), FOUND, ids=[span.split("(")[0] for span, _ in FOUND])
def test_a_signature_is_as_written(span, thing):
    assert difference(span, thing) is None


def test_signatures_were_found():
    assert len(FOUND) > 130
    owners = {span.partition("(")[0] for span, _ in FOUND}
    assert {"SVRGTrainer", ".correct", "schedules.cosine", "deploy.export"} <= owners
    assert "data.transforms.RandomCrop" in owners


def test_every_entry_and_every_line_of_a_block_is_read():
    text = API.read_text(encoding="utf-8")
    found = list(entries(text))
    assert len(found) == text.count("\n- **")
    attributes = [
        (names, line) for names, lines in found for line in lines if not CALL.fullmatch(line)
    ]
    assert sum(len(lines) for _, lines in found) == len(FOUND) + len(attributes)
    assert text.count("  ```text\n") == len(BLOCK.findall(text))
    for names, line in attributes:
        owner = resolve(names[0])
        for name in line.split(", "):
            assert re.fullmatch(r"\.\w+", name), (owner, line)


def example(a, b=1, *, c="x", d=None):
    """A function to be written down wrong."""


@pytest.mark.parametrize(
    "stale",
    ["f(a, b=1, c='x', d=None)", "f(a, b=2, *, c='x', d=None)", "f(b=1, *, c='x', d=None)",
     "f(a, b, *, c='x', d=None)", "f(a, b=1, *, d=None, c='x')", "f(a, b=1, *, c='x')",
     "f(a=..., b=1, *, c='x', d=None)", "f(a, b=1, *args, c='x', d=None)", "f(x, ...)"],
)  # fmt: skip
def test_a_stale_signature_is_seen(stale):
    assert difference(stale, example) is not None


@pytest.mark.parametrize(
    "right", ["f(a, b=1, *, c='x', d=None)", "f(a, ...)", "f(...)", "f(a, b=..., *, c=..., d=...)"]
)
def test_a_right_signature_is_taken(right):
    assert difference(right, example) is None
