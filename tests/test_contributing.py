"""Package outside the tree that CONTRIBUTING prints, written down and run as printed."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import conftest
import pytest

PAGE = (conftest.TESTS.parent / "CONTRIBUTING.md").read_text()
SECTION = PAGE.partition("## An optimizer, a task or a codec, outside the tree")[2].partition("\n## ")[0]
BLOCK = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)  # indented lines, with empty ones between them
FILE = re.compile(r"^# (\S+/\S+)\n", re.MULTILINE)
# run beside what is printed, so that the two commands take seconds: four of the default recipe's steps
SHORT = "# @package _global_\ndefaults: [override /track: none]\nmax_steps: 4\neval_every: 2\nthreads: 1\n"


def blocks() -> str:
    return "".join(textwrap.dedent(block) for block in BLOCK.findall(SECTION))


def commands() -> list[str]:
    return re.findall(r"^suite .+$", blocks(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the printed files."""
    root = tmp_path_factory.mktemp("reader")
    printed = blocks().partition("\nsuite ")[0]
    _, *pieces = FILE.split(printed)
    for name, content in zip(pieces[::2], pieces[1::2], strict=True):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    local = root / "conf" / "local" / "default.yaml"
    local.parent.mkdir()
    local.write_text(SHORT)
    return root


def test_four_files_and_both_backends_are_printed(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    halves = {f"mylab/signs/{name}.py" for name in ("__init__", "torch", "jax")}
    assert found == halves | {"conf/optimizer/signs.yaml", "conf/local/default.yaml"}
    assert len(commands()) == 2


IN_TORCH, IN_JAX = sorted(commands(), key=lambda text: "backend=jax" in text)


@pytest.mark.parametrize("command", [f"{IN_TORCH} world=2", pytest.param(IN_JAX, marks=pytest.mark.slow), IN_TORCH])
def test_it_runs_as_printed(command: str, folder: Path) -> None:
    """With `mylab` in the working directory, and nowhere else; also on several ranks."""
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    words = [sys.executable, "-m", *shlex.split(command)]
    variables = kept | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in folder.glob("runs/*/*/result.json")]
    backend = "jax" if "backend=jax" in command else "torch"
    world = 2 if "world=2" in command else 1
    (result,) = [one for one in results if (one["spec"]["backend"], one["spec"]["world"]) == (backend, world)]
    assert result["spec"]["optimizer"] == "signs" and result["steps"] == 4


def test_both_backends_take_the_same_steps(folder: Path) -> None:
    curves = [json.loads(path.read_text())["curve"] for path in folder.glob("runs/*/*/result.json")]
    if len(curves) != 2:
        pytest.skip("the commands above were not both run in this process")
    one, other = ([point["metrics"]["loss"] for point in curve] for curve in curves)
    assert one == pytest.approx(other, rel=0.05)
