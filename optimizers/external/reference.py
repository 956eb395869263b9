"""Specification of the optimizers that the YAML file names, torch.optim.SGD and optax.sgd: w ← w - η g."""

from typing import Any

import numpy as np

from suite.optimizers.external import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Plain gradient descent has no state."""
    return {}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, *, step: int, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    return {name: value - settings.lr * grads[name] for name, value in params.items()}, state
