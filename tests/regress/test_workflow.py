"""Steps of the workflow, run in a shell, in a repository whose runs take no time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from repositories import repository

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "regress.yml"


def steps() -> dict[str, dict[str, Any]]:
    """Return the named steps of the job."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["regress"]
    return {step["name"]: step for step in job["steps"] if "name" in step}


@pytest.mark.parametrize("seconds, code", [([0.1, 0.1], 0), ([0.1, 0.12], 3)], ids=["equal", "slower"])
def test_a_pull_request_is_compared_with_its_base(seconds: list[float], code: int, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    base, _ = repository(folder, seconds)
    (folder / "mine.yaml").write_text("- {name: mine, run: +task=any}\n")
    programs = Path(sys.executable).parent
    assert (programs / "suite").exists(), "the script that the package installs"
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "HOME": str(tmp_path),
        "BASE": base,
        "BENCHMARKS": "mine.yaml",
        "OPTIONS": "--minutes 5",
    }
    shell = shutil.which("bash") or "sh"
    done = subprocess.run(
        [shell, "-e", "-c", steps()["compare"]["run"]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    comment = (folder / "regress" / "comment.md").read_text()
    assert "| mine | step |" in comment and ("**slower**" in comment) is (code == 3)
    assert {path.name for path in (folder / "regress").iterdir()} == {"comment.md", "junit.xml", "regress.json"}


def test_its_inputs_are_used() -> None:
    content = yaml.safe_load(WORKFLOW.read_text())
    inputs = content[True]["workflow_call"]["inputs"]  # YAML reads `on` as true
    text = WORKFLOW.read_text()
    assert all(f"inputs.{name}" in text for name in inputs)


@pytest.mark.parametrize("written", [True, False])
def test_a_pull_request_from_a_fork_has_a_summary_and_no_comment(written: bool, tmp_path: Path) -> None:
    """Also where the comparison wrote nothing: then neither step fails, or hides the reason."""
    named = steps()
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert named["comment"]["if"] == f"always() && {same}" and named["summary"]["if"] == "always()"
    if written:
        (tmp_path / "regress").mkdir()
        (tmp_path / "regress" / "comment.md").write_text("| table |\n")
    summary = tmp_path / "summary.md"
    environment = os.environ | {"GITHUB_STEP_SUMMARY": str(summary), "PULL": "https://example.org/1"}
    shell = shutil.which("bash") or "sh"
    for name in ("summary", *(() if written else ("comment",))):
        subprocess.run([shell, "-e", "-c", named[name]["run"]], cwd=tmp_path, env=environment, check=True)
    assert (summary.read_text() if summary.exists() else "") == ("| table |\n" if written else "")
