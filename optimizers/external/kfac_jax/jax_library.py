"""Access of the adapter to kfac-jax's objects and errors."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax import Array, tree

from suite.contract import Reduce, UserError


@contextmanager
def explain_tracing_errors(module: str, library: Any) -> Iterator[None]:
    """Say of an error inside kfac-jax's tracing which version raised it.

    Args:
        module: the library's, as typed.
        library: the imported module.

    Raises:
        UserError: for an error inside the context.
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"optimizer.jax={module}: {library.__file__} cannot trace this loss ({str(error).partition(chr(10))[0]}); "
            "release 0.0.8 traces none on jax 0.10, a checkout does: optimizer.path=DIR"
        ) from error


def average_curvature(library: Any, curvature: Any, reduce: Reduce[Array]) -> Any:
    """Return the curvature with the means over ranks of its moving averages, whose weights are the same on all ranks.

    Args:
        library: the imported module.
        curvature: kfac-jax's state, a tree.
        reduce: communication between ranks.
    """
    average = library.utils.WeightedMovingAverage
    leaves, structure = tree.flatten(curvature, is_leaf=lambda leaf: isinstance(leaf, average))
    values = {str(number): leaf.value for number, leaf in enumerate(leaves) if isinstance(leaf, average)}
    means = reduce.exact(values)
    leaves = [
        dataclasses.replace(leaf, value=means[str(number)]) if str(number) in means else leaf
        for number, leaf in enumerate(leaves)
    ]
    return tree.unflatten(structure, leaves)
