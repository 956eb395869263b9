"""What CONTRIBUTING prints for an optimizer outside the tree, run as printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import conftest
import pytest

from suite.contract import UserError
from suite.verbs import new

PAGE = (conftest.TESTS.parent / "CONTRIBUTING.md").read_text()
SECTION = PAGE.partition("## An optimizer, a task or a codec, outside the tree")[2].partition("\n## ")[0]
NEW, PYTEST, IN_TORCH, IN_JAX = re.findall(r"^ {4}(.+)$", SECTION, re.MULTILINE)
# run beside what is printed, so that the two commands take seconds: four of the default recipe's steps
SHORT = "# @package _global_\ndefaults: [override /track: none]\nmax_steps: 4\neval_every: 2\nthreads: 1\n"


def run(command: str, folder: Path) -> None:
    """Run a printed command in a folder, with its packages in the working directory, and nowhere else."""
    words = shlex.split(command)
    variables = conftest.inherit(PYTHONPATH="", PYTHONSAFEPATH="" if words[0] == "pytest" else "1")
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a new optimizer."""
    root = tmp_path_factory.mktemp("reader")
    run(NEW, root)
    local = root / "conf" / "local" / "default.yaml"
    local.parent.mkdir()
    local.write_text(SHORT)
    return root


def test_a_new_optimizer_follows_its_reference_and_a_wrong_one_does_not(folder: Path) -> None:
    run(PYTEST, folder)
    member = folder / "signs" / "__init__.py"
    right = member.read_text()
    member.write_text(right.replace("ops.move(weights, mean, hyper.lr)", "ops.move(weights, grads, hyper.lr)"))
    with pytest.raises(AssertionError, match="2 failed"):
        run(PYTEST, folder)
    member.write_text(right)


@pytest.mark.parametrize("name", ["Signs", "my-signs", "class", "numpy", "sgd"])
def test_a_name_that_cannot_be_a_package_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{name}: "):
        new.main(["optimizer", name, "--to", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_signs.py").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        new.main(["optimizer", "signs", "--to", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["test_signs.py"]


LATER = [pytest.param(command, marks=pytest.mark.slow) for command in (IN_JAX, IN_TORCH)]


@pytest.mark.parametrize("command", [f"{IN_TORCH} world=2", *LATER])
def test_it_runs_as_printed(command: str, folder: Path) -> None:
    """Also on several ranks."""
    run(command, folder)
    results = [json.loads(path.read_text()) for path in folder.glob("runs/*/*/result.json")]
    backend = "jax" if "backend=jax" in command else "torch"
    world = 2 if "world=2" in command else 1
    (result,) = [one for one in results if (one["spec"]["backend"], one["spec"]["world"]) == (backend, world)]
    assert result["spec"]["optimizer"] == "signs" and result["steps"] == 4


def test_both_backends_take_the_same_steps(folder: Path) -> None:
    results = [json.loads(path.read_text()) for path in folder.glob("runs/*/*/result.json")]
    curves = [result["curve"] for result in results if result["spec"]["world"] == 1]
    if len(curves) != 2:
        pytest.skip("the commands above were not both run in this process")
    one, other = ([point["metrics"]["loss"] for point in curve] for curve in curves)
    assert one == pytest.approx(other, rel=0.05)
