"""Every task trains and evaluates in bfloat16 on a CPU, too, close to float32, and its loss falls as far."""

from typing import Any

import engines
import numpy as np
import pytest
import small
from sampling import mostly_torch

from suite.launch import execution

ROUNDING = 0.005  # of the first mean loss; bfloat16 has 8 bits
STEPS = 12  # on one batch


@pytest.mark.parametrize("task", sorted(small.TASKS))
@mostly_torch
def test_steps_and_an_evaluation_are_close_to_float32(task: str, backend: str) -> None:
    wide, narrow = (train(task, backend, precision) for precision in ("float32", "bfloat16"))
    np.testing.assert_allclose(narrow[0], wide[0], rtol=ROUNDING)
    assert wide[0] - wide[-1] > 20 * ROUNDING * wide[0]
    assert narrow[0] - narrow[-1] > 0.9 * (wide[0] - wide[-1])


def train(task: str, backend: str, precision: str) -> list[float]:
    """Return the losses of steps on one batch, after which an evaluation is finite."""
    settings = ["optimizer=adamw", "optimizer.lr=0.01", f"backend={backend}", f"precision={precision}"]
    run = small.small(task, None, *settings)
    engine: Any = engines.engine(run, made := execution.make_task(run))
    batch = made.batch("train", 0, 0)
    engine.warm(batch, range(STEPS), {})
    losses = engine.losses([engine.step(step, batch, {}) for step in range(STEPS)])
    [outputs] = engine.evaluate([made.batch("valid", 0, 0)])
    assert all(np.isfinite(value).all() for value in outputs.values())
    return losses
