"""Specification of the rivals that the YAML file names, torch.optim.SGD and optax.sgd: w ← w - η g."""

from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Plain gradient descent remembers nothing."""
    return {}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], *, lr: float = 0.1, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    return {name: value - lr * grads[name] for name, value in params.items()}, state
