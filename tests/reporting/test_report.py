"""The page of a run: well-formed, complete, escaped, alone; and colours that all can tell apart."""

import datetime
import itertools
import math
import re
import time
from html.parser import HTMLParser

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.reporting import curves
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.report import _DARK, _STYLE, _powers, _ticks, duration, page
from gluon_svrg.reporting.text_table import cell
from gluon_svrg.reporting.timings import PHASES
from mxnet import gluon

VOID = {"meta", "link", "img", "br", "wbr", "hr"}
HOSTILE = "</title><script>alert('1')</script>\"&<b"


class Page(HTMLParser):
    """The tables, headings and drawn curves of a page; raises if it is not well-formed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.headings, self.tags, self.text = [], {}, [], [], []
        self.curves = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), tag
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "div" and "aria-label" in attributes:
            self.table = self.tables.setdefault(attributes["aria-label"], [])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append(["", attributes.get("title")])
        if tag == "path" and attributes["d"] != "M0 5h28" and "transform" not in attributes:
            self.curves.append(attributes)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.table[-1][-1][0] += data
        if self.open and self.open[-1] in ("h1", "h2", "h3", "figcaption"):
            self.headings.append(data)


def row(epoch, **figures):
    return {"epoch": epoch, "seconds": 2.0, "batches": 8, "complete": True, **figures}


def losses(*values):
    return History(row(e, **{"training loss": value}) for e, value in enumerate(values))


def result_of(history, reason=gs.StopReason.EPOCHS_DONE, **given):
    return gs.FitResult(reason, len(history), history, **given)


def page_of(result, tmp_path, **given):
    path = result.report(tmp_path / "new" / "run.html", **given)
    text = path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["run.html"]  # nothing beside it
    return Page(text), text


def check_epochs(page, history):
    """All figures of the history are in the table, the metrics first, with all digits."""
    header, *rows = page.tables["Epochs"]
    others = [name for name in history.names() if name != "epoch"]
    is_metric = [name.startswith(("training", "validation")) for name in others]
    metrics = [name for name, is_one in zip(others, is_metric, strict=True) if is_one]
    names = ["epoch", *metrics, *(name for name in others if name not in metrics)]
    expected = [name.replace("_", " ") for name in names]
    assert [name for name, _ in header] == [
        "peak memory (MiB)" if name == "peak memory mib" else name for name in expected
    ]
    assert len(rows) == len(history)
    for shown, figures in zip(rows, history, strict=True):
        for (text, title), name in zip(shown, names, strict=True):
            value = figures.get(name)
            assert text == cell(value)
            if isinstance(value, (float, list)):
                assert (title or text) == str(value) or float(text) == value


CASES = {
    "one epoch": [row(0, **{"training loss": 1.0, "validation loss": 2.0})],
    "two": [row(e, **{"training loss": 1 / 3**e, "validation loss": 0.5}) for e in range(2)],
    "not the first": [row(e, **{"training loss": 1.0 + e}) for e in (7, 8)],
    "without validation": losses(1.0, 0.5),
    "validation now and then": [
        row(e, **{"training loss": 1.0} | ({"validation loss": 2.0} if e % 2 else {}))
        for e in range(5)
    ],
    "NaN": losses(1.0, math.nan, 0.5),
    "only NaN": losses(math.nan, math.nan),
    "infinite": losses(math.inf, 1.0, -math.inf),
    "huge": losses(1.7e308, -1.7e308, 1e299, 1.0),
    "tiny": losses(5e-324, 1e-300, 0.0),
    "constant": losses(0.0, 0.0, 0.0),
    "large and close": losses(1e9 + 1, 1e9 + 2),
    "decades": losses(*(10.0**-e for e in range(40))),
    "many": losses(*(1 + math.sin(e) for e in range(500))),
    "figures of handlers": [row(e, note="warm", norms=[1.5, 2.5, 3.5, 4.5]) for e in range(2)],
    "no metric": [row(0)],
    "nothing measured": [{"epoch": 0, "training loss": 1.0}],
    "variance": [
        row(e, variance_ratio=0.1 / 4**e, variance_ratio_at_2=0.01 / 4**e) for e in range(6)
    ],
    "metric of an unknown kind": [row(e, **{"training thing": e / 2}) for e in range(2)],
}


@pytest.mark.parametrize("name", CASES)
def test_a_history_of_any_kind(name, tmp_path):
    history = History(CASES[name])
    page, _ = page_of(result_of(history), tmp_path, title=name)
    check_epochs(page, history)
    assert page.headings[0] == name
    # What is drawn lies inside of its picture.
    lines = " ".join(a["d"] for a in page.curves if a.get("class", "").startswith("curve"))
    points = " ".join(a["transform"] for tag, a in page.tags if tag == "g")
    for number in re.findall(r"(?:[ML]|translate\()(\S+?) ([^\s)ML]+)", f"{lines} {points}"):
        x, y = map(float, number)
        assert 60 <= x <= 408
        assert 10 <= y <= 208
    # A point for each finite value of a short history.
    if len(history) <= curves.MAX_MARKERS:
        drawn = [
            value
            for panel in curves.panels_of(history)[0]
            for curve in panel.curves
            for value in curve.values
            if abs(value) < 1e300
        ]
        assert sum(tag == "circle" for tag, _ in page.tags) == len(drawn)


@pytest.mark.slow
def test_a_long_history_takes_little_time(tmp_path):
    """A time that grew with the square of the epochs would be minutes."""
    figures = {f"training metric {n}": 0.5 for n in range(10)}
    result = result_of(History(row(epoch, **figures) for epoch in range(10000)))
    begin = time.process_time()
    result.report(tmp_path / "run.html")
    assert time.process_time() - begin < 20


def test_a_run_without_an_epoch(tmp_path):
    page, _ = page_of(result_of(History()), tmp_path)
    assert page.headings == ["Training run", "Environment"]
    assert "0 epochs in 0 s" in "".join(page.text)


def test_everything_is_escaped(tmp_path):
    history = History([row(0, **{f"training {HOSTILE}": 0.123456, HOSTILE: HOSTILE})])
    result = result_of(
        history, settings={HOSTILE: {HOSTILE: HOSTILE}, "H": {}}, resumed_from=HOSTILE
    )
    page, text = page_of(result, tmp_path, title=HOSTILE, details={HOSTILE: HOSTILE})
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script" not in text
    assert "".join(page.text).count(HOSTILE) >= 9
    check_epochs(page, history)


def test_a_path_that_is_no_text_does_not_stop_it(tmp_path):
    page, _ = page_of(result_of(losses(1.0), resumed_from="/a/\udcff"), tmp_path)
    assert "checkpoint /a/?." in "".join(page.text)


def test_it_needs_no_other_file(tmp_path):
    history = History(CASES["two"])
    page, text = page_of(result_of(history), tmp_path)
    for _, attributes in page.tags:
        assert not attributes.get("src")
        assert (attributes.get("href") or "data:,").startswith("data:")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.tags}


def test_it_can_be_read_without_being_seen(tmp_path):
    page, text = page_of(result_of(History(CASES["two"])), tmp_path, title="digits")
    assert ("html", {"lang": "en"}) in page.tags
    assert "<title>digits</title>" in text
    assert ("meta", {"charset": "utf-8"}) in page.tags
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") or attributes["aria-label"]
        if attributes.get("role") == "region":  # it scrolls: by the keyboard, too
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
    drawn = [a["aria-label"] for tag, a in page.tags if a.get("role") == "img"]
    assert drawn[0] == "loss by epoch: training from 1 to 0.3333, validation from 0.5 to 0.5"


def test_last_and_best_of_each_metric(tmp_path):
    rows = [
        row(0, **{"training loss": 2.0, "validation accuracy": 0.5, "training thing": 1.0}),
        row(1, **{"training loss": math.nan, "validation accuracy": 0.75, "training thing": 2.0}),
        row(2, **{"training loss": 3.0, "validation accuracy": 0.625, "training thing": 3.0}),
    ]
    page, _ = page_of(result_of(History(rows)), tmp_path)
    assert [[text for text, _ in line] for line in page.tables["Metrics"]] == [
        ["metric", "last", "best", "in epoch"],
        ["training loss", "3", "2", "0"],
        ["validation accuracy", "0.625", "0.75", "1"],
        ["training thing", "3", "", ""],  # it is not known which is better
    ]


def test_where_the_time_went_by_phase(tmp_path):
    profile = History(
        {"epoch": e, "seconds": 4.0, "batches": 2} | dict.fromkeys(PHASES, 0.0) | {"data": 4.0}
        for e in (1, 2)
    )
    page, text = page_of(result_of(History(CASES["two"]), profile=profile), tmp_path)
    header, first, *_ = page.tables["Where the time went"]
    assert [text for text, _ in header] == ["phase", "seconds", "share", "ms per batch", ""]
    assert [text for text, _ in first] == ["data", "8.000", "100.0 %", "2000.000", ""]
    assert [line[0][0] for line in page.tables["Where the time went"][1:]] == list(PHASES)
    assert "By phase, in 2 profiled epochs." in text


def test_where_the_time_went_without_a_profile(tmp_path):
    history = History(
        [{"epoch": 0, "seconds": 90.0, "samples_per_second": 10.0},
         {"epoch": 1, "seconds": 30.0, "samples_per_second": 30.0}]
    )  # fmt: skip
    page, _ = page_of(result_of(history), tmp_path)
    assert [[text for text, _ in line] for line in page.tables["Where the time went"]] == [
        ["all epochs", "2 min 0 s"],
        ["an epoch on average", "1 min 0 s"],
        ["from the fastest to the slowest", "30 s to 1 min 30 s"],
        ["samples per second", "10 to 30"],
    ]


def test_details_come_first_and_an_old_page_is_replaced(tmp_path):
    path = tmp_path / "run.html"
    path.write_text("old")
    details = {"command": "python train.py", "rows": 12345, "device": None, "options": {"a": 1}}
    assert result_of(losses(1.0)).report(str(path), details=details) == path
    page = Page(path.read_text())
    assert [[text for text, _ in line] for line in page.tables["Details"]] == [
        ["command", "python train.py"],
        ["rows", "12,345"],
        ["device", ""],
    ]
    assert page.headings[1] == "Details"
    assert page.headings[-3:] == ["Configuration", "options", "Environment"]


def test_if_it_cannot_be_written_the_old_page_stays(tmp_path, monkeypatch):
    path = result_of(losses(1.0)).report(tmp_path / "run.html")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        result_of(losses(2.0)).report(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (0.0123, "0.012 s"), (3.14, "3.1 s"), (59.4, "59 s"), (60, "1 min 0 s"),
        (3599, "59 min 59 s"), (3600, "1 h 0 min"), (360000, "100 h 0 min"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("seed", range(20))
def test_ticks_are_round_and_inside(seed):
    random = np.random.default_rng(seed)
    low = random.normal() * 10.0 ** random.integers(-8, 9)
    high = low + 10.0 ** random.uniform(-3, 3) * max(abs(low), 1e-9)
    ticks = list(_ticks(low, high, 5))
    assert 2 <= len(ticks) <= 6
    assert len({label for _, label in ticks}) == len(ticks)
    for value, label in ticks:
        assert low - 1e-9 * (high - low) <= value <= high + 1e-9 * (high - low)
        assert float(label.replace(",", "")) == pytest.approx(value, abs=1e-6 * (high - low))
    steps = np.diff([value for value, _ in ticks])
    assert steps == pytest.approx(steps[0], rel=1e-6)
    assert f"{steps[0]:.1e}"[0] in "125"


def test_ticks_of_epochs_are_whole_and_those_of_decades_are_powers():
    for epochs in (1, 2, 3, 10, 999):
        ticks = [value for value, _ in _ticks(-0.5, epochs - 0.5, 7, least=1)]
        assert ticks
        assert all(value == int(value) for value in ticks)
    assert [label for _, label in _powers(-3.2, 1.1)] == ["0.001", "0.01", "0.1", "1", "10"]
    assert len(list(_powers(-300.0, 2.0))) <= 6


# --- Colours ---------------------------------------------------------------------------------

# Linear RGB to what is seen, in the strongest cases: Machado, Oliveira and Fernandes (2009).
VISION = {
    "of most": np.eye(3),
    "without red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "without green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB."""
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ np.clip(rgb, 0, 1)
        / [0.9505, 1.0, 1.089]
    )
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours, vision):
    seen = [lab(np.array(VISION[vision]) @ linear(colour)) for colour in colours]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("colours", [curves.COLOURS, _DARK[:5]], ids=["light", "dark"])
