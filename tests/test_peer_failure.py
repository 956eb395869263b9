"""Reports about a lost rank: no more than an error tells, and also when nobody is left to report."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from suite.launch import peer_failure
from suite.training import checkpoint

HOSTS = ["10.77.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.2"]
RUN = (
    "import os, sys; from pathlib import Path; from suite.launch import peer_failure\n"
    "with peer_failure.watch_peers(1, Path(sys.argv[1])): {}"
)


@pytest.mark.parametrize(
    "text, words",
    [
        ("[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.77.0.1]:3478", "lost rank 0 at 10.77.0.1"),
        ("[pair.cc:547] Read error [10.77.0.2]:41034: Connection reset by peer", "lost rank 2 or 3 at 10.77.0.2"),
        ("Connection closed by peer [10.77.0.9]:41034", "lost 10.77.0.9"),
        ("unhealthy:\n/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:1", "lost rank 3"),
        ("[unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation", "another rank did not answer in time"),
        ("no such thing", "failed with RuntimeError"),
    ],
)
def test_an_error_tells_whom_a_rank_has_lost(text: str, words: str) -> None:
    assert peer_failure.explain_failure(RuntimeError(text), 1, HOSTS) == words


@pytest.mark.parametrize("first", ["127.0.0.1:29400", "localhost:29400"])
def test_a_host_has_an_address(first: str) -> None:
    assert peer_failure.find_address(first) in ("127.0.0.1", "::1")


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_how_a_run_goes_on_is_said_when_its_process_cannot(tmp_path: Path, end: str) -> None:
    checkpoint.save_checkpoint(tmp_path, ({"a": np.zeros(1)}, {"own": {}, "tree": None}), dict, step=30)
    why = "rank 1: was terminated, possibly because another rank failed"
    assert said(tmp_path, end) == f"suite: {why}; {tmp_path}: the same command continues from step 30\n"


@pytest.mark.parametrize("end", ["pass", "sys.exit('an error')"])
def test_who_has_told_himself_is_not_doubled(tmp_path: Path, end: str) -> None:
    assert said(tmp_path, end) in ("", "an error\n")


def said(folder: Path, end: str) -> str:
    command = [sys.executable, "-c", RUN.format(end), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
