"""A lost rank and a wrong byte: the run fails loudly and at once, names the rank, and goes on from its checkpoint."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import conftest
import pytest
import torch.distributed
from tiny_runs import curve, wait_for_checkpoint

from suite import engine
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport
from suite.training import checkpoint

RUN = ("--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny", "track=none", "threads=1", "max_steps=100")
RUN += ("eval_every=5", "checkpoint_every=5", "stop_at_target=false", "world=2", "launch.deadline=60")
RANKS = {"torch": ["backend=torch"], "jax": ["backend=jax", "launch.processes=${world}"]}
DEVICES = RANKS | {"devices of one process": ["backend=jax"]}
FLIPS = "comm.algorithm.module=mylab.flips"


def start(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
    environment = conftest.inherit(PYTHONPATH=path, PYTHONSAFEPATH="1", **variables)
    command = [sys.executable, "-m", "suite", *RUN, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)  # type: ignore[call-overload]


def finish(process: "subprocess.Popen[str]", code: int) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(
    tmp_path: Path, ranks: list[str], lost: int
) -> None:
    process = start(tmp_path, *ranks, "run_dir=cut")
    wait_for_checkpoint(process, tmp_path / "cut")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[lost]), signal.SIGKILL)
    output = finish(process, 1)
    assert f"rank {lost} was killed by SIGKILL" in output
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (tmp_path / "cut" / "result.json").exists(), "a lost rank is no outcome"
    step = checkpoint.find_latest(tmp_path / "cut")
    assert step and step < 100 and f"the same command continues from step {step}" in output
    assert f"continuing from step {step}" in finish(start(tmp_path, *ranks, "run_dir=cut"), 0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", DEVICES)
def test_a_wrong_byte_is_found_at_the_next_evaluation(tmp_path: Path, ranks: str) -> None:
    """One rank receives a wrong byte in step 12; the last checkpoint is from before."""
    run = (*DEVICES[ranks], FLIPS, "max_steps=30", "run_dir=wrong")
    output = finish(start(tmp_path, *run, FLIP_STEP="12"), 1)
    assert re.search(r"RanksDiffer: 2 ranks hold different weights \(\w{8} on rank 0; \w{8} on rank 1\)", output)
    assert "the same command continues from step 10" in output
    assert not (tmp_path / "wrong" / "result.json").exists()
    assert "continuing from step 10" in finish(start(tmp_path, *run), 0)
    finish(start(tmp_path, *run[:-1], "run_dir=right"), 0)
    assert curve(tmp_path / "wrong") == curve(tmp_path / "right")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", DEVICES)
def test_of_three_ranks_the_one_with_a_wrong_byte_is_named(tmp_path: Path, ranks: str) -> None:
    """Rank 0 too, which writes the checkpoints and would be taken for right between two."""
    three = ("world=3", "task.batch_size=12", "task.eval_batch_size=12")
    run = (*DEVICES[ranks], FLIPS, *three, "max_steps=30", "run_dir=wrong")
    output = finish(start(tmp_path, *run, FLIP_STEP="12", FLIP_RANK="0"), 1)
    assert "RanksDiffer: rank 0 of 3: holds different weights than most ranks" in output
    assert "the same command continues from step 10" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", list(DEVICES))
def test_a_wrong_byte_in_a_sum_is_found_though_all_ranks_agree(tmp_path: Path, ranks: str) -> None:
    """It enters the owner's sum, which all ranks then hold alike; the checksums of sender and receiver differ."""
    run = (*DEVICES[ranks], FLIPS, "max_steps=20", "run_dir=wrong")
    output = finish(start(tmp_path, *run, FLIP_STEP="12", FLIP_PHASE="scatter"), 1)
    assert "RanksDiffer: rank 1 received different bytes from rank 0 than rank 0 sent" in output
    assert "the same command continues from step 10" in output


def test_every_group_of_ranks_has_the_runs_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives a group half an hour where it is not told, whatever the whole has."""
    given: list[Any] = []
    there = {"is_initialized": True, "get_rank": 0, "get_world_size": 4}
    for name, value in there.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.setattr(torch.distributed, "new_group", lambda ranks, timeout: given.append(timeout))
    Transport(Ledger(), 2, deadline=7)
    assert given == [timedelta(seconds=7)] * 4  # of two hosts and of their ranks


def test_the_ranks_that_differ_from_most_are_named() -> None:
    engine.compare_digests([7, 7, 7])
    with pytest.raises(engine.RanksDiffer, match="rank 0, 3 of 5: holds different weights than most ranks"):
        engine.compare_digests([1, 7, 7, 2, 7])


@pytest.mark.parametrize(
    "digests, each",
    [
        ([7, 8], "2 ranks hold different weights (00000007 on rank 0; 00000008 on rank 1)"),
        ([7, 8, 8, 7], "4 ranks hold different weights (00000007 on rank 0, 3; 00000008 on rank 1, 2)"),
        ([7, 7, 8, 2**32 - 1], "(00000007 on rank 0, 1; 00000008 on rank 2; ffffffff on rank 3)"),
    ],
)
def test_nobody_is_blamed_where_no_majority_is(digests: list[int], each: str) -> None:
    with pytest.raises(engine.RanksDiffer, match=re.escape(f"{each}, and no majority shows which are right")):
        engine.compare_digests(digests)
