"""`compile=true` trains every task as without it, up to rounding."""

from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
import torch
from small import TASKS, small
from tiny_runs import TINY

from suite.launch.job import make_task

# torch 2.13's backward pass of narrow strided convolutions on CPUs ends the process ("double free"), where compiled
WIDER = {"cifar10": ["width=8"]}


def trained(name: str, *, compiled: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and weights of two steps."""
    torch.compiler.reset()
    options = [*TASKS[name][0], *WIDER.get(name, [])]
    run = small(name, options, "optimizer=sgd", f"compile={compiled}".lower())
    made: Any = engines.engine(run, make_task(run))
    return engines.advance(made, range(2)), engines.weights(made)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Dynamo")
@pytest.mark.parametrize("name", TASKS)
def test_two_compiled_steps_equal_two_others(name: str) -> None:
    """Without a warning that a function cannot be compiled, as of one that is cached or written in C."""
    losses, weights = trained(name, compiled=False)
    others, found = trained(name, compiled=True)
    assert others == pytest.approx(losses, rel=1e-5)
    for key, value in weights.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.slow
def test_a_damaged_file_of_compiled_code_is_named(suite_command: Any, tmp_path: Path) -> None:
    """As a compiler that was killed leaves it; torch itself neither checks nor replaces it."""

    def run(folder: str) -> Any:
        words = [f"run_dir={folder}", "compile=true", "max_steps=1", "eval_every=1"]
        return suite_command(*TINY, *words, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))

    assert run("first").returncode == 0
    libraries = list((tmp_path / "cache").rglob("*.main.so"))  # the others are torch's own trials of the compiler
    for library in libraries:
        library.write_bytes(b"")
    done = run("second")
    assert libraries and done.returncode == 2 and "file too short" in done.stderr, done.stderr
    assert "delete it, and run the same command again" in done.stderr and "Traceback" not in done.stderr
    for library in libraries:
        library.unlink()
    assert run("second").returncode == 0
