"""Double buffering in jax: the exchange is part of the next step's program, independent of its forward and backward."""

import jax.numpy as jnp

from suite.comm.reduce.jax import Reduce, Tree

PREFIX = "stale/"  # of the last step's gradients among the residuals, in memory and in checkpoints


def mean(reduce: Reduce, grads: Tree) -> Tree:
    """Return the mean over ranks of the last step's gradients; this step's gradients are kept for the next step."""
    state = reduce.state
    last = {n: state[PREFIX + n][0] if PREFIX + n in state else jnp.zeros_like(v) for n, v in grads.items()}
    reduce.state |= {PREFIX + name: value[None] for name, value in grads.items()}
    return reduce.mean("gradients", last, gradients=True)
