"""`suite counters`: what counts as a change, its kind, and that counting twice gives the same."""

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import conftest
import pytest

from suite.contract import UserError
from suite.counters import golden

GOLDEN = Path(str(resources.files("suite.results"))) / "counters.yaml"
OUTSIDE = f"--config-dir {conftest.OUTSIDE / 'conf'} +task=tiny optimizer=sgd optimizer.lr=0.1"
# Whether XLA fuses two operations may depend on the processor; these counts do not.
PORTABLE = ("flops", "collectives")


def losses(**changes: float) -> dict[str, Any]:
    """An entry's losses, those of one step changed by a relative amount: float64_2=1e-9."""
    values = {precision: [2.0, 1.5, 1.25, 1.125] for precision in golden.PRECISIONS}
    for place, change in changes.items():
        precision, step = place.split("_")
        values[precision][int(step)] *= 1 + change
    return {"losses": values}


@pytest.mark.parametrize(
    "changes, kind",
    [
        ({}, None),
        ({"float32_0": 1e-6}, "rounding"),
        ({"float32_3": 1e-3}, "rounding"),  # rounding grows tenfold a step
        ({"float32_0": 1e-3}, "bug?"),
        ({"float64_0": 1e-14}, "rounding"),
        ({"float64_0": 1e-12}, "algorithm"),
        ({"float64_2": 1e-9, "float32_2": 1e-3}, "algorithm"),
        ({"float64_0": float("nan")}, "algorithm"),
    ],
)
def test_a_change_of_losses_has_a_kind(changes: dict[str, float], kind: str | None) -> None:
    assert golden.judge_changes(losses(), losses(**changes)) == kind


def test_a_run_that_ends_early_or_is_new_has_no_equal_losses() -> None:
    short = {"losses": {precision: [2.0] for precision in golden.PRECISIONS}}
    assert golden.judge_changes(losses(), short) == "algorithm"
    assert golden.judge_changes({"name": "new"}, losses()) is None


def test_every_count_that_differs_is_a_change() -> None:
    before = {"counts": {"flops": 100, "programs": {"update": {"kernels": 7}, "old": {"kernels": 1}}, "same": 1}}
    after = {"counts": {"flops": 110, "programs": {"update": {"kernels": 7}, "new": {"kernels": 2}}, "same": 1}}
    lines = [str(change) for change in golden.list_changes(before, after)]
    assert lines == [
        "flops: 100 -> 110 (+10.00%)",
        "programs.old.kernels: 1 -> none",
        "programs.new.kernels: none -> 2",
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("- {name: a, run: b}", "expected entries"),
        ("entries: [{run: b}]", "expected entries"),
        ("entries: [{name: a}]", "one of run, targets, import"),
        ("entries: [{name: a, run: b, import: c}]", "one of run, targets, import"),
        ("entries: [{name: a, run: b}, {name: a, import: c}]", "its own name"),
        ("entries: [", "expected entries"),
    ],
)
def test_a_file_of_another_form_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counters.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        golden.read_counters(path)


