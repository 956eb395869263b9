"""Shampoo by itself: either backend and the reference, driven through the same steps."""

import functools
from typing import Any

import numpy as np
import twins
from twins import Tree, noisy

from suite.optimizers.shampoo import Settings, reference

STEPS = 10
SHAPES = {"matrix": (5, 4), "filter": (4, 3, 3, 3), "wide": (3, 7), "narrow": (6, 1), "bias": (5,), "scale": ()}
HYPER = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01, "beta2": 0.9, "epsilon": 1e-4, "block_size": 3}
HYPER |= {"nesterov": False}
SCHEDULE = {"inverse_interval": 2, "start_preconditioning": 3}
TABLES = ["wide"]
Torch, Jax = (functools.partial(half, "shampoo") for half in (twins.Torch, twins.Jax))
BACKENDS = {"torch": Torch, "jax": Jax}


def held(made: Any, stack: str) -> np.ndarray:
    """A stack of roots."""
    return np.asarray(made.state["root"][stack]).copy()


def train(
    made: Any, gradient: Any = noisy, steps: int = STEPS, edits: dict[int, dict[str, float]] | None = None
) -> Tree:
    """Parameters after some steps; `edits` are hyper-parameters that change."""
    for step in range(steps):
        made.edit(**(edits or {}).get(step, {}))
        made.host(step)
        made.collect(gradient(made.params, step))
        for name in made.plan.programs(step):
            made.refresh(name)
        made.move()
    return made.params


def specified(
    params: Tree, gradient: Any = noisy, edits: dict[int, dict[str, float]] | None = None, **hyper: Any
) -> Tree:
    """Return the parameters after the same steps by the reference."""
    state, tables = reference.init(params), hyper.pop("tables", ())
    for step in range(hyper.pop("steps", STEPS)):
        hyper |= (edits or {}).get(step, {})
        settings = Settings.given(hyper)
        params, state = reference.update(params, gradient(params, step), state, settings, step=step, tables=tables)
    return params
