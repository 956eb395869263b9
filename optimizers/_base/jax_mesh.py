"""Arrays that are split among devices.

Over explicit axes, as those of `jax.make_mesh` are, a program must state how each product and reshape is split.
Optimizers leave it to the compiler.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, NamedSharding


def call_with_auto_axes(function: Callable[..., Any], *arguments: Any, like: Any = None) -> Any:
    """Call a function of trees of arrays, in which the compiler chooses how arrays are split over explicit axes.

    Args:
        function: of the arguments.
        arguments: trees of arrays.
        like: tree like the result; each array of the result is split like its array here. None: no array is split.
    """
    mesh = find_explicit_mesh((arguments, like))
    if mesh is None:
        return function(*arguments)
    shardings = NamedSharding(mesh, jax.P()) if like is None else jax.tree.map(lambda value: _place(mesh, value), like)
    return jax.sharding.auto_axes(function, axes=list_explicit_axes(mesh), out_sharding=shardings)(*arguments)


def restore_axes(function: Callable[..., Any], *arguments: Any, like: Any) -> Callable[..., Any]:
    """Make a function that was written for explicit axes callable inside `call_with_auto_axes`.

    Args:
        function: of one tree of arrays.
        arguments: those of the outer call.
        like: tree like the function's argument; each array of the argument is split like its array here.
    """
    mesh = find_explicit_mesh((arguments, like))
    if mesh is None:
        return function
    shardings = jax.tree.map(lambda value: _place(mesh, value), like)
    return jax.sharding.explicit_axes(function, axes=list_explicit_axes(mesh), in_sharding=(shardings,))


def find_explicit_mesh(values: Any) -> AbstractMesh | None:
    """Find the mesh over whose explicit axes some array of a tree is split."""
    for value in jax.tree.leaves(values):
        if isinstance(value, jax.Array):
            sharding = jax.typeof(value).sharding
            if set(list_explicit_axes(sharding.mesh)).intersection(jax.tree.leaves(tuple(sharding.spec))):
                return sharding.mesh
    return None


def list_explicit_axes(mesh: AbstractMesh) -> tuple[str, ...]:
    """List the names of a mesh's explicit axes."""
    return tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)


def _place(mesh: AbstractMesh, value: Any) -> NamedSharding:
    """Return how a value is split, over the axes of a mesh."""
    return NamedSharding(mesh, jax.typeof(value).sharding.spec)


def read_local_slices(value: Array) -> np.ndarray:
    """This process's slices of an array that is split along its leading axis, as a NumPy copy."""
    return np.concatenate([np.asarray(shard.data) for shard in _slices(value)])


def replace_local_slices(value: Array, slices: np.ndarray) -> Array:
    """Return the array with this process's slices replaced by others, shaped as `read_local_slices` returns them."""
    shards = _slices(value)
    parts = np.split(slices.astype(value.dtype), len(shards))
    placed = [jax.device_put(part, shard.device) for part, shard in zip(parts, shards, strict=True)]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, placed)


def _slices(value: Array) -> list[Any]:
    return sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
