"""The evidence: its jobs run, and the page says what the committed results say."""

import sys

import evidence
import evidence_coefficients
import evidence_common as common
import evidence_giving_up
import evidence_recursive
import evidence_variance
import numpy as np
import pytest

pytestmark = pytest.mark.full

DOCS = common.ROOT / "docs"


@pytest.fixture
def few_images(monkeypatch):
    """Bright rows that tell the class, in the place of Fashion-MNIST."""

    def load(size=28, samples=None):
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 300)
        images = rng.integers(0, 256, (300, 1, size, size))
        images[np.arange(300), 0, 2 * labels] = 255
        split = images.astype("uint8"), labels.astype("float32")
        return split, (split[0][:100], split[1][:100])

    monkeypatch.setattr(common, "fashion_mnist", load)


def test_the_variance_job(few_images, monkeypatch):
    monkeypatch.setitem(evidence_variance.EPOCHS, "mlp", (0, 1))
    monkeypatch.setattr(evidence_variance, "POINTS", (50, 100))
    monkeypatch.setattr(common, "BATCH_SIZE", 32)
    result = evidence_variance.work({"model": "mlp", "seed": 0})
    assert [(row["epoch"], row["point"]) for row in result["rows"]] == [
        (0, 50), (0, 100), (1, 50), (1, 100)
    ]  # fmt: skip
    for row in result["rows"]:
        assert row["locked"] < row["unlocked"]
        assert row["locked_at_optimal"] <= min(1, row["locked"]) + 1e-9


@pytest.mark.parametrize("method", evidence_coefficients.METHODS)
def test_the_coefficient_job(few_images, monkeypatch, method):
    monkeypatch.setitem(evidence_coefficients.MODELS, "softmax", (0.01, 2, 300))
    rows = evidence_coefficients.work({"model": "softmax", "seed": 0, "method": method})["rows"]
    assert len(rows) == 3
    assert rows[-1]["loss"] < rows[0]["loss"]
    # A table makes it two gradients a sample.
    assert rows[-1]["evaluations"] == 2 * 300 * (1 if method == "SGD" else 2)
    half = evidence_coefficients.at_equal_evaluations(rows, rows[1]["evaluations"])
    assert half == pytest.approx(rows[1]["loss"])


@pytest.mark.parametrize("method", ["plain", "measures first"])
def test_the_giving_up_job(few_images, monkeypatch, method):
    monkeypatch.setattr(evidence_giving_up, "EPOCHS", 1)
    monkeypatch.setattr(common, "BATCH_SIZE", 32)
    result = evidence_giving_up.work({"model": "softmax", "seed": 0, "method": method})
    assert bool(result["records"]) == (method != "plain")
    assert (result["evaluations"] > 0) == (method != "plain")
    assert len(result["corrected"]) == (method != "plain")


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0, 0], "none"),
        ([0, 0, 1, 1], "2 to 3"),
        ([0.02, 0], "0 (2 %)"),
        ([0.02, 0, 1], "0 (2 %), 2"),
        ([0.89, 1, 1], "0 (89 %) to 2"),
    ],
)
def test_the_epochs_in_words(shares, text):
    assert evidence_giving_up.epochs_on(shares) == text


def test_the_epochs_of_an_earlier_version_follow_from_its_decisions():
    off = {"records": [[0, 0.02, 0.6, 0.59], [1, 0.02, 0.1, 0.1], [1, 0.11, 0.5, 0.4]]}
    assert evidence_giving_up.corrected_of(off) == [0.02] + 9 * [0]
    again = {"records": [[0, 0.02, 0.6, 0.59], [1, 0.02, 0.1, 0.1], [1, 1.0, 0.1, 0.1]]}
    again["records"] += [[2, 1.0, 0.1, 0.05]]
    assert evidence_giving_up.corrected_of(again) == [0.02, 0] + 8 * [1]


def test_a_job_is_done_once(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    done = []
    for _ in range(2):
        results = common.Results("part")
        results.run(
            common.product(a=[1, 2]), lambda job: done.append(job) or {"twice": 2 * job["a"]}
        )
    assert done == [{"a": 1}, {"a": 2}]
    assert common.Results("part").of(a=2) == [{"twice": 4}]


@pytest.mark.parametrize("name", evidence.PARTS)
def test_the_page_says_what_the_results_say(name):
    section = evidence.PARTS[name].section(common.Results(name))
    page = DOCS / evidence.page_of(evidence.PARTS[name])
    assert section.strip() in page.read_text()


def test_the_command_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "IMAGES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["evidence.py", "page", "--out", str(tmp_path)])
    evidence.main()
    for name, part in evidence.PARTS.items():
        text = (tmp_path / evidence.page_of(part)).read_text()
        assert f"<!-- evidence-{name} -->" in text
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".png"}


def test_an_unknown_part_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evidence.py", "run", "variances"])
    with pytest.raises(SystemExit):
        evidence.main()
    assert "there is no part 'variances': the parts are presets, " in capsys.readouterr().err


@pytest.mark.parametrize("name", evidence.PARTS)
def test_every_job_of_a_committed_part_was_done(name):
    done = [row["job"] for row in common.Results(name).rows]
    assert [job for job in evidence.PARTS[name].jobs() if job not in done] == []


@pytest.mark.parametrize("method", ["nag", "storm", "sarah"])
def test_the_recursive_job(few_images, monkeypatch, method):
    monkeypatch.setattr(evidence_recursive, "SAMPLES", 256)
    monkeypatch.setattr(evidence_recursive, "HELD_OUT", 44)
    monkeypatch.setattr(evidence_recursive, "BUDGET", 1024)
    job = {**evidence_recursive.job_of("mlp", method), "seed": 0, "rate": 0.01}
    result = evidence_recursive.work(job)
    points = result["points"]
    assert [point["evaluations"] for point in points][-1] == 1024
    assert len(points) == 4
    assert all(point["held_out_loss"] < 10 for point in points)
    # Two full gradients and their steps are the whole budget, too.
    assert result["steps"] == {"nag": 8, "storm": 8, "sarah": 6}[method]


@pytest.mark.parametrize(
    ("loss", "with_less", "answer"),
    [(0.30, 0.39, "yes"), (0.30, 0.41, "no"), (0.399, 0.39, "no"), (0.5, 0.39, "no")],
)
def test_what_pays(tmp_path, monkeypatch, loss, with_less, answer):
    """Better by more than twice the error, and not worse with nine tenths."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    results = common.Results("recursive")

    def add(method, end, share=1.0):
        for seed in range(3):
            point = {"held_out_loss": end + 0.01 * (seed - 1), "held_out_accuracy": 0.5}
            job = {**evidence_recursive.job_of("mlp", method, share), "seed": seed, "rate": 0.1}
            results.rows.append({"job": job, "result": {"points": [point]}})

    for control, end in zip(evidence_recursive.CONTROLS, (0.4, 0.41, 0.42), strict=True):
        add(control, end)
    add("storm", loss)
    add("storm", with_less, evidence_recursive.LESS)
    assert evidence_recursive.verdict(results, "mlp", "storm") == answer
    assert evidence_recursive.verdict(results, "mlp", "nag") == "control"
