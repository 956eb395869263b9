"""Native all-reduce in jax."""

from typing import Any

from jax import Array


def mean(name: str, values: Array, *, codec: Any, transport: Any) -> tuple[Array, Array]:
    """The mean over ranks of a flat (n,) array, and what this rank contributed to it."""
    return transport.all_reduce(name, values) / transport.world, values
