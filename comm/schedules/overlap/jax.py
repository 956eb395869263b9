"""During the backward pass, in jax."""

from suite.comm.reduce.jax import Reduce, Tree


def mean(reduce: Reduce, grads: Tree) -> Tree:
    """The mean of the gradients over ranks; a bucket depends on its own gradients only."""
    return reduce.mean("gradients", grads)
