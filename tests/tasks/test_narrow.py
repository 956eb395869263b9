"""Every task trains and evaluates in bfloat16 on a CPU, too, close to float32."""

import engines
import numpy as np
import pytest
import small
from sampling import mostly_torch

from suite.launch import execution

ROUNDING = 0.005  # of the first mean loss; bfloat16 has 8 bits


@pytest.mark.parametrize("task", sorted(small.TASKS))
@mostly_torch
def test_a_step_and_an_evaluation_are_close_to_float32(task: str, backend: str) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        run = small.small(task, None, "optimizer=sgd", f"backend={backend}", f"precision={precision}")
        engine = engines.engine(run, made := execution.make_task(run))
        losses.append(engines.advance(engine, range(1)))
        [outputs] = engine.evaluate([made.batch("valid", 0, 0)])
        assert all(np.isfinite(value).all() for value in outputs.values())
    np.testing.assert_allclose(losses[1], losses[0], rtol=ROUNDING)
