"""During the next step, in jax: part of that step's program, and independent of its forward and backward passes."""

import jax.numpy as jnp

from suite.comm.reduce.jax import Reduce, Tree

PREFIX = "stale/"  # of the last step's gradients among the residuals


def mean(reduce: Reduce, grads: Tree) -> Tree:
    """The mean over ranks of the last step's gradients; this step's are kept."""
    held = reduce.state
    last = {n: held[PREFIX + n][0] if PREFIX + n in held else jnp.zeros_like(v) for n, v in grads.items()}
    reduce.state |= {PREFIX + name: value[None] for name, value in grads.items()}
    return reduce.mean("gradients", last)