def test_colours_are_told_apart_with_any_kind_of_vision(colours, vision):
    """A difference of 2.3 is just seen; matplotlib's own cycle has pairs that differ by 5."""
    assert nearest(colours, vision) > 14


def test_that_check_refuses_colours_that_are_confused():
    matplotlib_s = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2"]
    assert nearest(matplotlib_s, "of most") > 14
    assert min(nearest(matplotlib_s, vision) for vision in VISION) < 10


def contrast(one, other):
    lights = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, other))
    return lights[1] / lights[0]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_curves_stand_out(scheme):
    """At least 4.5 for text, as the W3C's guidelines ask; of the first curves 3."""
    names = dict(re.findall(r"--(\w+): (#\w+)", _STYLE.split("@media")[scheme]))
    names = {n: "#" + "".join(c * 2 for c in v[1:]) if len(v) == 4 else v for n, v in names.items()}
    for text, ground in itertools.product(["text", "quiet"], ["ground", "shade"]):
        assert contrast(names[text], names[ground]) >= 4.5
    for colour in (curves.COLOURS, _DARK)[scheme][:3]:
        assert contrast(colour, names["ground"]) >= 3


# --- Of real runs ----------------------------------------------------------------------------


def fit(epochs=2, last=0.0, val=True, **given):
    """Train on 24 samples, of which one feature of the last one is given."""
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier())
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = gs.Estimator(net, loss, mx.metric.Accuracy(), trainer=trainer)
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 4)).astype("float32")
    x[-1, 0] = last
    data = gs.data.ArrayLoader(x, random.integers(0, 3, 24).astype("float32"), batch_size=8)
    validation = data if val else None
    return estimator.fit(data, validation, epochs=epochs, verbose=0, **given)


