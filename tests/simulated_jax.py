"""Many ranks in one program, in jax: `vmap` over ranks, with the axis names of a mesh.

XLA chooses the order in which a native all-reduce adds. The topology `leader` needs a mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from suite.comm.transport.jax import AXIS, Transport


def simulate(body: Callable[[Transport, Any], Any], values: Any, locals: int | None = None) -> Any:
    """Run `body(transport, value)` on each rank and return the results, stacked along the leading axis.

    Args:
        body: what a rank does with its value.
        values: a tree of arrays (world, …).
        locals: ranks of one host; None for one level. With two levels, `inner` and `outer` work, and nothing else.
    """
    world = len(jax.tree.leaves(values)[0])
    if locals is None:
        return jax.jit(jax.vmap(lambda value: body(Transport(world, axis=AXIS[1:]), value), axis_name=AXIS[1]))(values)

    def split(value: Array) -> Array:
        return value.reshape(world // locals, locals, *value.shape[1:])

    one = jax.vmap(lambda value: body(Transport(world, locals), value), axis_name=AXIS[1])
    results = jax.jit(jax.vmap(one, axis_name=AXIS[0]))(jax.tree.map(split, values))
    return jax.tree.map(lambda value: value.reshape(world, *value.shape[2:]), results)
