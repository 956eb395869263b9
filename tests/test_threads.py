"""Cores that a process may use, idle threads that sleep, and runs that waited for a core."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS

from suite import threads
from suite.board import rows
from suite.claims.claim import Measure
from suite.claims.measure import read_number
from suite.launch.job import count_threads
from suite.projection.measured import find_measured
from suite.record import record
from suite.record.record import make_result
from suite.settings.configure import resolve_training
from suite.track import words

pytestmark = pytest.mark.quick
RUNS = TESTS.parent / "results" / "runs"


@pytest.fixture(autouse=True)
def take_seconds_of_a_busy_machine() -> None:
    """Here they are not taken."""


def contain(tmp_path: Path, version: int, path: str, quotas: dict[str, str], root: str = "/") -> Path:
    """Make /proc and the cgroups of a process: `quotas` in cores by cgroup, as `max`, or `150000 100000`."""
    process, mount = tmp_path / "proc", tmp_path / "cgroup"
    process.mkdir()
    line = f"0::{path}" if version == 2 else f"7:cpu,cpuacct:{path}"
    (process / "cgroup").write_text(f"11:memory:/other\n{line}\n" if version == 1 else f"{line}\n")
    kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,cpu,cpuacct")
    (process / "mountinfo").write_text(
        f"30 23 0:27 / /proc rw - proc proc rw\n31 23 0:28 {root} {mount} rw shared:9 - {kind} cgroup {options}\n"
    )
    for name, text in quotas.items():
        folder = mount / name
        folder.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (folder / "cpu.max").write_text(f"{text}\n")
        else:
            for key, number in zip(("quota", "period"), text.split(), strict=True):
                (folder / f"cpu.cfs_{key}_us").write_text(f"{number}\n")
    return process


@pytest.mark.parametrize(
    "version, path, quotas, root, expected",
    [
        (2, "/", {".": "150000 100000"}, "/", [1.5]),  # a container sees its own cgroup as the root
        (2, "/a/b", {"a": "300000 100000", "a/b": "max 100000"}, "/", [3.0]),
        (2, "/a/b", {"a": "300000 100000", "a/b": "50000 100000"}, "/", [0.5, 3.0]),
        (2, "/docker/x", {".": "400000 100000"}, "/docker/x", [4.0]),  # a bind mount of one cgroup
        (2, "/../../x", {".": "200000 100000"}, "/", [2.0]),  # a parent's cgroup, outside of the namespace
        (1, "/a", {".": "-1 100000", "a": "250000 50000"}, "/", [5.0]),
        (1, "/a", {".": "-1 100000", "a": "-1 100000"}, "/", []),
        (2, "/a", {"a": "broken"}, "/", []),
    ],
)
def test_quotas_of_all_cgroups_above_a_process_are_found(
    version: int, path: str, quotas: dict[str, str], root: str, expected: list[float], tmp_path: Path
) -> None:
    assert list(threads._list_quotas(contain(tmp_path, version, path, quotas, root))) == expected


@pytest.mark.parametrize("quotas, cores", [([], 8), ([3.5], 3), ([0.5], 1), ([16.0], 8), ([6.0, 2.0], 2)])
def test_threads_are_as_many_as_the_quota_allows(
    quotas: list[float], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(threads, "_list_quotas", lambda _: iter(quotas))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads.count_cores() == cores
    assert count_threads(resolve_training(["task=resnet50"]), 1) == cores
    assert count_threads(resolve_training(["task=resnet50", "world=2"]), 2) == max(1, cores // 2)


def test_a_system_without_these_files_has_no_quota(tmp_path: Path) -> None:
    assert list(threads._list_quotas(tmp_path)) == []


@pytest.mark.parametrize("name", threads.CHOSEN_BY_USER)
def test_idle_threads_sleep_soon_unless_the_user_has_chosen(name: str) -> None:
    chosen = {name: "7"}
    threads.limit_spinning(chosen)
    assert chosen == {name: "7"}
    variables = {"HOME": "/"}
    threads.limit_spinning(variables)
    assert variables == {"HOME": "/", "GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def test_the_command_line_sets_it_before_a_library_is_imported() -> None:
    program = (
        "import os, sys; from suite.cli import main; main(['list']); "
        "assert not {'torch', 'sklearn', 'jax'} & set(sys.modules); print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "10000"


def result(name: str = "resnet50/shapes-kfac-torch-s0-*.json", **changes: Any) -> Any:
    found = json.loads(next(RUNS.glob(name)).read_text())
    found["environment"]["cores"] = 2
    times = {"processor_seconds": {"training": 30.0, "excluded": 10.0}, "queued_seconds": 40.0, "wall_seconds": 60.0}
    return found | times | changes


@pytest.mark.parametrize(
    "changes, share",
    [
        ({}, 0.5),
        ({"queued_seconds": 0.0}, 0.0),
        ({"queued_seconds": 4.0}, 4 / 44),
        ({"wall_seconds": 24.0}, 0.0),  # 40 seconds of 2 × 24: it had nearly all of the machine, so its threads queued
    ],
)
def test_time_in_which_other_programs_had_the_cores(changes: dict[str, Any], share: float) -> None:
    one = result(**changes)
    assert record.measure_crowding(make_result(one)) == share
    assert bool(words.describe_crowding(make_result(one))) == record.is_crowded(make_result(one)) == (share > 0.2)


@pytest.mark.parametrize("threads, backend, said", [(2, "torch", True), (1, "torch", False), (2, "jax", False)])
def test_a_crowded_run_with_several_threads_is_told_of_one(threads: int, backend: str, said: bool) -> None:
    one = result()
    one["environment"]["threads"], one["spec"]["backend"] = threads, backend
    assert ("threads=1 may be faster" in str(words.describe_crowding(make_result(one)))) is said


def test_a_baseline_says_that_the_machine_was_busy_and_has_no_backend() -> None:
    said = words.describe_crowding(make_result(result("frnn/simulated-trees-s3-*.json")))
    assert said and "the machine was busy" in said and "threads=1" not in said


def test_more_ranks_than_cores_wait_for_each_other() -> None:
    one = result()
    one["spec"] = one["spec"] | {"world": 4}
    assert record.measure_crowding(make_result(one)) == 0.0
    older = {name: value for name, value in result().items() if name != "queued_seconds"}
    assert record.measure_crowding(make_result(older)) == 0.0


def test_seconds_of_a_busy_machine_are_used_nowhere(tmp_path: Path) -> None:
    busy, idle = result(), result(queued_seconds=0.0)
    target = {name: busy["targets"][-1][name] for name in ("metric", "value", "higher_is_better")}
    assert rows._timings([make_result(busy)], target) == () and len(rows._timings([make_result(idle)], target)) == 1
    for measure in (Measure(seconds_to="last"), Measure(field="train_seconds"), Measure(field="step_seconds.p50")):
        assert read_number(measure, make_result(busy)).low != read_number(measure, make_result(busy)).low  # NaN
        assert read_number(measure, make_result(idle)).low > 0
    assert read_number(Measure(steps_to="last"), make_result(busy)) == read_number(
        Measure(steps_to="last"), make_result(idle)
    )
    run = record.load_run(make_result(busy))
    for name, one in (("busy", busy), ("idle", idle)):
        folder = tmp_path / name / "resnet50" / one["hash"]
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(one))
        found = find_measured(run, tmp_path / name)  # type: ignore[arg-type]
        assert (found is None) == (name == "busy")
