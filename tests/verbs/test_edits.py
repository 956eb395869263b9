"""`suite verify --steps 0` finds every edit of a result or a log that contradicts another record."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import Call

from suite.entries.check_log import list_log_contradictions
from suite.record import record

Events = list[dict[str, Any]]
UNRECORDED = ("data", "published", "targets")  # known to the task, which is not imported here


def leaves(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a value in JSON: (group or list, key)."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(value, dict | list) and value:
            yield from leaves(value)
        else:
            yield node, key


def edit(node: Any, draw: random.Random) -> str:
    """Change one value, and say which."""
    inside, key = draw.choice(list(leaves(node)))
    before = inside[key]
    changes: list[Any] = [None, "x", [1]]
    if isinstance(before, bool):
        changes += [not before] * 3
    elif isinstance(before, int | float):
        changes += [before + 1, before * 1.01 + 1e-4, -before - 1, float(10 * before + 1)]
    elif isinstance(before, str):
        changes += [before + "x", before[:-1]]
    inside[key] = draw.choice([change for change in changes if change != before])
    return f"{key}: {before!r} to {inside[key]!r}"


def edit_lines(lines: list[str], draw: random.Random) -> str:
    """Repeat, remove, exchange or cut lines of a log."""
    number = draw.randrange(len(lines))
    kind = draw.choice(["repeated", "removed", "exchanged", "cut"])
    if kind == "repeated":
        lines.insert(number, lines[number])
    elif kind == "removed":
        del lines[number]
    elif kind == "exchanged":
        number = draw.randrange(len(lines) - 1)
        lines[number : number + 2] = lines[number + 1], lines[number]
    else:
        lines[number] = lines[number][: draw.randrange(1, len(lines[number]))]
    return f"line {number + 1} {kind}"


@pytest.fixture
def run(one: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one, tmp_path / "run"))


def verified(suite: Call, run: Path) -> tuple[int, str]:
    return suite("verify", str(run / "result.json"), "--steps", "0")


def test_random_edits_of_a_log_and_its_result_are_found(suite: Call, run: Path) -> None:
    draw, missed = random.Random(0), list[str]()
    assert verified(suite, run)[0] == 0
    log, result = run / "events.jsonl", run / "result.json"
    before = {path: path.read_text() for path in (log, result)}
    for number in range(90):
        if number % 3 == 0:
            lines = before[log].splitlines()
            what = edit_lines(lines, draw)
            log.write_text("".join(f"{line}\n" for line in lines))
        elif number % 3 == 1:
            events = [json.loads(line) for line in before[log].splitlines()]
            what = "log, " + edit(events, draw)
            log.write_text("".join(f"{json.dumps(event)}\n" for event in events))
        else:
            content = json.loads(before[result])
            apart = {name: content.pop(name) for name in UNRECORDED}
            what = "result, " + edit(content, draw)
            result.write_text(json.dumps({**content, **apart}))
        code, text = verified(suite, run)
        assert "Traceback" not in text and code in (0, 1, 2)
        missed += [what] if code == 0 else []
        for path, content in before.items():
            path.write_text(content)
    assert not missed


def of(kind: str, number: int, **values: Any) -> Callable[[Events], None]:
    """Change some values of one event."""
    return lambda events: [event for event in events if event["event"] == kind][number].update(values)


@pytest.mark.parametrize(
    "change, says",
    [
        (of("step", 3, samples=1), "step 4: has 1 samples, but 4 steps of 16 are 64"),
        (of("step", 3, hyper={"lr": 0.5}), 'step 4: hyper is {"lr": 0.5}, but the schedule gives {"lr": '),
        (of("step", 3, hyper={}), "step 4: hyper is {}, but"),
        (of("step", 3, loss=None), "step 4: loss is null, which is no number"),
        (of("step", 3, train_seconds=None), "step 4: train_seconds is null, but must be at least"),
        (of("step", 3, train_seconds=0.0), "step 4: train_seconds is 0.0, but must be at least"),
        (of("step", 3, step_seconds=-1.0), "step 4: step_seconds is -1.0, but must be at least 0"),
        (of("step", 3, step_seconds=9.0), "step 4: took 9 seconds, but the clock ran"),
        (of("evaluated", 1, wall_seconds=None), "evaluated 8: wall_seconds is null"),
        (of("evaluated", 1, wall_seconds=1e-9), "evaluated 8: wall_seconds is 1e-09, but must be at least"),
        (of("evaluated", 1, samples=0), "evaluated 8: has 0 samples"),
        (of("evaluated", 1, step=7), "evaluated 7: is no multiple of eval_every=4"),
        (of("evaluated", 1, step=7), "evaluated 7: belongs to step 8"),
        (of("saved", 0, step=4), "saved 4: belongs to step 12"),
        (of("started", 0, step=4), "started 4: belongs to step 0"),
        (of("started", 0, resumed=True), "started 0: resumed is True in event 1"),
        (of("finished", 0, step=11), "finished 11: belongs to step 12"),
        (of("finished", 0, outcome={"kind": "exhausted", "step": 8}), "finished 12: its outcome is of step 8"),
        (of("finished", 0, facts={"train_seconds": 0.0}), "finished 12: train_seconds is 0.0, but must be at least"),
        (of("step", 11, event="stepped"), "the log has an event 'stepped'"),
        (lambda events: events.append(events[-1]), "must end with its only 'finished', but has 2"),
        (lambda events: events.insert(0, events[-1]), "begins with 'finished'"),
        (lambda events: events.pop(), "but has 0 and ends with"),
        (lambda events: events.pop(0), "begins with 'step' instead of 'started'"),
        (lambda events: events.remove(of_step(events, 4)), "lacks the evaluation of step 4"),
    ],
)
def test_an_older_log_without_a_checksum_agrees_with_itself(
    one: Path, change: Callable[[Events], object], says: str
) -> None:
    events, run = record.read_events(one / "events.jsonl"), record.load_run(record.read_result(one / "result.json"))
    assert not list(list_log_contradictions(run, events))
    change(events)
    found = list(list_log_contradictions(run, events))
    assert any(says in fault for fault in found), found


def of_step(events: Events, step: int) -> dict[str, Any]:
    """Return the evaluation at a step."""
    return next(event for event in events if event["event"] == "evaluated" and event["step"] == step)


def test_results_without_a_checksum_of_their_log_are_verified(suite: Call, run: Path) -> None:
    """Older results lack it; a change of the other files of the directory is still found."""
    result = json.loads((run / "result.json").read_text())
    del result["log"]
    (run / "result.json").write_text(json.dumps(result))
    assert verified(suite, run)[0] == 0
    for name, old, new, says in (
        ("header.json", '"command": "', '"command": "x ', "command: not as in header.json"),
        ("config.yaml", "\nseed: 0", "\nseed: 1", "spec.config: not as in config.yaml"),
    ):
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))
        code, said = verified(suite, run)
        assert code == 1 and says in said, said
        (run / name).write_text(text)
    with (run / "weights.safetensors").open("ab") as file:
        file.write(b"\0")
    assert "weights.sha256: not that of weights.safetensors" in verified(suite, run)[1]
