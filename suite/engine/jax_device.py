"""Devices of the jax engine, and the placement of a run's arrays on them."""

import functools
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from suite import engine
from suite.comm.transport.jax import AXIS
from suite.contract import Task, UserError

Batch = dict[str, np.ndarray]


def devices_for(name: str, world: int) -> list[Any]:
    """Return the first `world` devices of a kind.

    Args:
        name: `auto`, `cpu` or `cuda`, as in `device=`.
        world: number of devices.

    Raises:
        UserError: there are fewer.
    """
    try:
        devices = jax.devices() if name == "auto" else jax.devices(name)
    except RuntimeError as error:
        raise UserError(f"device={name}: jax has no such device here; set device=cpu, or install its build") from error
    if len(devices) < world:
        raise UserError(f"world={world}: jax sees {len(devices)} device(s) of kind {devices[0].platform}")
    return devices[:world]


def explain_cpu() -> str | None:
    """Return why jax cannot use a GPU that is present; None if it can."""
    return "jax has no CUDA plugin here; install jax[cuda13]" if jax.default_backend() == "cpu" else None


def measure_device(device: Any) -> dict[str, Any]:
    """Return the device's name and the peak memory, of the GPU or of this process."""
    memory = device.memory_stats() or {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"device": device.device_kind, "peak_memory_bytes": memory.get("peak_bytes_in_use", resident)}


@dataclass(frozen=True)
class Layout:
    """Which parts of a run are split by rank, and which are equal on all devices.

    Attributes:
        mesh: the devices.
        tables: parameters placed by rows.
        levels: the values of the bytes of an image, (channels, 256) float32; None if no image arrives as bytes.
    """

    mesh: Mesh
    tables: Sequence[str]
    levels: np.ndarray | None = None

    @property
    def whole(self) -> NamedSharding:
        """Sharding of arrays that are equal on all devices."""
        return NamedSharding(self.mesh, P())

    @property
    def split(self) -> NamedSharding:
        """Sharding of arrays that are split over the devices along the first axis."""
        return NamedSharding(self.mesh, P(AXIS))

    def is_split(self, path: Sequence[Any]) -> bool:
        """Return whether a leaf of the run is split by rank: it is below a key `owned`, or part of a table."""
        return any(getattr(key, "key", None) in {"owned", *self.tables} for key in path)

    def spec(self, value: Any) -> Any:
        """Return the partition specs of a tree."""
        return jax.tree_util.tree_map_with_path(lambda path, _: P(AXIS) if self.is_split(path) else P(), value)

    def state_spec(self, run: Any) -> Any:
        """Return the run's partition specs. Carry and residuals are split as a whole: a step may change their keys."""
        whole = {"params": self.spec(run["params"]), "buffers": P(), "patterns": P(), "opt": self.spec(run["opt"])}
        return whole | {"carry": P(AXIS), "comm": P(AXIS)}

    def place(self, run: Any) -> Any:
        """Put a tree of whole arrays on the devices. Every process holds the whole arrays; nothing is sent."""

        def put(value: Any, spec: Any) -> Array:
            sharding = NamedSharding(self.mesh, spec)
            if is_key(value) and jax.process_count() > 1:
                return jax.random.wrap_key_data(put(jax.random.key_data(value), spec), impl=jax.random.key_impl(value))
            if jax.process_count() == 1 or (isinstance(value, Array) and not value.is_fully_addressable):
                return jax.device_put(value, sharding)
            host = np.asarray(value)  # device_put would compare it with the other processes' values, and send it
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

        return jax.tree.map(put, run, self.spec(run))

    def local(self, value: Array) -> np.ndarray:
        """Return the parts of a split array on this process's devices, concatenated in the order of ranks."""
        if value.is_fully_addressable:
            return np.asarray(value)
        shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    def replaced(self, run: Any) -> Any:
        """Put a tree on the devices whose split arrays are as `local` returned them."""
        if jax.process_count() == 1:
            return self.place(run)

        def put(path: Sequence[Any], value: Any) -> Any:
            return jax.make_array_from_process_local_data(self.split, value) if self.is_split(path) else value

        return self.place(jax.tree_util.tree_map_with_path(put, run))

    def table(self, task: Task, seed: int, name: str, kind: Any) -> Array:
        """Return a table's initial rows; each process makes those of its devices."""
        world = self.mesh.size
        first = engine.make_share(task, seed, name, 0, world)

        def rows(index: Any) -> np.ndarray:
            return engine.make_share(task, seed, name, (index[0].start or 0) // len(first), world).astype(kind)

        return jax.make_array_from_callback((world * len(first), *first.shape[1:]), self.split, rows)

    def inputs(self, seed: int, batch: Batch, step: int, hyper: Mapping[str, float]) -> tuple[Any, Any, Any]:
        """Return a step's batch, key and hyper-parameters; with one process, the program itself places them."""
        values = {name: np.asarray(value, jnp.result_type(float)) for name, value in hyper.items()}
        key = np.array([seed, step], np.uint32)
        cast: dict[str, Any] = cast_batch(batch)
        if self.levels is not None and "image" in cast and cast["image"].dtype == np.uint8:
            image = jax.make_array_from_process_local_data(self.split, cast["image"])
            cast["image"] = self._normalise_images(image)
        if jax.process_count() == 1:
            return cast, key, values
        shared = {
            name: value if isinstance(value, Array) else jax.make_array_from_process_local_data(self.split, value)
            for name, value in cast.items()
        }
        return shared, *jax.device_put((key, values), self.whole)

    @functools.cached_property
    def _normalise_images(self) -> Callable[[Array], Array]:
        """Normalise images, each device its own, with a table of all bytes: XLA does not divide as NumPy does."""
        levels = np.asarray(self.levels, jnp.result_type(float))

        def look_up(image: Array) -> Array:
            return jnp.stack([jnp.asarray(values)[image[:, channel]] for channel, values in enumerate(levels)], 1)

        return jax.jit(jax.shard_map(look_up, mesh=self.mesh, in_specs=P(AXIS), out_specs=P(AXIS)))

    def described(self, run: Any, batch: Any, key: Any, hyper: Any) -> tuple[Any, Any, Any, Any]:
        """Return shapes, types and shardings of the run and of a step's arguments, to lower programs for them."""
        parts = [
            jax.tree.map(lambda v, s=s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s), part)
            for part, s in ((batch, self.split), (key, self.whole), (hyper, self.whole))
        ]
        return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding), run), *parts


def is_key(value: Any) -> bool:
    """Return whether an array contains jax's typed random keys."""
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def cast_batch(batch: Mapping[str, np.ndarray]) -> Batch:
    """Return a batch with floats in the run's type, and integers in the width that jax uses."""
    kind = jnp.result_type(float)
    types = {n: kind if v.dtype.kind == "f" else jax.dtypes.canonicalize_dtype(v.dtype) for n, v in batch.items()}
    return {name: value.astype(types[name], copy=False) for name, value in batch.items()}
