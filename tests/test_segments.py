"""Counts of what a run of several segments has sent and held: for each segment, added up, and verified."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import find_faults
from test_run import finish, start
from tiny_runs import copied, wait_for_step

from suite.record import record

Call = Callable[..., tuple[int, str]]
RUN = ("max_steps=120", "eval_every=40", "stop_at_target=false", "world=2", "optimizer=kfac", "comm=float21")
RANKS = {"torch": [], "jax": ["backend=jax"]}
WARM = {"torch": 8, "jax": 0}  # bytes that a start sends: torch's first pass over a batch tells its weight


def result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_bytes_of_a_resumed_run_are_those_of_a_whole_one(suite: Call, tmp_path: Path, backend: str) -> None:
    """Interrupted twice, the second time by SIGKILL, after which some steps are made again and counted once."""
    run = (*RUN, *RANKS[backend], "checkpoint_every=10")
    process = start(tmp_path, *run, "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 15)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    process = start(tmp_path, *run, "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 55)
    process.kill()
    process.communicate(timeout=60)
    finish(tmp_path, *run, "run_dir=cut")
    finish(tmp_path, *run, "run_dir=whole")
    cut, whole = result(tmp_path / "cut"), result(tmp_path / "whole")
    assert whole["bytes"]["by_name"]["gradients"] > 0
    whole["bytes"]["by_name"]["exact"] += 2 * WARM[backend]
    assert cut["bytes"]["by_name"] == whole["bytes"]["by_name"]
    assert cut["bytes"]["by_level"] == {"flat": cut["bytes"]["sent"]} == {"flat": sum(cut["bytes"]["by_name"].values())}
    assert len(cut["segments"]) == 3 and "bytes" not in whole["segments"][0]
    parts = [segment["bytes"]["sent"] for segment in cut["segments"]]
    assert sum(parts) == cut["bytes"]["sent"] and all(part > 0 for part in parts)
    assert cut["peak_memory_bytes"] == max(segment["peak_memory_bytes"] for segment in cut["segments"])
    assert not list(find_faults(cut))

    for log in (True, False):
        path = copied(tmp_path / "cut", tmp_path / f"same{log}", log=log)
        assert suite("verify", str(path), "--steps", "0")[0] == 0
        for changes in ({"bytes__sent": parts[-1]}, {"segments__0__bytes__sent": 1}):
            path = copied(tmp_path / "cut", tmp_path / f"other{log}", log=log, **changes)
            code, text = suite("verify", str(path), "--steps", "0")
            assert code == 1 and "bytes.sent" in text, text


FACTS = {"parameters": 1, "compile_seconds": 0.0, "compile_cache": None, "peak_memory_bytes": 5, "device": "cpu"}


def counted(sent: int, kernel: int | None = None) -> dict[str, Any]:
    more = {"kernel": {"sent": kernel, "ranks": 1}} if kernel else {}
    return {"sent": sent, "by_name": {"gradients": sent}, "by_level": {"flat": sent}, **more}


def folded(*segments: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {"event": "started", "step": n, "resumed": n > 0, "facts": FACTS | {"bytes": counted(0)} | segment}
        for n, segment in enumerate(segments)
    ]
    return record.fold_events(
        [*events, {"event": "finished", "outcome": {"kind": "exhausted"}, "facts": FACTS | last}], []
    )


@pytest.mark.quick
def test_the_kernels_bytes_are_added_up_too() -> None:
    before = {"before": {"bytes": counted(100, 110), "peak_memory_bytes": 9}}
    found = folded({}, before, last={"bytes": counted(50, 70)})
    assert found["bytes"] == {**counted(150), "kernel": {"sent": 180, "ranks": 1, "ratio": 1.2}}
    assert [segment["bytes"]["kernel"]["sent"] for segment in found["segments"]] == [110, 70]
    assert found["peak_memory_bytes"] == 9


def test_the_times_of_steps_are_the_nearest_rank() -> None:
    events: list[dict[str, Any]] = [
        {"event": "started", "step": 0, "resumed": False, "facts": FACTS | {"bytes": counted(0)}}
    ]
    events += [{"event": "step", "step": n, "samples": n, "step_seconds": float(n)} for n in range(1, 101)]
    assert record.fold_events(events, [])["step_seconds"] == {"p50": 50.0, "p99": 99.0}


@pytest.mark.quick
def test_a_log_of_an_older_version_is_folded_as_it_was() -> None:
    """It knows of its last segment alone; results that are published say so."""
    found = folded({}, {}, last={"bytes": counted(50)})
    assert found["bytes"] == counted(50) and all("bytes" not in segment for segment in found["segments"])
