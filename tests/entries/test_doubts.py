"""Doubts: the committed ones are in order, files from outside are checked, and each finds its results."""

from pathlib import Path

import conftest
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import Call

from suite.entries import doubts
from suite.entries.strict import Unreadable
from suite.record.record import read_result

RESULTS = conftest.TESTS.parent / "results"
SAMPLE = RESULTS / "runs" / "resnet50" / "shapes-kfac-jax-s2-b8e5fcbb50a7.json"
GOOD = f"""who: a reader
date: 2026-11-23
results: [{SAMPLE.name}]
finding: The learning rate is not the tuned one.
evidence: ["https://example.org/a"]
status: open
"""


def test_each_committed_doubt_is_about_results_that_are_there() -> None:
    assert doubts.list_doubts()
    for doubt in doubts.list_doubts():
        doubts.check_subject(doubt, RESULTS / "runs")


def test_a_doubt_about_a_row_finds_its_results_only() -> None:
    paths = [*(RESULTS / "runs" / "resnet50").glob("*.json")]
    (doubt,) = [doubt for doubt in doubts.list_doubts() if doubt.name == "digits-too-few"]
    about = [path.name for path in paths if doubt.concerns(read_result(path))]
    assert about and all(name.startswith("digits-") for name in about)
    assert len(about) == len([path for path in paths if path.name.startswith("digits-")])


def test_a_doubt_about_files_finds_them_by_content() -> None:
    doubt = doubts.parse_doubts(GOOD.encode(), "rate")
    assert doubt.concerns(read_result(SAMPLE))
    assert not doubt.concerns(read_result(next(SAMPLE.parent.glob("shapes-kfac-jax-s1-*.json"))))


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("status: open", "status: settled", "status"),
        ("status: open", "status: confirmed", "answered and confirmed ones have one"),
        ("status: open", "status: open\nanswer: Yes, that is true.", "an open doubt has no answer"),
        (
            "who: a reader",
            "who: a reader\nwho: another",
            "line 2, column 1: not YAML: the key 'who' occurs more than once",
        ),
        ("who: a reader", "who: &a reader\nmore: *a", "anchor or an alias"),
        (
            "who: a reader",
            "who: a reader\ncolour: red",
            "line 2: colour: unknown field. Accepted here: who, date, results",
        ),
        ("status: open", "staus: open", "staus: unknown field; did you mean status?"),
        ("who: a reader", "how: a reader", "line 1: how: unknown field; did you mean who?"),
        ("evidence:", "evidense:", "line 5: evidense: unknown field; did you mean evidence?"),
        (
            f"results: [{SAMPLE.name}]",
            "row: {task: bert, dat: hmm}",
            "line 3: row.dat: unknown field; did you mean data?",
        ),
        ("who: a reader", "who: !!python/object/apply:os.system [ls]", "not YAML"),
        (f"results: [{SAMPLE.name}]", "results: [../../secret.json]", "results.0"),
        (f"results: [{SAMPLE.name}]", "", "needs exactly one of results"),
        ("https://example.org/a", "javascript:alert(1)", "evidence.0"),
        ("date: 2026-11-23", "date: yesterday", "date"),
        ("date: 2026-11-23", "date: 2999-01-01", "the date is in the future"),
        ("finding: The learning", f"finding: {'x' * 2000}", "finding"),
        pytest.param("who: a reader", "who: " + "[" * 100, "not YAML", id="open brackets"),
        pytest.param("who: a reader", "who: " + "[" * 20000, "20,002 opening brackets", id="many brackets"),
    ],
)
def test_a_doubt_that_does_not_follow_the_format_is_rejected(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(Unreadable) as error:
        doubts.parse_doubts(GOOD.replace(old, new).encode(), "rate")
    assert says in str(error.value) and str(error.value).isprintable()


@given(st.binary(max_size=200) | st.text("who: [x]{}&*!|>-\n\t#\"'", max_size=100).map(str.encode))
def test_arbitrary_bytes_are_rejected_and_never_crash(content: bytes) -> None:
    with pytest.raises(Unreadable):
        doubts.parse_doubts(content, "rate")


def test_a_doubt_is_added_once_and_never_replaced(suite: Call, tmp_path: Path) -> None:
    runs = tmp_path / "results" / "runs" / "resnet50"
    runs.mkdir(parents=True)
    doubt = tmp_path / "rate.yaml"
    doubt.write_text(GOOD)
    code, text = suite("submit", "--doubt", "rate.yaml")
    assert code == 1 and f"{SAMPLE.name}: no such result in results/runs" in text
    (runs / SAMPLE.name).write_text(SAMPLE.read_text())
    assert suite("submit", "--doubt", "rate.yaml")[0] == 0
    kept = tmp_path / "results" / "doubts" / "rate.yaml"
    assert kept.read_text() == GOOD
    assert "is already submitted, as " in suite("submit", "--doubt", "rate.yaml")[1]
    doubt.write_text(GOOD + "# changed\n")
    code, text = suite("submit", "--doubt", "rate.yaml")
    assert code == 1 and "exists with other content; edit that file" in text and kept.read_text() == GOOD


def test_a_doubt_about_a_row_without_results_or_with_a_bad_name_is_rejected(suite: Call, tmp_path: Path) -> None:
    (tmp_path / "results" / "runs").mkdir(parents=True)
    row = GOOD.replace(f"results: [{SAMPLE.name}]", "row: {task: resnet50, optimizer: none}")
    (tmp_path / "rate.yaml").write_text(row)
    assert "no result in results/runs belongs to it" in suite("submit", "--doubt", "rate.yaml")[1]
    (tmp_path / "Rate 1.yaml").write_text(GOOD)
    code, text = suite("submit", "--doubt", "Rate 1.yaml")
    assert code == 1 and "small letters, digits and hyphens" in text
