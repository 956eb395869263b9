"""Two finished runs."""

from pathlib import Path

import pytest
from tiny_runs import finished


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("one") / "run", "max_steps=12", "eval_every=4")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, and a codec from outside the tree that is not closed under addition."""
    return finished(tmp_path_factory.mktemp("two") / "run", "max_steps=6", "eval_every=4", "world=2", "comm=truncate16")