class StopAt(gs.events.BatchEnd):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.batch:
            estimator.stop(gs.StopReason.SIGNAL)


def test_a_run_with_svrg_and_a_profile(tmp_path):
    before = datetime.datetime.now().astimezone()
    profiler = gs.ProfilerHandler()
    result = fit(event_handlers=[gs.SVRGHandler(), profiler])
    assert before <= result.began <= datetime.datetime.now().astimezone()
    assert result.began.tzinfo is not None
    assert 0 < sum(result.history.column("seconds")) <= result.seconds
    assert result.profile is profiler.profile
    assert result.settings["training"]["network"].endswith("Dense")
    assert result.settings["training"]["parameters"] == "15"
    assert result.settings["training data"]["batch_size"] == 8
    assert result.settings["training"]["optimizer"].endswith("SGD")
    assert result.settings["optimizer"]["lr"] == 0.1
    page, _ = page_of(result, tmp_path)
    check_epochs(page, result.history)
    assert page.tables["Where the time went"][0][0][0] == "phase"
    everything = "".join(page.text)
    for words in ("All epochs are done", "2 epochs in", "update_freq", "SVRG coefficient 1"):
        assert words in everything
    versions = {line[0][0]: line[1][0] for line in page.tables["Environment"]}
    assert versions["MXNet"] == mx.__version__
    assert [h for h in page.headings if h in ("loss", "accuracy")][:2] == ["loss", "accuracy"]


