"""Damaged files of runs, claims and decisions are one line of error, or are left out; nothing hangs."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from claimed import CLAIMS
from tiny_runs import TINY, Call, finished

from suite import disk
from suite.contract import UserError
from suite.training.adaptation import read_decisions

DEEP = "[" * 100_000 + "]" * 100_000
AGAIN = (*TINY, "max_steps=4", "eval_every=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("made") / "run", *AGAIN[len(TINY) :])


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A finished run in `runs`, below the working directory."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "tiny" / "one"))


def one_line(code: int, text: str, *names: str) -> bool:
    """The command failed with one line of error that contains the names."""
    errors = [line for line in text.splitlines() if line.startswith("suite: ")]
    return code == 2 and len(errors) == 1 and "Traceback" not in text and all(name in errors[0] for name in names)


def damage(text: str, draw: random.Random) -> Iterator[str]:
    """Texts that differ from a JSON text: cut, overwritten, nested, or with other fields."""
    place = draw.randrange(1, len(text))
    yield text[:place]
    yield text[:place] + draw.choice(["\0", "{", "]", "\ud7ff", "9" * 400, DEEP]) + text[place + 1 :]
    value = json.loads(text)
    key = draw.choice(sorted(value))
    yield json.dumps({**value, key: draw.choice([None, [], {}, "x", -1, 1e308, True])})
    yield json.dumps({name: entry for name, entry in value.items() if name != key})
    yield draw.choice(["", "null", "[]", "3", DEEP, '"text"', "{}", "\ufeff{}"])


def test_a_damaged_header_or_result_is_one_line(suite: Call, run: Path) -> None:
    for name, contents in {
        "header.json": ("{", "[]", "{}", DEEP, '{"fingerprint": 1}'),
        "result.json": ("", "null", "{}", DEEP, '{"outcome": {"kind": "reached"}}', '{"outcome": 3}'),
    }.items():
        whole = (run / name).read_text()
        for content in contents:
            (run / name).write_text(content)
            code, text = suite(*AGAIN, f"run_dir={run}")
            assert one_line(code, text, f"{run / name}: ", "choose another run_dir="), (content[:50], text)
        (run / name).write_text(whole)
    assert suite(*AGAIN, f"run_dir={run}")[0] == 0


def test_pipes_and_deep_files_below_runs_are_left_out(suite: Call, run: Path) -> None:
    """Reading a pipe would wait for ever."""
    (run.parent / "deep").mkdir()
    (run.parent / "deep" / "result.json").write_text(DEEP)
    for name in ("pipe/result.json", "two/header.json", "one/notes.json"):
        (run.parent / name).parent.mkdir(exist_ok=True)
        os.mkfifo(run.parent / name)
    Path("mine.yaml").write_text(CLAIMS)
    code, text = suite("reproduce", "mine.yaml", "--list")
    assert code == 0 and "Traceback" not in text
    for words in (
        ("board", "--results", "runs", "--out", "page"),
        ("plan", *AGAIN),
        ("sync", "--uri", "sqlite:///m.db"),
    ):
        code, text = suite(*words)
        assert code in (0, 1) and "Traceback" not in text, text
    for words in (("verify", str(run.parent / "pipe/result.json")), ("verify", str(run.parent / "deep/result.json"))):
        code, text = suite(*words)
        assert one_line(code, text, "result.json: "), text


def test_nested_yaml_is_one_line(suite: Call) -> None:
    for content in ("a: " + "[" * 5000 + "]" * 5000, "a:\n" + "".join(" " * n + "- \n" for n in range(1, 5000))):
        Path("mine.yaml").write_text(content)
        code, text = suite("reproduce", "mine.yaml", "--list")
        assert one_line(code, text, "mine.yaml: ", "not YAML"), text[:300]


def test_decisions_that_lack_a_field_are_one_line(tmp_path: Path) -> None:
    whole = {"step": 0, "mode": "float32", "steps": None, "why": {}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"decisions": [whole]}))
    assert read_decisions(str(path)) == [whole]
    cases: list[object] = [{name: whole[name] for name in whole if name != absent} for absent in whole]
    cases += [{**whole, "step": value} for value in (None, "0", -1, 0.5, True)]
    cases += [{**whole, "mode": value} for value in (None, 3, {"linear": 1})]
    cases += [{**whole, "steps": value} for value in (0, -1, "x", 1.5)] + [None, [], "x"]
    for case in cases:
        path.write_text(json.dumps({"decisions": [case]}))
        with pytest.raises(UserError, match="no record of decisions") as raised:
            read_decisions(str(path))
        assert "\n" not in str(raised.value)


def test_a_file_that_anyone_may_have_written_is_read_or_refused(tmp_path: Path, made: Path) -> None:
    draw, path = random.Random(0), tmp_path / "result.json"
    text = (made / "result.json").read_text()
    for _ in range(20):
        for content in damage(text, draw):
            path.write_text(content, errors="surrogatepass")
            try:
                disk.read_json(path)
            except UserError as error:
                assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
