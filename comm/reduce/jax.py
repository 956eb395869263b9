"""Reductions over ranks in jax, inside `shard_map`."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.contract import Channel
from suite.comm.encoder.jax import Encoder
from suite.comm.layout import list_slots, locate_parts
from suite.comm.reduce import as_mean
from suite.comm.transport.jax import Transport

Tree = dict[str, Array]


class Reduce:
    """Implements `suite.contract.Reduce` within one trace.

    Inside `lax.cond` or `lax.while_loop` only `exact` may be called.

    Args:
        transport: sends the bytes and counts them.
        channels: of the run.
        state: this rank's residuals by name, (1, …).
        key: (seed, step), for codecs that use random numbers.

    Attributes:
        state: the residuals after what has been traced.
    """

    def __init__(self, transport: Transport, channels: Channels, *, state: Tree, key: Any):
        self.transport, self.channels, self.key = transport, channels, key
        self.state = dict(state)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.transport.world

    @property
    def rank(self) -> Array:
        """This rank's number."""
        return self.transport.rank

    def exact(self, values: Tree) -> Tree:
        """Return the mean over ranks of small values, never compressed; arrays of one dtype are sent together."""
        if self.world == 1:
            return values
        leaves, structure = jax.tree.flatten(values)
        means: dict[int, Array] = {}
        for kind in dict.fromkeys(leaf.dtype for leaf in leaves):
            members = [number for number, leaf in enumerate(leaves) if leaf.dtype == kind]
            flat = jnp.concatenate([leaves[number].reshape(-1) for number in members])
            mean = self.transport.averaged(self.transport.all_reduce("exact", flat))
            ends = list(itertools.accumulate(leaves[number].size for number in members))[:-1]
            for number, part in zip(members, jnp.split(mean, ends), strict=True):
                means[number] = part.reshape(leaves[number].shape)
        return jax.tree.unflatten(structure, [means[number] for number in range(len(leaves))])

    def mean(self, name: str, values: Tree, *, gradients: bool = False) -> Tree:
        """Return the mean over ranks, compressed; `gradients`: the values are gradients, by parameter."""
        if self.world == 1:
            return values
        if not gradients:
            return self.bucket(f"{name}/all", self.channels.factors, values)
        means: Tree = {}
        for bucket, channel, members in self.buckets(values):
            means |= self.bucket(f"{name}/{bucket}", channel, {member: values[member] for member in members})
        return {member: means[member] for member in values}

    def code(self, values: Tree) -> Tree:
        """Encode and decode gradients bucket by bucket; nothing is sent."""
        decoded = {}
        for name, channel, members in self.buckets(values):
            row = jnp.concatenate([values[member].reshape(-1) for member in members])[None]
            encoder = Encoder(f"trial/{name}", channel.codec, None, self.key, self.transport.rank)
            payloads = lax.optimization_barrier(encoder.encode("", row))  # stored as bytes, as for sending
            decoded[name] = encoder.decode(payloads, row[0])
        return decoded

    def buckets(self, gradients: Tree) -> list[tuple[str, Channel, list[str]]]:
        """Which gradients are sent together, in order: (name of the bucket, its channel, names of the parameters)."""
        return list(self.channels.buckets({name: value.nbytes for name, value in gradients.items()}))

    def bucket(self, name: str, channel: Channel, values: Tree) -> Tree:
        """Return the mean over ranks of values that are sent together."""
        flat = jnp.concatenate([value.reshape(-1) for value in values.values()])
        mean = channel.topology.mean(name, flat, **self._parts(channel))
        ends = list(itertools.accumulate(value.size for value in values.values()))[:-1]
        parts = jnp.split(mean, ends)
        return {name: part.reshape(value.shape) for (name, value), part in zip(values.items(), parts, strict=True)}

    def to_owners(
        self, name: str, stack: Array | Sequence[Array], owners: tuple[int, ...], *, symmetric: bool = False
    ) -> Array:
        """Return this rank's rows of the mean over ranks of a stack, (k, …); zeros where it owns fewer than k."""
        stack = stack if isinstance(stack, Array) else jnp.stack(list(stack))
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return unpack_triangles(self.to_owners(name, pack_triangles(stack), owners))
        channel = self.channels.factors
        if as_mean(owners, self.world):
            mean = channel.topology.mean(name, stack.reshape(-1), **self._parts(channel))
            return self.mine(mean.reshape(stack.shape), owners)
        rows = _ordered(stack, np.array(list_slots(owners, self.world))).reshape(self.world, -1)
        return channel.topology.to_owners(name, rows, **self._parts(channel)).reshape(-1, *stack.shape[1:])

    def gather(
        self, name: str, slices: Array, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Array:
        """Return the stack (m, …) of all owners' rows (k, …); the inverse of `to_owners`."""
        if self.world == 1:
            return slices
        if symmetric and self.channels.symmetric and not exact:
            return unpack_triangles(self.gather(name, pack_triangles(slices), owners))
        channel, own = self.channels.factors, self._own(owners)
        if exact:
            gathered = self.transport.all_gather(name, slices)
        elif as_mean(owners, self.world):
            whole = jnp.zeros((len(owners), *slices.shape[1:]), slices.dtype)
            whole = whole.at[jnp.where(own < 0, len(owners), own)].set(slices, mode="drop")
            mean = channel.topology.mean(name, whole.reshape(-1), **self._parts(channel))
            return (mean * self.world).reshape(whole.shape)
        else:  # padding must not enter the statistics that a codec computes of its values
            clean = slices
            if -1 in list_slots(owners, self.world):
                clean = jnp.where((own < 0).reshape(-1, *[1] * (slices.ndim - 1)), jnp.zeros_like(slices), slices)
            gathered = channel.topology.gather(name, clean.reshape(-1), **self._parts(channel))
            gathered = gathered.reshape(-1, *slices.shape[1:])
        return _ordered(gathered, np.array(locate_parts(owners, self.world)))

    def mine(self, stack: Array, owners: tuple[int, ...]) -> Array:
        """Return the rows (k, …) that this rank owns of a stack (m, …) which all ranks hold; nothing is sent."""
        if self.world == 1:
            return stack
        own = self._own(owners)
        return stack.at[jnp.where(own < 0, len(stack), own)].get(mode="fill", fill_value=0)

    def _own(self, owners: tuple[int, ...]) -> Array:
        """This rank's rows (k,); -1 where it has fewer."""
        return jnp.array(list_slots(owners, self.world)).reshape(self.world, -1)[self.transport.rank]

    def _parts(self, channel: Channel) -> dict[str, Any]:
        """Return the arguments of a topology's functions beside the name and the values."""

        def encoder(name: str, codec: Codec, whole: bool = False) -> Encoder:
            state = self.state if channel.feedback else None
            piece_bytes = float("inf") if whole else channel.piece_bytes
            return Encoder(name, codec, state, self.key, self.transport.rank, piece_bytes)

        return {"channel": channel, "encoders": encoder, "transport": self.transport}


def _ordered(stack: Array, rows: np.ndarray) -> Array:
    """Return the given rows of a stack, zeros for -1; the first rows in order are not copied."""
    if len(rows) <= len(stack) and np.array_equal(rows, np.arange(len(rows))):
        return stack[: len(rows)]
    return stack.at[np.where(rows < 0, len(stack), rows)].get(mode="fill", fill_value=0)


def pack_triangles(stack: Array) -> Array:
    """Symmetric matrices (m, n, n) to their lower triangles (m, n (n + 1) / 2)."""
    row, column = np.tril_indices(stack.shape[1])
    return stack[:, row, column]


def unpack_triangles(rows: Array) -> Array:
    """Lower triangles (m, n (n + 1) / 2) to the symmetric matrices (m, n, n)."""
    n = int((2 * rows.shape[1]) ** 0.5)
    row, column = np.tril_indices(n)
    back = np.empty((n, n), np.int32)
    back[row, column] = back[column, row] = np.arange(len(row))
    return rows[:, back]
