"""Counts of an optimizer that reach the result: here the inverse roots that could not be refreshed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import jax
import pytest
from engines import BACKENDS, advance, config, engine
from sampling import mostly_torch
from stored import find_faults

from suite.record.record import make_result
from suite.track.points import list_points

both = pytest.mark.parametrize("backend", BACKENDS)
# every statistic of a filter seen as 4 × 9 is singular on its longer side, and without a ridge it has no root
SINGULAR = {"epsilon": 0.0, "beta2": 1.0, "inverse_interval": 2, "start_preconditioning": 1, "block_size": 128}


@mostly_torch
def test_the_result_holds_what_was_kept(backend: str, tmp_path: Path) -> None:
    overrides = [f"optimizer.{name}={value}" for name, value in SINGULAR.items()]
    command = [sys.executable, "-m", "suite", "--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny"]
    command += ["optimizer=shampoo", f"backend={backend}", "max_steps=3", "track=none", "threads=1", "run_dir=run"]
    variables = {"PYTHONPATH": str(conftest.OUTSIDE), "PYTHONSAFEPATH": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, *overrides], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert result["optimizer"] == last["facts"]["optimizer"] and result["optimizer"]["kept"] > 0
    assert list_points(make_result(result), [], finished=True)["optimizer/kept", 3].value == result["optimizer"]["kept"]
    assert list(find_faults(result)) == []
    assert list(find_faults(result | {"optimizer": {"kept": "a few"}}))
    verify = [*command[:3], "verify", "run/result.json", "--trust"]
    done = subprocess.run(verify, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@both
def test_a_restored_run_goes_on_counting(backend: str) -> None:
    made, again = (engine(config("shampoo", backend, precision="float32", hyper=SINGULAR)) for _ in range(2))
    advance(made, range(2))
    again.restore(*made.snapshot())
    assert again.facts()["optimizer"] == made.facts()["optimizer"] and made.facts()["optimizer"]["kept"] > 0
    for either in (made, again):
        advance(either, range(2, 5))
    assert again.facts()["optimizer"] == made.facts()["optimizer"]


@both
def test_an_optimizer_that_counts_nothing_adds_nothing(backend: str) -> None:
    assert engine(config("sgd", backend)).facts()["optimizer"] is None


def test_a_step_that_failed_leaves_the_other_facts() -> None:
    """A program takes its arguments along: after a failure in jax the state may be gone."""
    made = engine(config("shampoo", "jax"))
    jax.tree.map(lambda leaf: leaf.delete(), made.run["opt"])
    facts: dict[str, Any] = made.facts()
    assert facts["optimizer"] is None and facts["parameters"] > 0
