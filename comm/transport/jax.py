"""Collectives over the axes of a mesh inside `shard_map`, or over the axes of nested `vmap`s.

A collective is counted when it is traced: the engine keeps the entries of a program and adds them to the ledger each
time the program runs. Checksums of what is exchanged are results of the program.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.comm.transport import Entry, make_entry
from suite.contract import UserError


class Exchange(NamedTuple):
    """Checksums of rows in one direction."""

    direction: int  # 0: sent, 1: received
    ranks: Array  # of the whole mesh, (n,)
    sums: Array  # (n,) uint32


AXIS = ("hosts", "locals")  # of every mesh; with one level, all devices lie along the second axis


class Transport:
    """Collectives over mesh axes, for one trace.

    `entries` collects what each rank sends in this trace; `inner` and `outer` are the transports of one axis each.
    `exchanges` collects checksums of the rows that a rank may add to its own, by sender and receiver: after a sum,
    nothing else shows that a row was changed in transit. A change in gathered or broadcast values shows in the weights.

    Args:
        world: number of ranks.
        locals: ranks of one host; None with one level.
        axis: the mesh's axes.
    """

    level = "flat"
    xp = jnp
    inner: Transport
    outer: Transport

    def __init__(self, world: int, locals: int | None = None, axis: tuple[str, ...] = AXIS):
        self.world, self.entries, self.exchanges = world, list[Entry](), list[Exchange]()
        self.axis = axis
        if locals:
            self.outer = Transport(world // locals, axis=axis[:1])
            self.inner = Transport(locals, axis=axis[1:])
            self.outer.level, self.inner.level = "outer", "inner"
            self.outer.entries = self.inner.entries = self.entries
            self.outer.exchanges = self.inner.exchanges = self.exchanges

    @property
    def rank(self) -> Array:
        """This device's index on the axis, a traced integer."""
        return lax.axis_index(self.axis)

    @property
    def leaders(self) -> Transport:
        """Transport between the first ranks of all hosts; what it returns on other ranks is ignored."""
        return Leaders(self)

    def averaged(self, total: Array) -> Array:
        """A sum over ranks divided by their number, with the bits of torch.

        XLA multiplies by a constant's reciprocal, which rounds differently unless the constant is a power of two. An
        array of equal numbers is no constant; the barrier hides it where ranks under `vmap` share it.
        """
        exact = self.world & (self.world - 1) == 0
        return total / (self.world if exact else lax.optimization_barrier(jnp.full_like(total, self.world)))

    def chunks(self, values: Array) -> Array:
        """(n,) values as one row for each rank, (world, k). The last values are repeated where n is no multiple.

        Zeros would enter the means and percentiles that some codecs take.
        """
        missing = -values.size % self.world
        more = values[values.size - missing :] if missing <= values.size else jnp.zeros(missing, values.dtype)
        return jnp.concatenate([values, more]).reshape(self.world, -1)

    def row(self, rows: Array, behind: int = 0) -> Array:
        """Row (rank - behind) modulo world of (world, k); (k,)."""
        number = (self.rank - behind) % self.world if behind else self.rank
        return lax.dynamic_index_in_dim(rows, number, keepdims=False)

    def unchecked(self) -> Transport:
        """Return the same transport without checksums: the body of a loop cannot return them."""
        other = copy.copy(self)
        other.exchanges = []
        return other

    def checksums(self) -> Array:
        """Return the sums of words sent to and received from each rank in this trace, (1, 2, world) uint32."""
        total = jnp.zeros((2, self.world), jnp.uint32)
        for exchange in self.exchanges:
            total = total.at[exchange.direction, exchange.ranks].add(exchange.sums)
        return total[None]

    def _members(self) -> Array:
        """Return the numbers in the whole mesh of the ranks of this axis, (world,)."""
        members = jnp.arange(self.world)
        if self.level == "inner":
            return members + lax.axis_index(AXIS[0]) * self.world
        return members * lax.axis_size(AXIS[1]) + lax.axis_index(AXIS[1]) if self.level == "outer" else members

    def _check(self, sent_to: Any, sent: Array, received_from: Any, received: Array) -> None:
        """Note checksums of rows (n, …) sent to and received from some ranks of this axis."""
        members = self._members()
        self.exchanges.append(Exchange(0, members[sent_to], word_sums(sent)))
        self.exchanges.append(Exchange(1, members[received_from], word_sums(received)))

    def _count(self, operation: str, name: str, value: Array) -> None:
        size = value.size * value.dtype.itemsize
        self.entries.append(make_entry(operation, name, str(value.dtype), size, self.world, self.level))

    def all_reduce(self, name: str, value: Array) -> Array:
        """Return the sum over ranks, in the array's own type."""
        if value.dtype == jnp.bfloat16 and jax.default_backend() == "cpu":
            raise UserError(
                "codec bfloat16 with algorithm native: XLA on CPUs sends bfloat16 as float32; "
                "set comm.algorithm.module=suite.comm.algorithms.all_to_all"
            )
        self._count("all_reduce", name, value)
        return lax.psum(value, self.axis)

    def all_to_all(self, name: str, value: Array) -> Array:
        """Send row r of (world, …) to rank r; the received rows in rank order, (world, …)."""
        self._count("all_to_all", name, value)
        received = self._swapped(value)
        self._check(jnp.arange(self.world), value, jnp.arange(self.world), received)
        return received

    def _swapped(self, value: Array) -> Array:
        return lax.all_to_all(value, self.axis, split_axis=0, concat_axis=0, tiled=True)

    def all_gather(self, name: str, value: Array) -> Array:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        return lax.all_gather(value, self.axis, tiled=True)

    def shift(self, name: str, value: Array) -> Array:
        """Send to the next rank; what the previous rank sent."""
        self._count("shift", name, value)
        received = lax.ppermute(value, self.axis, [(rank, (rank + 1) % self.world) for rank in range(self.world)])
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self._check(after[None], value[None], before[None], received[None])
        return received

    def to_first(self, name: str, value: Array) -> Array:
        """Every rank's value on rank 0, (world, …); on other ranks, only row 0 is filled, with their own value."""
        self._count("to_first", name, value)
        others = [lax.ppermute(value, self.axis, [(rank, 0)]) for rank in range(1, self.world)]
        if others:  # on all ranks but the first, `ppermute` returns zeros, whose sums are 0
            ones = (self.rank > 0).astype(jnp.uint32)
            members = self._members()
            self.exchanges.append(Exchange(0, members[:1], ones * word_sums(value[None])))
            self.exchanges.append(Exchange(1, members[1:], word_sums(jnp.stack(others))))
        return jnp.stack([value, *others])

    def deliver(self, name: str, value: Array, source: int) -> Array:
        """Rank `source`'s value on rank 0; zeros on other ranks."""
        self._count("to_first", name, value)
        return lax.ppermute(value, self.axis, [(source, 0)])

    def broadcast(self, name: str, value: Array) -> Array:
        """Rank 0's value on all ranks."""
        self._count("broadcast", name, value)
        # rank 0 sends to itself, too: if XLA computed the value again, it might round differently from what was sent
        received, *others = [lax.ppermute(value, self.axis, [(0, rank)]) for rank in range(self.world)]
        for number, other in enumerate(others, 1):
            received = jnp.where(self.rank == number, other, received)
        return received


