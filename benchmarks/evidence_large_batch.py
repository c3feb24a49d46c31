"""LARS against SGD over batch sizes, by recipes/large_batch.py."""

from __future__ import annotations

import shutil
import sys

import evidence_common as common

sys.path.append(str(common.ROOT / "recipes"))
PART = "large_batch"
FOLDER = common.ROOT / "runs" / "evidence" / "large_batch"


def jobs() -> list[common.Row]:
    return list(common.product(only=["sgd", "lars"], more_rates=[2]))


def work(job: common.Row) -> common.Row:
    """Do one optimizer's half of the sweep; the lines of its runs are the recipe's own."""
    import large_batch

    for folder in (FOLDER, common.RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    runs, known = FOLDER / "runs.jsonl", common.RESULTS / "large_batch_runs.jsonl"
    if known.exists() and not runs.exists():
        shutil.copy(known, runs)
    more = str(job["more_rates"])
    large_batch.main(["--only", job["only"], "--more-rates", more, "--out", str(FOLDER)])
    shutil.copy(FOLDER / "runs.jsonl", common.RESULTS / "large_batch_runs.jsonl")
    shutil.copy(FOLDER / "table.md", common.RESULTS / "large_batch_table.md")
    shutil.copy(FOLDER / "large_batch.png", common.IMAGES / "evidence_large_batch.png")
    return {}


def section(_: common.Results) -> str:
    return (common.RESULTS / "large_batch_table.md").read_text(encoding="utf-8")


def draw(_: common.Results) -> None:
    """Draw nothing: the recipe has drawn it."""
