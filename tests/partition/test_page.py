"""Tests that the programs of docs/partition.md run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import conftest
import pytest

PAGE = conftest.TESTS.parent / "docs" / "partition.md"
PLAN, TRAIN, TRAIN_IN_JAX = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def printed(tmp_path: Path, program: str, *launcher: str) -> str:
    """Run a program of the page in a temporary folder and return what it prints."""
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plan_in_torch(tmp_path: Path) -> None:
    text = printed(tmp_path, PLAN)
    assert "4 devices: 2 pipelines of 2 stages" in text or "4 devices: 1 pipeline of 2 stages" in text
    assert "samples/s" in text


@pytest.mark.slow
def test_training_in_torch(tmp_path: Path) -> None:
    text = printed(tmp_path, TRAIN, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert "2 devices: 1 pipeline of 2 stages, 8 micro-batches of 32 samples" in text
    assert re.search(r"^loss \d\.\d{3}$", text, re.MULTILINE)


@pytest.mark.skipif("xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""), reason="one device")
def test_training_in_jax(tmp_path: Path) -> None:
    text = printed(tmp_path, TRAIN_IN_JAX)
    assert "2 devices: 1 pipeline of 2 stages, 4 micro-batches of 8 samples" in text
