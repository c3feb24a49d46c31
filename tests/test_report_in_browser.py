"""The page of a run in a real browser: on a phone, on a wide screen, in light and in dark."""

import math

import chromium
import gluon_svrg as gs
import pytest
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.timings import PHASES

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        chromium.find() is None, reason="no Chromium is installed: apt-get install chromium"
    ),
]
LONG = "a_name_without_any_place_at_which_it_might_be_broken_" * 4

# The text of a picture that is outside of it, and pairs of labels of an axis that overlap.
MISPLACED = """
[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll(':scope > text')].map(
    text => [text.textContent, text.getBoundingClientRect()]);
  const outside = boxes.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1 ||
    b.top < frame.top - 1 || b.bottom > frame.bottom + 1).map(([name]) => `outside: ${name}`);
  const overlapping = boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).map(
    ([other]) => `overlapping: ${one} and ${other}`));
  return [...outside, ...overlapping];
})"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def rows(epochs, **figures):
    return [
        {
            "epoch": epoch,
            "seconds": 1.5,
            "samples": 60000,
            "samples_per_second": 40000.0,
            "batches": 469,
            "complete": True,
            "learning_rate": 0.1 / (epoch + 1),
            "training accuracy": 1 - 0.5 / (epoch + 1),
            "training loss": 2 / (epoch + 1) ** 4,
            "validation accuracy": 0.9 - 0.3 / (epoch + 1),
            "validation loss": 2 / (epoch + 1) ** 2,
            **figures,
        }
        for epoch in range(epochs)
    ]


PROFILE = [{"epoch": 1, "seconds": 9.0, "batches": 469} | dict.fromkeys(PHASES, 1.0)]
SETTINGS = {"SVRGHandler": {"update_freq": 1, LONG: LONG}, "HistoryHandler": {"priority": 1000.0}}
RUNS = {
    "usual": (rows(8, variance_ratio=0.5, variance_ratio_at_2=0.25), {"profile": PROFILE}),
    "one epoch": (rows(1), {}),
    "long": (rows(500, **{f"training metric {n}": float(n) for n in range(12)}), {}),
    "odd": (
        rows(3, **{f"training {LONG}": 1e-300, "training thing": 123456789.0, "norm": math.nan}),
        {"title": LONG, "details": {LONG: LONG}, "settings": SETTINGS, "resumed_from": f"/{LONG}"},
    ),
    "nothing": ([], {}),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = chromium.Chromium(chromium.find(), tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture(scope="module", params=RUNS)
def page(request, tmp_path_factory):
    history, given = RUNS[request.param]
    told = {name: given[name] for name in ("title", "details") if name in given}
    kept = {name: value for name, value in given.items() if name not in told}
    if "profile" in kept:
        kept["profile"] = History(kept["profile"])
    result = gs.FitResult(gs.StopReason.EPOCHS_DONE, len(history), History(history), **kept)
    return result.report(tmp_path_factory.mktemp("page") / "run.html", **told).as_uri()


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2560])
def test_the_page_fits_and_nothing_goes_wrong(browser, page, width, is_dark):
    browser.open(page, width, is_dark)
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
    assert [address for address in browser.requests if not address.startswith("data:")] == [page]
    assert browser.ask(MISPLACED) == []
    assert browser.ask(BACKGROUND) == ("rgb(21, 25, 30)" if is_dark else "rgb(255, 255, 255)")
    # What is too wide scrolls in its frame, which the keyboard reaches.
    frames = "[...document.querySelectorAll('.scroll')]"
    assert browser.ask(f"{frames}.every(f => f.tabIndex === 0)")
    assert browser.ask(f"{frames}.every(f => f.getBoundingClientRect().right <= innerWidth)")
    assert browser.ask(
        f"{frames}.every(f => ['auto', 'scroll'].includes(getComputedStyle(f).overflowX))"
    )
    assert browser.picture().startswith(b"\x89PNG")


def test_that_check_sees_what_is_too_wide(browser, tmp_path):
    path = tmp_path / "wide.html"
    path.write_text(
        "<!doctype html><title>wide</title><p style='width: 900px'>wide</p>"
        "<svg role=img viewBox='0 0 10 10' width=100><text x=9>out</text><text x=8>of</text></svg>"
        "<script>console.error('no')</script><img src='none.png'>"
    )
    browser.open(path.as_uri(), 390)
    assert browser.ask("document.documentElement.scrollWidth") > 390
    assert browser.complaints
    assert len(browser.requests) == 2
    assert len(browser.ask(MISPLACED)) == 3
