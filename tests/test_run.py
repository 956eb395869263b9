"""Whole runs through the command line: interrupted, killed, found again, swept."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boards
import conftest
import numpy as np
import pytest
from engines import change
from tiny_runs import TINY, curve, wait_for_step

from suite.contract import UserError


def environment() -> dict[str, str]:
    return conftest.inherit(PYTHONPATH=str(conftest.OUTSIDE), PYTHONSAFEPATH="1")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "suite", *TINY, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(folder: Path, *arguments: str, code: int = 0) -> str:
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    return output


def events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


LONG = ("max_steps=400", "eval_every=100", "stop_at_target=false", "optimizer=kfac")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "backend, how",
    [
        *(("torch", how) for how in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")),
        ("jax", "SIGTERM"),
        *(pytest.param("jax", how, marks=pytest.mark.slow) for how in ("SIGINT", "SIGHUP", "SIGKILL")),
    ],
)
def test_interrupted_anywhere_then_resumed_is_uninterrupted(tmp_path: Path, backend: str, how: str) -> None:
    run = (*LONG, f"backend={backend}", "checkpoint_every=7")
    process = start(tmp_path, *run, "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 20)
    process.send_signal(signal.Signals[how])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9}[how], output
    assert not (tmp_path / "cut" / "result.json").exists()
    before = len(events(tmp_path / "cut"))
    finish(tmp_path, *run, "run_dir=cut")
    finish(tmp_path, *run, "run_dir=whole")
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert before < 390, "the run was over before it was interrupted"
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert [segment["resumed"] for segment in result["segments"]] == [False, True]
    assert not (tmp_path / "cut" / "checkpoint").exists()


@pytest.mark.slow
def test_two_ranks_are_interrupted_together(tmp_path: Path) -> None:
    run = (*LONG, "world=2", "run_dir=cut")
    process = start(tmp_path, *run)
    wait_for_step(process, tmp_path / "cut", 20)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert events(tmp_path / "cut")[-1]["outcome"]["kind"] == "interrupted"
    done = events(tmp_path / "cut")[-1]["step"]
    process = start(tmp_path, *run)
    wait_for_step(process, tmp_path / "cut", done + 5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    steps = [event["step"] for event in events(tmp_path / "cut") if event["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1))


def test_a_dead_rank_ends_the_run(tmp_path: Path) -> None:
    """Killing one rank must end the other, with a failure, and leave no process behind."""
    process = start(tmp_path, *LONG, "world=2", "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 20)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "rank 1" in output
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_finished_run_is_found_again(tiny: Callable[..., str], tmp_path: Path) -> None:
    run = ("max_steps=4", "eval_every=2")
    tiny(*run)
    (first,) = (tmp_path / "runs" / "tiny").iterdir()
    result = (first / "result.json").read_bytes()
    assert str(first.relative_to(tmp_path)) in tiny(*run)
    assert (first / "result.json").read_bytes() == result
    tiny(*run, "force=true")
    tiny(*run, "repeat=2")  # the first is found, the second is a further execution
    names = sorted(path.name for path in first.parent.iterdir())
    assert names == [first.name, f"{first.name}.2", f"{first.name}.3"]
    assert (first / "result.json").read_bytes() == result


@pytest.mark.slow
def test_another_source_is_never_reused(tiny: Callable[..., str], tmp_path: Path) -> None:
    """A result of other code, packages or threads stands; the same command runs again beside it."""
    run = ("max_steps=4", "eval_every=2", "run_dir=here")
    tiny(*run)
    header = tmp_path / "here" / "header.json"
    changed = json.loads(header.read_text()) | {"fingerprint": "of another commit"}
    header.write_text(json.dumps(changed))
    tiny(*run)
    assert (tmp_path / "here.2" / "result.json").exists()
    other = tiny("max_steps=4", "eval_every=1", "run_dir=here", code=2)
    assert "another configuration" in other


@pytest.mark.parametrize("name", ["file", "file/run", "file/of/runs"])
def test_a_file_where_a_run_would_write(tiny: Callable[..., str], tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    output = tiny("max_steps=4", f"run_dir={name}", code=2)
    assert f"{name}: file is a file; choose another run_dir=" in output and "Traceback" not in output


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    """A truncated checkpoint is reported in one line; tests/test_checkpoint.py has what else may be wrong with one."""
    process = start(tmp_path, *LONG, "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    [part] = (tmp_path / "cut" / "checkpoint").glob("*/rank-0000.safetensors")
    part.write_bytes(part.read_bytes()[:-100])
    output = finish(tmp_path, *LONG, "run_dir=cut", code=2)
    assert "rank-0000.safetensors: truncated checkpoint" in output and "Traceback" not in output
    assert "put it back, or delete cut/checkpoint to start the run again" in output


@pytest.mark.slow
def test_sweep_runs_each_in_a_process_and_survives_a_diverging_one(tmp_path: Path) -> None:
    output = finish(tmp_path, "-m", "max_steps=40", "optimizer.lr=0.1,1e30", "seed=0,1")
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "tiny").glob("*/result.json")]
    outcomes = sorted(
        (r["spec"]["config"]["optimizer"]["lr"], r["spec"]["seed"], r["outcome"]["kind"]) for r in results
    )
    assert [outcome[2] for outcome in outcomes] == ["exhausted", "exhausted", "diverged", "diverged"]
    diverged = next(r for r in results if r["outcome"]["kind"] == "diverged")
    assert diverged["outcome"]["step"] >= 1 and diverged["outcome"]["loss"] in ("nan", "inf", "-inf")
    table = output.split("4 runs; to rank them, run suite board")[1].splitlines()[3:7]
    assert [line.split()[:2] for line in table] == [
        [f"optimizer.lr={lr}", f"seed={seed}"] for lr in ("0.1", "1e+30") for seed in (0, 1)
    ]
    assert all((tmp_path / line.split()[-1]).exists() for line in table), "each line ends in its result file"
    assert ["diverged" in line for line in table] == [False, False, True, True]


def test_a_sweep_says_which_run_was_refused(tiny: Callable[..., str], tmp_path: Path) -> None:
    """One place for two configurations is for the first."""
    output = tiny("-m", "max_steps=4,5", "run_dir=here", code=2)
    assert "here: contains a run of another configuration" in output
    assert "1 of 2 runs were started; to rank them, run suite board" in output
    (rejected,) = [line for line in output.splitlines() if line.split()[:1] == ["max_steps=5"]]
    assert rejected.split()[-1] == "rejected"
    (tmp_path / "file").touch()
    assert "0 of 2 runs were started\n" in tiny("-m", "max_steps=4,5", "run_dir=file/run", code=2)


def test_a_missed_target_fails_only_where_it_is_required(tiny: Callable[..., str], tmp_path: Path) -> None:
    tiny("max_steps=4")
    tiny("max_steps=4", "require=target", code=3)


@pytest.mark.slow
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        output = finish(tmp_path, *LONG, "run_dir=disk/run", code=2)
        assert "the disk is full" in output and "Traceback" not in output
        recorded = (disk / "run" / "events.jsonl").read_text().splitlines()
        assert len(recorded) > 100
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_start_that_failed_does_not_block_the_corrected_command(suite: Any, tmp_path: Path) -> None:
    """A corrected command runs after the optimizer rejected a setting, in one process and in two ranks."""
    run = (*TINY, "max_steps=4", "eval_every=2", "run_dir=here")
    for world in ("world=1", "world=2"):
        code, text = suite(*run, "optimizer=kfac", "optimizer.stale=true", world)
        assert code == 2 and "each factor has its own interval" in text and not Path("here/result.json").exists()
    assert suite(*run, "optimizer=sgd")[0] == 0
    assert Path("here/result.json").exists() and not Path("here.2").exists()
    code, other = suite(*run, "optimizer=sgd", "seed=1")
    assert code == 2 and "another configuration" in other and "seed=0 there, 1 here" in other


def test_a_directory_is_taken_once_its_run_has_begun(tmp_path: Path) -> None:
    """By a step, a checkpoint or a result; what another world cannot go on with is said."""
    from suite.launch.directories import Directory
    from suite.launch.job import make_header, make_task
    from suite.settings import configure
    from suite.settings.effects import hash_run
    from suite.training import checkpoint

    def directory(**changes: Any) -> Directory:
        changed = change(config, {"run_dir": str(tmp_path / "run"), **changes})
        return Directory(changed, header.model_copy(update={"hash": hash_run(changed)}))

    def state(**changes: Any) -> str:
        return directory(**changes).state

    config = configure.resolve(["task=tiny", "optimizer=sgd"], conftest.OUTSIDE / "conf")
    header = make_header(config, make_task(config), 1, [])
    lock, _ = directory().claim()
    log = tmp_path / "run" / "events.jsonl"
    assert state() == "resumed" and state(seed=1) == "new", "it has not begun"
    with pytest.raises(UserError, match="another process is running this"):
        directory(seed=1).claim()
    os.close(lock)
    log.write_text('{"event": "started", "step": 0}\n')
    assert state(seed=1) == "new"
    log.write_text('{"event": "started", "step": 0}\n{"event": "step", "step": 1}\n')
    with pytest.raises(
        UserError, match=r"another configuration \(\w+; seed=0 there, 1 here\); choose another run_dir="
    ):
        state(seed=1)
    log.unlink()
    meta = lambda: {"config_hash": header.hash, "world": 1}  # noqa: E731
    snapshot = {"a": np.zeros(1), "b": np.zeros(1)}, {"own": {"b": "residuals"}, "tree": None}
    checkpoint.save_checkpoint(tmp_path / "run", snapshot, meta, step=1)
    with pytest.raises(
        UserError, match=r"world=1 there, 2 here\)\. Each rank has its own residuals, which world=2 cannot use; choose"
    ):
        state(world=2)
    stale = directory()
    (tmp_path / "run" / "result.json").write_text(json.dumps(boards.result()))
    with pytest.raises(UserError, match="another process has just used this directory; run the same command again"):
        stale.claim()


def test_a_failure_in_the_first_step_is_no_result(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later it is one, and the directory stays that run's."""
    import mylab.tinytask

    def batch(self: Any, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Any:
        if split == "train" and index == failing[0]:
            raise ValueError("no such sample")
        return real(self, split, seed, index, rank, world)

    real, failing = mylab.tinytask.Tiny.batch, [0]
    monkeypatch.setattr(mylab.tinytask.Tiny, "batch", batch)
    run = (*TINY, "max_steps=6", "eval_every=2", "prefetch=0", "run_dir=here")
    code, text = suite(*run)
    assert code == 1 and "no such sample" in text and not Path("here/result.json").exists()
    assert "the same command starts again" in text
    failing[0] = 3
    code, text = suite(*run, "seed=1")
    assert code == 1 and json.loads(Path("here/result.json").read_text())["outcome"]["kind"] == "failed"
    failing[0] = -1
    assert "another configuration" in suite(*run, "seed=2")[1]
