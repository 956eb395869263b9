"""What the jax engine runs on, and what of a run lies on which device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from suite import backend
from suite.comm.transport.jax import AXIS
from suite.contract import Task, UserError

Batch = dict[str, np.ndarray]


def devices_for(name: str, world: int) -> list[Any]:
    """The devices that `device=auto|cpu|cuda` and `world` mean here.

    Raises:
        UserError: where there are too few.
    """
    try:
        found = jax.devices() if name == "auto" else jax.devices(name)
    except RuntimeError as error:
        raise UserError(f"device={name}: jax has no such device here; type device=cpu, or install its build") from error
    if len(found) < world:
        raise UserError(f"world={world}: jax sees {len(found)} device(s) of kind {found[0].platform}")
    return found[:world]


@dataclass(frozen=True)
class Layout:
    """Which parts of a run are split by rank, and which are equal on all devices.

    Attributes:
        mesh: the devices.
        tables: parameters placed by rows.
    """

    mesh: Mesh
    tables: Sequence[str]

    @property
    def whole(self) -> NamedSharding:
        """Equal on all devices."""
        return NamedSharding(self.mesh, P())

    @property
    def split(self) -> NamedSharding:
        """A part on each device, by the first axis."""
        return NamedSharding(self.mesh, P(AXIS))

    def spec(self, value: Any) -> Any:
        """Sharding of a tree: leaves below a key `owned`, and whatever belongs to a table, are split by rank."""
        split = {"owned", *self.tables}
        owned = lambda path: any(getattr(key, "key", None) in split for key in path)  # noqa: E731
        return jax.tree_util.tree_map_with_path(lambda path, _: P(AXIS) if owned(path) else P(), value)

    def state_spec(self, run: Any) -> Any:
        """Sharding of the whole run. Carry and residuals are always split: what is in them may change with a step."""
        whole = {"params": self.spec(run["params"]), "buffers": P(), "patterns": P(), "opt": self.spec(run["opt"])}
        return whole | {"carry": P(AXIS), "comm": P(AXIS)}

    def place(self, run: Any) -> Any:
        """A tree on the devices."""
        return jax.tree.map(lambda v, s: jax.device_put(v, NamedSharding(self.mesh, s)), run, self.spec(run))

    def table(self, task: Task, seed: int, name: str, kind: Any) -> Array:
        """A table's initial rows, each device's made where it lies."""
        world = self.mesh.size
        first = backend.share(task, seed, name, 0, world)

        def rows(index: Any) -> np.ndarray:
            return backend.share(task, seed, name, (index[0].start or 0) // len(first), world).astype(kind)

        return jax.make_array_from_callback((world * len(first), *first.shape[1:]), self.split, rows)

    def inputs(self, seed: int, batch: Batch, step: int, hyper: Mapping[str, float]) -> tuple[Any, Any, Any]:
        """A step's batch, key and hyper-parameters. One process leaves placing them to the program, which is cheap."""
        values = {name: np.asarray(value, jnp.result_type(float)) for name, value in hyper.items()}
        key = np.array([seed, step], np.uint32)
        cast = typed(batch)
        if jax.process_count() == 1:
            return cast, key, values
        shared = {name: jax.make_array_from_process_local_data(self.split, value) for name, value in cast.items()}
        return shared, *jax.device_put((key, values), self.whole)

    def described(self, run: Any, batch: Any, key: Any, hyper: Any) -> tuple[Any, Any, Any, Any]:
        """The run and a step's arguments as programs are lowered for them."""
        shapes = jax.eval_shape(lambda *values: values, batch, key, hyper)
        parts = [
            jax.tree.map(lambda v, s=s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s), part)
            for part, s in zip(shapes, (self.split, self.whole, self.whole), strict=True)
        ]
        return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding), run), *parts


def typed(batch: Mapping[str, np.ndarray]) -> Batch:
    """Floats in the run's type; 64-bit integers as jax's own width."""
    kind = jnp.result_type(float)
    wanted = {n: kind if v.dtype.kind == "f" else jax.dtypes.canonicalize_dtype(v.dtype) for n, v in batch.items()}
    return {name: value.astype(wanted[name], copy=False) for name, value in batch.items()}
