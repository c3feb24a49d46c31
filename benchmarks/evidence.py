"""The evidence: the papers' claims, tried on data that is there.

    python benchmarks/evidence.py run variance coefficients   # by default all parts
    python benchmarks/evidence.py run giving_up --only model=mlp
    python benchmarks/evidence.py run recursive --only model=resnet20 --only method=nag
    python benchmarks/evidence.py page                        # tables and pictures from the results

A part is a list of jobs. The result of each is a line of ``benchmarks/results/PART.jsonl``, written
when it ends, so a run that was stopped continues where it was, and two processes with other parts,
or other ``--only``, can share the work. The pages are made of those lines alone: ``make evidence``
does both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

import evidence_coefficients
import evidence_common as common
import evidence_convex
import evidence_deployment
import evidence_direction
import evidence_giving_up
import evidence_large_batch
import evidence_presets
import evidence_recursive
import evidence_variance
import report

PARTS = {
    part.PART: part
    for part in (
        evidence_presets,
        evidence_variance,
        evidence_coefficients,
        evidence_giving_up,
        evidence_large_batch,
        evidence_deployment,
        evidence_recursive,
        evidence_direction,
        evidence_convex,
    )
}
PAGE = "evidence.md"


def write_pages(folder: Path, parts: list[str]) -> None:
    """Put the tables into their pages, and the pictures beside them."""
    for name in parts:
        part, results = PARTS[name], common.Results(name)
        if not results.rows:
            continue
        part.draw(results)
        text = f"{part.section(results)}\n\n{results.provenance()}; `make evidence`."
        report.write_section(folder / page_of(part), f"evidence-{name}", text)


def page_of(part: ModuleType) -> str:
    """Return the file of the part's page, in docs/."""
    return getattr(part, "PAGE", PAGE)


def is_wanted(job: common.Row, only: list[str]) -> bool:
    """Return whether a job has these settings, each as 'key=value'."""
    pairs = [setting.partition("=") for setting in only]
    return all(str(job.get(key)) == value for key, _, value in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument(
        "--only", action="append", default=[], metavar="KEY=VALUE", help="jobs with this setting"
    )
    parser.add_argument("--out", type=Path, default=common.ROOT / "docs", help="the pages' folder")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}: the parts are {', '.join(PARTS)}")
    if options.command == "run":
        for name in parts:
            # What comes next may follow from the results: the jobs are asked for one by one.
            jobs = (job for job in PARTS[name].jobs() if is_wanted(job, options.only))
            common.Results(name).run(jobs, PARTS[name].work)
    else:
        write_pages(options.out, parts)


if __name__ == "__main__":
    main()
