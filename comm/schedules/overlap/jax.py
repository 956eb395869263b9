"""Overlap with the backward pass, in jax."""

from suite.comm.reduce.jax import Reduce, Tree


def mean(reduce: Reduce, grads: Tree) -> Tree:
    """Return the mean of the gradients over ranks; each bucket depends on no gradients but those in it."""
    return reduce.mean("gradients", grads, gradients=True)