def counters(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of `suite counters` for the file in a folder."""
    command = [sys.executable, "-m", "suite", "counters", "--file", "counters.yaml", *words]
    path = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
    variables = conftest.inherit(PYTHONPATH=path)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.slow), "jax"])
def test_counts_are_accepted_repeated_and_compared(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "counters.yaml"
    path.write_text(f"entries:\n- name: mine\n  run: {OUTSIDE} backend={backend}\n- {{name: json, import: json}}\n")
    code, text = counters(tmp_path)
    assert code == 3 and "mine: parameters: none -> " in text and "run suite counters --file" in text
    assert counters(tmp_path, "--accept")[0] == 0
    code, text = counters(tmp_path)
    assert code == 0 and "mine: unchanged" in text and "json: unchanged" in text
    [entry] = [entry for entry in golden.read_counters(path) if entry["name"] == "mine"]
    assert len(entry["losses"]["float64"]) == 12 and entry["counts"]["parameters"] > 0
    path.write_text(path.read_text().replace("optimizer.lr=0.1", "optimizer.lr=0.11"))
    code, text = counters(tmp_path, "mine")
    assert code == 3 and "mine: losses: algorithm" in text and "json" not in text.replace("counters.yaml", "")


@pytest.mark.slow
def test_steps_to_targets_are_counted(tmp_path: Path) -> None:
    entry = {"name": "mine", "targets": f"{OUTSIDE} backend=torch eval_every=5 max_steps=200"}
    path = tmp_path / "counters.yaml"
    golden.write_counters(path, [entry, {**entry, "name": "short", "targets": entry["targets"].replace("200", "5")}])
    code, text = counters(tmp_path, "--accept")
    assert code == 0 and "mine: steps.top1_60: none -> " in text and "short: steps.top1_80: none -> missed" in text
    assert counters(tmp_path)[0] == 0
    counts = [entry["counts"] for entry in golden.read_counters(path)]
    assert counts[0]["ended"] == "reached" and counts[0]["steps"]["top1_60"] <= counts[0]["steps"]["top1_80"] <= 200
    assert counts[1]["ended"] == "exhausted"


def test_entries_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "counters.yaml"
    path.write_text("made_with: {numpy: 1.0}\nentries:\n- {name: json, import: json}\n")
    code, text = counters(tmp_path, "--accept", "json")
    assert code == 2 and "was made with other versions (numpy 1.0 -> " in text
    code, text = counters(tmp_path)
    assert code == 3 and "made with other versions: numpy 1.0 -> " in text
    assert counters(tmp_path, "--accept")[0] == 0 and golden.other_versions(path) == []


def test_what_cannot_be_counted_is_named(tmp_path: Path) -> None:
    path = tmp_path / "counters.yaml"
    path.write_text(f"entries:\n- name: mine\n  run: {OUTSIDE} backend=torch world=2\n")
    code, text = counters(tmp_path)
    assert code == 2 and "mine: counting failed" in text and "set backend=jax" in text
    code, text = counters(tmp_path, "other")
    assert code == 2 and "other: no such entry; choose one of mine" in text


@pytest.mark.sample(1)
@pytest.mark.skipif(bool(golden.other_versions(GOLDEN)), reason="; ".join(golden.other_versions(GOLDEN)))
@pytest.mark.parametrize("name", ["command-line", "sgd-torch", "sgd-jax", "kfac-torch-steps"])
def test_the_committed_counts_are_those_of_this_commit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):  # which the tests set
        monkeypatch.delenv(variable, raising=False)
    [entry] = [entry for entry in golden.read_counters(GOLDEN) if entry["name"] == name]
    present = golden.count_all(entry)
    differing = golden.list_changes(entry, present)
    if name == "sgd-jax":
        differing = [change for change in differing if change.place.rpartition(".")[2] in PORTABLE]
    # the size of work areas of convolutions may depend on the processor
    differing = [change for change in differing if change.place != "peak_bytes"]
    assert [str(change) for change in differing] == [], f"run suite counters --accept {name}"
    assert golden.judge_changes(entry, present) in (None, "rounding")
    json.dumps(present)


def test_a_large_change_of_a_loss_is_never_rounding_and_nan_equals_itself() -> None:
    """At the twelfth step, rounding that grows tenfold a step would allow any number."""
    exact = [2.0] * 12
    changed = [*exact[:11], 20.0]
    before, after = ({"losses": {"float64": exact, "float32": losses}} for losses in (exact, changed))
    assert golden.judge_changes(before, after) == "bug?"
    lost = [*exact[:11], float("nan")]
    before, after = ({"losses": {"float64": losses, "float32": lost}} for losses in (lost, list(lost)))
    assert golden.judge_changes(before, after) in (None, "rounding")
