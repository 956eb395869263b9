"""Each check of results finds what it is for, and nothing in results that are in order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import pytest

from suite.entries import checks
from suite.entries.finding import Entry, Finding, sort_findings
from suite.entries.recompute import list_contradictions
from suite.record.record import make_result

RUNS = conftest.TESTS.parent / "results" / "runs"
NAMES = ("shapes-kfac-jax-s0-f3cb", "shapes-kfac-jax-s1-", "shapes-kfac-jax-s2-b8e5")
Result = dict[str, Any]


def entry(seed: int, change: Callable[[Result], None] = lambda result: None, events: Any = None) -> Entry:
    """One of three results of one row, changed."""
    path = next((RUNS / "resnet50").glob(f"shapes-kfac-jax-s{seed}-*.json"))
    result = json.loads(path.read_text())
    change(result)
    return Entry(Path(f"{seed}.json"), make_result(result), events)


def found(check: str, *entries: Entry) -> list[Finding]:
    return [finding for finding in checks.check_entries(entries) if finding.check == check]


def at(*places: Any, value: Any) -> Callable[[Result], None]:
    def change(result: Result) -> None:
        node: Any = result
        for place in places[:-1]:
            node = node[place]
        node[places[-1]] = value

    return change


def test_results_in_order_have_no_finding_but_their_tuning_seeds_and_what_cannot_be_checked() -> None:
    findings = checks.check_entries([entry(0), entry(1), entry(2)])
    assert [(finding.severity, finding.check) for finding in findings] == [
        ("doubtful", "tuning-seeds"),
        ("note", "log"),
        ("note", "overlap"),
    ]
    assert findings[0].files == ("0.json", "1.json", "2.json") and "best of 8 trials" in findings[0].sentence


@pytest.mark.parametrize(
    "check, severity, says, change",
    [
        ("numbers", "wrong", "steps: the result has 300", at("steps", value=300)),
        ("numbers", "wrong", "targets.3.step: the result has 10", at("targets", 3, "step", value=10)),
        ("numbers", "wrong", "hash", at("spec", "config", "max_steps", value=200)),
        ("clock", "wrong", "training seconds in 20.00 wall seconds", at("wall_seconds", value=20.0)),
        ("clock", "wrong", "excluded seconds in 81.53", at("excluded_seconds", "evaluation", value=60.0)),
        (
            "clock",
            "wrong",
            "training seconds in 1.00 wall seconds at step 10",
            at("curve", 0, "wall_seconds", value=1.0),
        ),
        ("clock", "wrong", "but 30.00 at its end", at("train_seconds", value=30.0)),
        ("clock", "wrong", "half of its 290 steps took at least 145.00", at("step_seconds", "p50", value=1.0)),
        ("clock", "wrong", "fewer wall seconds at step 20", at("curve", 0, "wall_seconds", value=50.0)),
        ("clock", "wrong", "top1_60 before the evaluation", at("targets", 0, "train_seconds", value=1.0)),
        ("metric", "wrong", "top1 101 at step 10, outside 0 to 100", at("curve", 0, "metrics", "top1", value=101.0)),
        ("metric", "doubtful", "no whole number of 1024", at("curve", 0, "metrics", "top1", value=15.3)),
        ("numbers", "wrong", "beside an undefined loss", at("curve", 3, "metrics", "loss", value=None)),
        ("numbers", "wrong", "beside an undefined top1", at("curve", 3, "metrics", "top1", value=None)),
        (
            "numbers",
            "wrong",
            "every metric of step 40 is undefined, but",
            at("curve", 3, "metrics", value={"loss": None, "top1": None}),
        ),
        ("unbilled", "doubtful", "at 3 pauses", at("busy_pauses", value=3)),
        ("source", "doubtful", "uncommitted changes", at("environment", "dirty", value=True)),
        ("source", "note", "names no commit", at("environment", "commit", value=None)),
        ("source", "doubtful", "this had changed: cpu", at("resumed_anyway", value=[{"step": 3, "changed": ["cpu"]}])),
    ],
)
def test_a_result_that_contradicts_itself_is_found(
    check: str, severity: str, says: str, change: Callable[[Result], None]
) -> None:
    assert not found(check, entry(2))
    matching = [finding for finding in found(check, entry(2, change)) if says in finding.sentence]
    assert [finding.severity for finding in matching] == [severity], found(check, entry(2, change))


@pytest.mark.parametrize(
    "kind, wrong", [("reached", 1), ("exhausted", 1), ("failed", 1), ("interrupted", 1), ("diverged", 0)]
)
def test_a_run_whose_last_evaluation_is_undefined_has_diverged(kind: str, wrong: int) -> None:
    def change(result: Result) -> None:
        result["curve"][-1]["metrics"] = {"loss": None, "top1": None}
        result["outcome"]["kind"] = kind

    sentences = list(list_contradictions(entry(2, change).result))
    assert sum("every metric of step 290 is undefined" in sentence for sentence in sentences) == wrong


def test_missing_seeds_are_found_even_if_the_cadence_differs() -> None:
    assert not found("seeds", entry(0), entry(1), entry(2))
    (finding,) = found("seeds", entry(0), entry(2))
    assert "has the seeds 0, 2, but not 1" in finding.sentence and finding.files == ("0.json", "2.json")
    other_cadence = entry(1, at("spec", "config", "eval_every", value=20))
    assert not found("seeds", entry(0), other_cadence, entry(2))
    older = entry(1, lambda result: result["spec"]["config"].pop("accumulate"))
    assert not found("seeds", entry(0), older, entry(2))  # a setting that older results lack is no other row
    (finding,) = found("settings", entry(0), other_cadence)
    assert finding.severity == "note" and "differ in eval_every" in finding.sentence
    late = [entry(seed, at("spec", "seed", value=seed + 3)) for seed in range(3)]
    assert not found("seeds", *late)  # seeds after those of the tuning
    assert not found("tuning-seeds", *late)


def test_settings_and_versions_that_differ_within_a_row_are_found() -> None:
    (finding,) = found("settings", entry(0), entry(1, at("spec", "config", "max_steps", value=900)))
    assert finding.severity == "doubtful" and "differ in max_steps" in finding.sentence
    (finding,) = found("versions", entry(0), entry(1, at("environment", "source", value="0" * 16)))
    assert "2 versions of the suite's code" in finding.sentence
    assert not found("versions", entry(0), entry(1))


def test_copies_are_found() -> None:
    assert not found("copies", entry(0), entry(1), entry(0))  # the same file twice is no copy
    kept = entry(0).result.plain()

    def renamed(result: Result) -> None:
        result["execution_id"], result["spec"]["seed"] = "0" * 32, 7
        result["curve"] = kept["curve"]

    sentences = [finding.sentence for finding in found("copies", entry(0), entry(1, renamed))]
    assert len(sentences) == 2 and "seeds 0, 7 have the same metrics" in sentences[1]
    (finding,) = found("copies", entry(0), entry(1, at("execution_id", value=kept["execution_id"])))
    assert "2 results with different content" in finding.sentence


def test_different_splits_of_one_data_set_are_found() -> None:
    def split(result: Result) -> None:
        result["data"] |= {"kind": "real", "identity": "a" * 64}

    def another(result: Result) -> None:
        split(result)
        result["data"]["samples"] = {"train": 8000, "valid": 1216}

    assert [finding.severity for finding in found("overlap", entry(0, split), entry(1, split))] == ["note"]
    first = found("overlap", entry(0, split), entry(1, another))[0]
    assert first.severity == "doubtful" and "2 different splits" in first.sentence


def test_a_log_other_than_the_submitted_one_is_found(tmp_path: Path) -> None:
    result = entry(2).result
    (tmp_path / "a.events.sha256").write_text("0" * 64 + "  events.jsonl\n")
    assert not found("numbers", Entry(tmp_path / "a.json", result, None, "0" * 64))
    (finding,) = found("numbers", Entry(tmp_path / "a.json", result, None, "1" * 64))
    assert "but 000000000000… was submitted" in finding.sentence


def test_findings_are_listed_worst_first_whatever_the_order_of_the_results() -> None:
    entries = [entry(0), entry(2, at("steps", value=1)), entry(1, at("environment", "dirty", value=True))]
    findings = checks.check_entries(entries)
    assert findings == checks.check_entries(entries[::-1]) == sort_findings(findings[::-1])
    assert findings[0].severity == "wrong" and findings[-1].severity == "note"


def test_the_committed_results_have_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/entries.md lists the kinds of findings about the suite's own results."""
    count, findings = checks.check_paths([RUNS])
    assert checks.print_findings(findings, count) == 0
    assert f"{len(list(RUNS.glob('*/*.json')))} results: 0 wrong" in capsys.readouterr().out
    doubtful = {finding.check for finding in findings if finding.severity == "doubtful"}
    assert doubtful == {"seeds", "settings", "source", "tuning-seeds", "versions"}