def test_an_interrupted_run(tmp_path):
    result = fit(epochs=3, event_handlers=[StopAt(4)])
    page, text = page_of(result, tmp_path)
    assert "A signal (such as Ctrl-C or SIGTERM) asked to stop" in text
    assert "epoch 1 was broken off after 2 batches" in text
    check_epochs(page, result.history)
    assert "epoch 1 was broken off after 2 batches" in repr(result)


def test_a_resumed_run(tmp_path):
    folder = tmp_path / "checkpoints"
    fit(epochs=1, event_handlers=[gs.CheckpointHandler(folder)])
    result = fit(epochs=3, event_handlers=[gs.CheckpointHandler(folder)], resume="auto")
    assert result.resumed_from.startswith(str(folder))
    assert len(result.history) == 3
    page, text = page_of(result, tmp_path)
    assert "It continued from the checkpoint" in text
    check_epochs(page, result.history)


def test_a_run_whose_loss_is_not_a_number(tmp_path):
    result = fit(last=math.nan, val=False)
    assert math.isnan(result.history.last("training loss"))
    page, _ = page_of(result, tmp_path)
    check_epochs(page, result.history)
    assert "no finite value" in "".join(page.text)


def test_of_several_workers_the_first_one_writes(tmp_path, monkeypatch):
    class Second:
        is_first = False

    monkeypatch.setattr("gluon_svrg.reporting.result.current", Second)
    assert not result_of(losses(1.0)).report(tmp_path / "run.html").exists()


def test_a_page_of_ones_own():
    parsed = Page(page("<mine>", ["<p>text</p>"]))
    assert parsed.headings == ["<mine>"]
