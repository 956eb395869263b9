"""`suite` in the test's own process, and two finished runs."""

from pathlib import Path

import pytest
from tiny_runs import PATH, Call, finished

from suite import cli


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """`suite` in this process and a folder of its own: exit code, and what it and its children printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        return code, out + err

    return call


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("one") / "run", "max_steps=12", "eval_every=4")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, and a codec from outside the tree that is not closed under addition."""
    return finished(tmp_path_factory.mktemp("two") / "run", "max_steps=6", "eval_every=4", "world=2", "comm=truncate16")
