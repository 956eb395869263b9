"""A run, and a store that it may be sent to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.track import server


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps that reaches the first of its two targets."""
    folder = tmp_path_factory.mktemp("made")
    overrides = ["+task=resnet50", "max_steps=20", "eval_every=5", "task.targets=[5,99]", "threads=1", "track=none"]
    command = [sys.executable, "-m", "suite", *overrides, f"run_dir={folder / 'run'}"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True)
    return folder / "run"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take a second and a half to make."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with server.connect_client(f"sqlite:///{path}"):
        return path


@pytest.fixture
def store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which MLFLOW_TRACKING_URI names, in the current directory."""
    path = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "resnet50" / "a"))
