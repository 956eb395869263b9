"""Snapshots of the jax engine's state: its arrays by name, as checkpoints and files of weights hold them."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from suite import engine
from suite.comm.transport.jax import AXIS, Transport
from suite.contract import Snapshot
from suite.engine.jax_device import Layout, is_key
from suite.engine.jax_evaluation import widen_floats
from suite.engine.jax_programs import Programs

Tree = dict[str, Any]


def list_arrays(run: Tree, layout: Layout, tables: Collection[str], *, replicated: bool) -> Snapshot:
    """Return the arrays of this process's devices by name, and a JSON skeleton; see `Engine.snapshot`.

    Args:
        run: state of the run.
        layout: of its arrays on the devices.
        tables: names of the parameters that are split by rows.
        replicated: whether to include the arrays that are equal on all devices.
    """
    arrays: dict[str, np.ndarray] = {}
    own: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(run)[0]:
        name = f"run{jax.tree_util.keystr(path)}"
        leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
        if layout.is_split(path):
            arrays[name], own[name] = widen_floats(layout.local(leaf)), _describe_part(path, tables)
        elif replicated:
            arrays[name] = widen_floats(np.asarray(leaf))
    return arrays, {"tree": None, "own": own}


def replace_arrays(run: Tree, layout: Layout, arrays: dict[str, np.ndarray]) -> Tree:
    """Return the state of the run with the arrays of a snapshot of this process."""

    def restore(path: tuple[Any, ...], leaf: Array) -> Any:
        value = arrays[f"run{jax.tree_util.keystr(path)}"]
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
        return value.astype(leaf.dtype, copy=False)  # types that NumPy lacks are saved as float32

    return layout.replaced(jax.tree_util.tree_map_with_path(restore, run))


def collect_rows(programs: Programs, table: Array, rows: int, devices: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield the rows of a table that is split over devices, one device's share at a time.

    The first device receives the shares; a process without it sends, and yields nothing.

    Args:
        programs: compiles what sends a share.
        table: split by rows, with padding at the end.
        rows: number of rows without padding.
        devices: of all processes, in order of their ranks.
    """
    size = len(table) // len(devices)
    for source in range(len(devices)):
        received = _deliver(programs, table, source) if source else table
        for shard in received.addressable_shards:
            if shard.device == devices[0]:
                yield np.asarray(shard.data)[: max(0, rows - source * size)]


def _deliver(programs: Programs, table: Array, source: int) -> Array:
    """Run the program that sends one device's share of a table to the first device."""
    key = "deliver", table.shape, source
    if key not in programs:

        def body(share: Array, transport: Transport) -> Array:
            return transport.deliver("weights", share, source)

        with programs.mode():
            programs.compile({key: programs.lower(body, (table,), (P(AXIS),), P(AXIS), donate=False)})
    return programs(key, table)


def _describe_part(path: Sequence[Any], tables: Collection[str]) -> str:
    """Return the kind of a split array of the run, in words."""
    part = path[0].key
    if part in ("carry", "comm"):
        return engine.CARRY if part == "carry" else engine.RESIDUALS
    return engine.TABLES if any(getattr(key, "key", None) in tables for key in path) else engine.SLICES
