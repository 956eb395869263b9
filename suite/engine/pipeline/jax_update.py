"""Updates of one stage's parameters in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.contract import JaxOptimizer

Tree = dict[str, Any]


class Update:
    """An optimizer of some parameters on one device, with its state.

    Args:
        optimizer: of the task's run.
        params: by name, on the device; their values are not kept.
        device: of the parameters.
    """

    def __init__(self, optimizer: JaxOptimizer, params: Mapping[str, Array], device: Any):
        self.names = tuple(params)
        self.state: Tree = jax.device_put(jax.jit(optimizer.init)(dict(params)), device)
        self._optimizer = optimizer
        self._updated = jax.jit(self._change, donate_argnums=(1, 2))

    def __call__(self, grads: Tree, params: Tree, hyper: Mapping[str, float]) -> Tree:
        """Return the new parameters. The memory of the old ones is used again.

        Args:
            grads: by name, of at least these parameters.
            params: as `grads`.
            hyper: scheduled hyper-parameters of this step.
        """
        own, self.state = self._updated(self._own(grads), self.state, self._own(params), _typed(hyper))
        return own

    def warm(self, grads: Tree, params: Tree, hyper: Mapping[str, float]) -> None:
        """Compile the update; parameters and state do not change."""
        copies = jax.tree.map(jnp.copy, (self.state, self._own(params)))
        self._updated(self._own(grads), *copies, _typed(hyper))

    def _own(self, values: Tree) -> Tree:
        return {name: values[name] for name in self.names}

    def _change(self, grads: Tree, state: Tree, params: Tree, hyper: Tree) -> tuple[Tree, Tree]:
        state = state | {"hyper": state["hyper"] | hyper}
        changes, state = self._optimizer.update(grads, state, params)
        return {name: (value + changes[name]).astype(value.dtype) for name, value in params.items()}, state


def _typed(hyper: Mapping[str, float]) -> Tree:
    return {name: np.asarray(value, jnp.result_type(float)) for name, value in hyper.items()}


@jax.jit
def sum_squares(grads: Tree) -> Array:
    """Return the squared norm of some gradients."""
    return jnp.stack([jnp.vdot(grad, grad) for grad in grads.values()]).sum()


@jax.jit
def scale_gradient(grad: Array, factor: Array) -> Array:
    """A gradient times a number."""
    return grad * factor.astype(grad.dtype)
