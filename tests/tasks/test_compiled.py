"""`compile=true` trains every task as without it, up to rounding."""

from typing import Any

import engines
import numpy as np
import pytest
import torch
from small import TASKS, small

from suite.launch import execution

# torch 2.13's backward pass of narrow strided convolutions on CPUs ends the process ("double free"), where compiled
WIDER = {"cifar10": ["width=8"]}


def trained(name: str, *, compiled: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and weights of two steps."""
    torch.compiler.reset()
    options = [*TASKS[name][0], *WIDER.get(name, [])]
    run = small(name, options, "optimizer=sgd", f"compile={compiled}".lower())
    made: Any = engines.engine(run, execution.make_task(run))
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
