"""Bytes over a mesh's axes inside `shard_map`, or over the axes of nested `vmap`s.

A collective is counted when it is traced: the engine keeps a program's entries and adds them to the ledger each time
the program runs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.comm.transport import Entry, entry
from suite.contract import UserError

AXIS = ("hosts", "locals")  # of every mesh; without hosts to tell apart, all devices lie along the second


class Transport:
    """Collectives over mesh axes, for one trace.

    `entries` collects what this trace sends on each rank; `inner` and `outer` are the transports of one axis each.

    Args:
        world: number of ranks.
        locals: ranks of one host; None where hosts are not told apart.
        axis: the mesh's axes.
    """

    level = "flat"
    inner: Transport
    outer: Transport

    def __init__(self, world: int, locals: int | None = None, axis: tuple[str, ...] = AXIS):
        self.world, self.entries = world, list[Entry]()
        self.axis = axis
        if locals:
            self.outer = Transport(world // locals, axis=axis[:1])
            self.inner = Transport(locals, axis=axis[1:])
            self.outer.level, self.inner.level = "outer", "inner"
            self.outer.entries = self.inner.entries = self.entries

    @property
    def rank(self) -> Array:
        """This device's place on the axis, a traced integer."""
        return lax.axis_index(self.axis)

    def _count(self, operation: str, name: str, value: Array) -> None:
        size = value.size * value.dtype.itemsize
        self.entries.append(entry(operation, name, str(value.dtype), size, self.world, self.level))

    def all_reduce(self, name: str, value: Array) -> Array:
        """The sum over ranks, in the array's own type."""
        if value.dtype == jnp.bfloat16 and jax.default_backend() == "cpu":
            raise UserError(
                "codec bfloat16 with algorithm native: XLA on CPUs sends bfloat16 as float32; "
                "type comm.algorithm.module=suite.comm.algorithms.all_to_all"
            )
        self._count("all_reduce", name, value)
        return lax.psum(value, self.axis)

    def all_to_all(self, name: str, value: Array) -> Array:
        """Row r of (world, …) goes to rank r; the rows that came back, in rank order."""
        self._count("all_to_all", name, value)
        return lax.all_to_all(value, self.axis, split_axis=0, concat_axis=0, tiled=True)

    def all_gather(self, name: str, value: Array) -> Array:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        return lax.all_gather(value, self.axis, tiled=True)

    def shift(self, name: str, value: Array) -> Array:
        """Send to the next rank; what came from the one before."""
        self._count("shift", name, value)
        return lax.ppermute(value, self.axis, [(rank, (rank + 1) % self.world) for rank in range(self.world)])

    def to_first(self, name: str, value: Array) -> Array:
        """Every rank's value on rank 0, (world, …); elsewhere only the first row is filled, with this rank's own."""
        self._count("to_first", name, value)
        return jnp.stack([value, *(lax.ppermute(value, self.axis, [(rank, 0)]) for rank in range(1, self.world))])

    def broadcast(self, name: str, value: Array) -> Array:
        """Rank 0's value on all."""
        self._count("broadcast", name, value)
        # rank 0 sends to itself, too: where XLA computes a value once more, it may round otherwise than what was sent
        found, *others = [lax.ppermute(value, self.axis, [(0, rank)]) for rank in range(self.world)]
        for number, other in enumerate(others, 1):
            found = jnp.where(self.rank == number, other, found)
        return found


class Leaders(Transport):
    """The first ranks of all hosts; what the other ranks pass in stays with them, and what they get means nothing.

    Collectives are made of exchanges between pairs, because those of an axis would move every rank's bytes.
    """

    level = "outer"

    def __init__(self, whole: Transport):
        self.world, self.axis, self.entries = whole.outer.world, whole.axis, whole.entries
        self.locals = whole.inner.world

    @property
    def rank(self) -> Array:
        """This device's host, a traced integer."""
        return lax.axis_index(self.axis) // self.locals

    def _turn(self, value: Array, by: int) -> Array:
        """What the leader `by` hosts before sends."""
        pairs = [(h * self.locals, (h + by) % self.world * self.locals) for h in range(self.world)]
        return lax.ppermute(value, self.axis, pairs)

    def all_reduce(self, name: str, value: Array) -> Array:
        """There is none among some ranks only.

        Raises:
            UserError: always.
        """
        raise UserError(
            "topology leader with algorithm native: jax has no all-reduce among some ranks only; "
            "type comm.algorithm.module=suite.comm.algorithms.all_to_all"
        )

    def all_to_all(self, name: str, value: Array) -> Array:
        """Row r of (world, …) goes to host r; the rows that came back, in order of hosts."""
        self._count("all_to_all", name, value)
        received = value
        for by in range(1, self.world):
            row = lax.dynamic_index_in_dim(value, (self.rank + by) % self.world, keepdims=False)
            received = received.at[(self.rank - by) % self.world].set(self._turn(row, by))
        return received

    def all_gather(self, name: str, value: Array) -> Array:
        """Every leader's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        rows = jnp.zeros((self.world, *value.shape), value.dtype).at[self.rank].set(value)
        for by in range(1, self.world):
            rows = rows.at[(self.rank - by) % self.world].set(self._turn(value, by))
        return rows.reshape(-1, *value.shape[1:])

    def shift(self, name: str, value: Array) -> Array:
        """Send to the next leader; what came from the one before."""
        self._count("shift", name, value)
        return self._turn(value, 1)