class Leaders(Transport):
    """Collectives between the first ranks of all hosts; what the other ranks pass in is not sent.

    They are made of exchanges between pairs, because a collective of an axis would send every rank's bytes.
    """

    level = "outer"

    def __init__(self, whole: Transport):
        self.world, self.axis, self.entries = whole.outer.world, whole.axis, whole.entries
        self.locals, self.exchanges = whole.inner.world, whole.exchanges

    @property
    def rank(self) -> Array:
        """This device's host, a traced integer."""
        return lax.axis_index(self.axis) // self.locals

    def _turn(self, value: Array, by: int) -> Array:
        """Return what the leader `by` hosts before this one sends."""
        pairs = [(h * self.locals, (h + by) % self.world * self.locals) for h in range(self.world)]
        return lax.ppermute(value, self.axis, pairs)

    def all_reduce(self, name: str, value: Array) -> Array:
        """Reject: jax has no all-reduce among some ranks only.

        Raises:
            UserError: always.
        """
        raise UserError(
            "topology leader with algorithm native: jax has no all-reduce among some ranks only; "
            "set comm.algorithm.module=suite.comm.algorithms.all_to_all"
        )

    def all_to_all(self, name: str, value: Array) -> Array:
        """Send row r of (world, …) to the leader of host r; the received rows in the order of hosts."""
        self._count("all_to_all", name, value)
        received = value
        for by in range(1, self.world):
            row = lax.dynamic_index_in_dim(value, (self.rank + by) % self.world, keepdims=False)
            received = received.at[(self.rank - by) % self.world].set(self._turn(row, by))
        self._check_leaders(jnp.arange(self.world), value, jnp.arange(self.world), received)
        return received

    def all_gather(self, name: str, value: Array) -> Array:
        """Every leader's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        rows = jnp.zeros((self.world, *value.shape), value.dtype).at[self.rank].set(value)
        for by in range(1, self.world):
            rows = rows.at[(self.rank - by) % self.world].set(self._turn(value, by))
        return rows.reshape(-1, *value.shape[1:])

    def shift(self, name: str, value: Array) -> Array:
        """Send to the next leader; what the previous leader sent."""
        self._count("shift", name, value)
        received = self._turn(value, 1)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self._check_leaders(after[None], value[None], before[None], received[None])
        return received

    def _check_leaders(self, sent_to: Array, sent: Array, received_from: Array, received: Array) -> None:
        """Note checksums on leaders only; the values of other ranks are ignored."""
        leads = (lax.axis_index(self.axis) % self.locals == 0).astype(jnp.uint32)
        self.exchanges.append(Exchange(0, sent_to * self.locals, leads * word_sums(sent)))
        self.exchanges.append(Exchange(1, received_from * self.locals, leads * word_sums(received)))


def word_sums(rows: Array) -> Array:
    """Return the sum modulo 2^32 of each row's words, (n,) uint32, of an (n, …) array of any type.

    A changed byte always changes such a sum.
    """
    rows = rows.reshape(len(rows), -1)
    size = rows.dtype.itemsize
    if size == 8:
        rows = lax.bitcast_convert_type(rows, jnp.uint32).reshape(len(rows), -1)
    elif rows.dtype != jnp.bool_:
        rows = lax.bitcast_convert_type(rows, {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[size])
    return rows.astype(jnp.uint32).sum(1, dtype=jnp.uint32)
