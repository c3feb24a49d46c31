"""The files at the root that services and tools read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", SCHEMAS)
def test_each_file_is_valid_by_its_schema(pattern, tmp_path):
    pytest.importorskip("check_jsonschema")
    files = sorted(ROOT.glob(pattern))
    assert files

    def check(*given):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[pattern]]
        return subprocess.run([*command, *given], capture_output=True, text=True, check=False)

    done = check(*files)
    assert done.returncode == 0, done.stdout
    # The check finds a key that is misspelt.
    wrong = tmp_path / files[0].name
    key = re.search(r"^\w+(?=:)", files[0].read_text(), re.MULTILINE)[0]
    wrong.write_text(files[0].read_text().replace(f"{key}:", "misspelt:", 1))
    assert check(wrong).returncode == 1


def test_pre_commit_has_the_same_ruff():
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.search(r"\"ruff==([\d.]+)\"", project)[1]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"rev: v([\d.]+)", hooks) == [wanted]


def test_the_workflow_runs_ci_on_each_python():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    # The linear models have one more, without MXNet.
    linear = (ROOT / "linear" / "pyproject.toml").read_text()
    supported = re.findall(r"Programming Language :: Python :: (3\.\d+)", linear)
    assert re.findall(r"\"(3\.\d+)\"", workflow) == supported
    assert "run: .ci/run" in workflow
