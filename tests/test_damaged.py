"""Damaged files of runs, claims and decisions are one line of error, or are left out; nothing hangs."""

import json
import os
import shutil
from pathlib import Path

import conftest
import pytest
from tiny_runs import CONF, TINY, Call, finished

from suite.claims.evidence import Results
from suite.contract import UserError
from suite.entries import intake
from suite.launch import directories, ending
from suite.record import record
from suite.settings import configure
from suite.track import view
from suite.training.adaptation import read_decisions

DEEP = "[" * 100_000 + "]" * 100_000
AGAIN = (*TINY[len(CONF) :], "max_steps=4", "eval_every=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("made") / "run", "max_steps=4", "eval_every=2")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A finished run in `runs`, below the working directory."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "tiny" / "one"))


def one_line(code: int, text: str, *names: str) -> bool:
    """Return whether the command failed with one line of error that contains the names."""
    errors = [line for line in text.splitlines() if line.startswith("suite: ")]
    return code == 2 and len(errors) == 1 and "Traceback" not in text and all(name in errors[0] for name in names)


def test_a_damaged_header_or_result_is_one_line(run: Path) -> None:
    again = configure.resolve([*AGAIN, f"run_dir={run}"], conftest.OUTSIDE / "conf")
    header = record.read_header(run)
    assert directories.Directory(again, header).state == "finished"
    for name, contents in {
        "header.json": ("{", "[]", "{}", DEEP, '{"fingerprint": 1}'),
        "result.json": ("", "null", "{}", DEEP, '{"outcome": 3}'),
    }.items():
        whole = (run / name).read_text()
        for content in contents:
            (run / name).write_text(content)
            with pytest.raises(UserError) as raised:
                directories.Directory(again, header)
            assert str(raised.value).startswith(f"{run / name}: damaged (") and "\n" not in str(raised.value)
            assert str(raised.value).endswith("restore it, or choose another run_dir=")
        (run / name).write_text(whole)
    (run / "result.json").write_text('{"outcome": {"kind": "reached"}}')
    with pytest.raises(UserError, match=r"result\.json: damaged \(ValueError: schema, hash, execution_id, "):
        ending.show_result(again, run)


def test_pipes_and_deep_files_below_runs_are_left_out(suite: Call, run: Path) -> None:
    """Reading a pipe would wait for ever."""
    (run.parent / "deep").mkdir()
    (run.parent / "deep" / "result.json").write_text(DEEP)
    for name in ("pipe/result.json", "two/header.json", "one/notes.json"):
        (run.parent / name).parent.mkdir(exist_ok=True)
        os.mkfifo(run.parent / name)
    assert [label for label, _ in Results([run.parent.parent])._all] == ["runs/tiny/one/result.json"]
    assert [path for path, _ in intake.find_results(run.parent.parent)] == [run / "result.json"]
    with pytest.raises(UserError, match="has not started"), view.view_run(run.parent / "two"):
        raise AssertionError
    with view.view_run(run) as seen:
        assert "notes.json" not in {path.name for path in view.list_files(seen.folder)}
    for name in ("pipe", "deep"):
        assert one_line(*suite("verify", str(run.parent / name / "result.json")), "result.json: ")


def test_nested_yaml_is_one_line(suite: Call) -> None:
    for content in ("a: " + "[" * 5000 + "]" * 5000, "a:\n" + "".join(" " * n + "- \n" for n in range(1, 1500))):
        Path("mine.yaml").write_text(content)
        code, text = suite("reproduce", "mine.yaml", "--list")
        assert one_line(code, text, "mine.yaml: ", "not YAML"), text[:300]


def test_decisions_that_lack_a_field_are_one_line(tmp_path: Path) -> None:
    whole = {"step": 0, "mode": "float32", "steps": None, "why": {}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"decisions": [whole]}))
    assert [decision.model_dump() for decision in read_decisions(str(path))] == [whole]
    cases: list[object] = [{name: whole[name] for name in whole if name != absent} for absent in whole]
    cases += [{**whole, "step": value} for value in (None, "0", -1, 0.5, True)]
    cases += [{**whole, "mode": value} for value in (None, 3, {"linear": 1})]
    cases += [{**whole, "steps": value} for value in (0, -1, "x", 1.5)] + [None, [], "x"]
    for case in cases:
        path.write_text(json.dumps({"decisions": [case]}))
        with pytest.raises(UserError, match="no record of decisions") as raised:
            read_decisions(str(path))
        assert "\n" not in str(raised.value)
