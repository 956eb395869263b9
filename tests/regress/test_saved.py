"""`suite regress` with saved measurements as a side: reports of --json, and results of runs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boards
import pytest
from repositories import repository

from suite.contract import UserError
from suite.record.environment import capture_environment
from suite.regress import saved, sides

Call = Callable[..., tuple[int, str]]
RUN = ("--run", "+task=any")


@pytest.fixture
def slower(suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, the second 10 % slower, and a folder with a measured report of the first, three times."""
    monkeypatch.chdir(tmp_path)
    repository(tmp_path / "repository", [0.1, 0.11])
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setattr(sides, "CACHE", tmp_path / "cache")
    reports = tmp_path / "reports"
    reports.mkdir()
    suite("regress", "HEAD~1", "HEAD~1", "--json", str(reports / "0.json"), *RUN)
    for name in ("1.json", "2.json"):
        (reports / name).write_text((reports / "0.json").read_text())
    return reports


@pytest.mark.slow
def test_reports_are_a_side_against_a_commit(slower: Path, suite: Call) -> None:
    assert suite("regress", str(slower), "HEAD~1", *RUN)[0] == 0
    code, text = suite("regress", str(slower), "HEAD")  # the benchmarks of the reports
    assert code == 3 and "+task=any" in text
    assert "confirmed in new processes" in text and "saved measurements: a change of the machine" in text


def test_one_report_is_too_short_to_confirm_an_alarm(slower: Path, suite: Call) -> None:
    code, text = suite("regress", str(slower / "0.json"), "HEAD", *RUN)
    assert code == 0 and "undecided" in text


def test_two_saved_sides_run_nothing(slower: Path, suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: pytest.fail("a process was started"))
    code, text = suite("regress", str(slower), str(slower), *RUN)
    assert code == 0 and "round 4" in text


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words, message",
    [
        (("--run", "+task=other"), "+task=other: not among the saved measurements of +task=any"),
        (("--only", "mine"), "--only mine: no such benchmark; choose one of +task=any"),
        (("--bisect",), "--bisect needs two commits"),
    ],
)
def test_what_was_not_saved_is_named(words: tuple[str, ...], message: str, slower: Path, suite: Call) -> None:
    code, text = suite("regress", str(slower), "HEAD", *words)
    assert code == 2 and message in text


def test_another_machine_is_rejected(slower: Path, suite: Call) -> None:
    for file in slower.iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "another, 64 cores"}))
    code, text = suite("regress", str(slower), "HEAD", *RUN)
    assert code == 2 and "times of different machines are never compared: another, 64 cores; " in text
    assert suite("regress", str(slower), str(slower), *RUN)[0] == 0


def result(path: Path, seed: int, seconds: float, **changes: Any) -> None:
    """Write the result of a run, with the fields that are read."""
    spec = {"task": "bert", "optimizer": "lamb", "comm": "fp8", "backend": "jax", "world": 2, "seed": seed}
    config = {"task": {"name": "bert", "module": "suite.tasks.bert", "data": "hmm"}}
    content = boards.result()
    content["spec"] |= {**spec, "config": content["spec"]["config"] | config}
    content |= {"environment": capture_environment() | {"threads": 2}, "steps": 9, **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "header.json").write_text('{"hash": "c0ffee"}')
    path.write_text(json.dumps({**content, "step_seconds": {"p50": seconds, "p99": None}, "peak_memory_bytes": 1000}))


def test_results_of_runs_are_sides(tmp_path: Path, suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(24):
        result(tmp_path / "before" / str(seed) / "result.json", seed, 0.1 + 0.05 * (seed % 3))
        result(
            tmp_path / "after" / str(23 - seed) / "result.json",
            seed,
            1.1 * (0.1 + 0.05 * (seed % 3)) + 1e-4 * (seed % 2),
        )
    code, text = suite("regress", "before", "after")
    assert code == 3 and "bert/hmm/lamb fp8 2 ranks jax" in text, "runs of one seed are paired"
    assert suite("regress", "before", "after", "--metric", "memory")[0] == 0
    code, text = suite("regress", "before", "after", "--metric", "start")
    assert code == 2 and "have no start" in text
    code, text = suite("regress", "before", "HEAD")
    assert code == 2 and "results of runs are compared with results" in text


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no measurements there"),
        ("{", "not a report of suite regress --json, or a result of a run"),
        ("[]", "not a report of suite regress --json, or a result of a run"),
        ("{}", "not a report of suite regress --json, or a result of a run"),
    ],
)
def test_what_is_no_measurement_is_rejected(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(UserError, match=message):
        saved.find_saved(tmp_path, "step")


def test_results_of_several_machines_are_no_side(tmp_path: Path) -> None:
    for number, processor in enumerate(["one", "another"]):
        result(
            tmp_path / f"{number}.json",
            number,
            1.0,
            environment={**boards.ENVIRONMENT, "cpu": processor, "dirty": False},
        )
    with pytest.raises(UserError, match=r"measurements of several machines \(another, 2 cores; one, 2 cores\)"):
        saved.find_saved(tmp_path, "step")
