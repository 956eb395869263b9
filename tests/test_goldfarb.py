"""Table C9: the training losses that the K-BFGS authors print for MNIST's autoencoder, against ours.

The committed results are compared by default; `make test-all` trains again, seven minutes a case on an idle core, where
MNIST lies beside the checkout.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import pytest

from suite import load, published

STEPS = 60  # an epoch: 60,000 images in batches of 1,000
ROWS = {"kbfgs": {10: "C9-05", 50: "C9-08"}, "kfac": {10: "C9-16", 50: "C9-19"}}
EXPERIMENTS = {optimizer: rows[50] for optimizer, rows in ROWS.items()}
TOLERANCE = 0.02
SEEDS = 3  # that came to the end; CARD.md says which diverge, here and in the authors' own code
cases = pytest.mark.parametrize("backend", load.BACKENDS)
both = pytest.mark.parametrize("optimizer", ROWS)


def committed(optimizer: str, backend: str) -> dict[int, dict[int, float]]:
    """By seed and epoch, the loss with its penalty over the training images, of runs that came to the end."""
    found = {}
    for path in sorted((conftest.TESTS.parent / "results" / "runs" / "autoencoder").glob(f"mnist-{optimizer}-*.json")):
        result: Any = json.loads(path.read_text())
        spec, task = result["spec"], result["spec"]["config"]["task"]
        if spec["backend"] == backend and (task["evaluate_on"], task["metric"]) == ("train", "objective"):
            curve = {point["step"]: point["metrics"]["objective"] for point in result["curve"]}
            if result["outcome"]["kind"] != "diverged":
                found[spec["seed"]] = {step // STEPS: value for step, value in curve.items() if step % STEPS == 0}
    return found


@both
@cases
@pytest.mark.parametrize("epoch", [10, 50])
def test_three_seeds_lie_within_two_percent_of_the_printed_loss(
    request: pytest.FixtureRequest, optimizer: str, backend: str, epoch: int
) -> None:
    if (optimizer, backend, epoch) == ("kfac", "jax", 10):
        reason = "a finding: after ten epochs seed 1 is 2.6 % above, as a seed of the authors' own is; see CARD.md"
        found = pytest.mark.xfail(strict=True, reason=reason)
        request.applymarker(found)
    values = [run[epoch] for run in committed(optimizer, backend).values()]
    printed = published.row(ROWS[optimizer][epoch]).value
    assert len(values) >= SEEDS
    assert all(abs(value / printed - 1.0) <= TOLERANCE for value in values), (printed, values)


@cases
def test_k_fac_never_diverged(backend: str) -> None:
    """As K-BFGS does with some seeds, at the settings that are published for it."""
    folder = conftest.TESTS.parent / "results" / "runs" / "autoencoder"
    results = [json.loads(path.read_text()) for path in folder.glob(f"mnist-kfac-{backend}-*.json")]
    assert results and all(result["outcome"]["kind"] == "exhausted" for result in results)


@pytest.mark.slow
@both
@cases
def test_ten_epochs_again(optimizer: str, backend: str, shared_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suite", f"experiment={EXPERIMENTS[optimizer]}", f"backend={backend}", "seed=0"]
    command += [f"data_dir={shared_data / 'mnist'}", f"max_steps={10 * STEPS}", f"eval_every={10 * STEPS}"]
    command += ["track=none", "threads=1", "run_dir=run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    printed = published.row(ROWS[optimizer][10]).value
    assert abs(result["curve"][-1]["metrics"]["objective"] / printed - 1.0) <= TOLERANCE
