"""Print the targets of the pages that this version has not made.

``make bench`` runs them one after the other, so that it continues where it was stopped.
"""

import sys
from pathlib import Path

import report

PAGES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"


def main() -> None:
    version = f"Version {report.measured_version()};"
    for target in sys.argv[1:]:
        page = PAGES / f"{target.removeprefix('bench-')}.md"
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        # A page may have several sections, each with its line.
        if text.count(version) < max(1, text.count(f"; `make {target}`.")):
            print(target)


if __name__ == "__main__":
    main()
