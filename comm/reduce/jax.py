"""Reductions over ranks in jax, inside `shard_map`."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.comm.channel import GRADIENTS, Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.coder.jax import Coder, Coders
from suite.comm.exchange.jax import divided
from suite.comm.layout import jax as layout
from suite.comm.layout import places, slots
from suite.comm.reduce import as_mean
from suite.comm.transport.jax import Transport

Tree = dict[str, Array]


class Reduce:
    """Means over ranks, and stacks split among owners; bound to one trace, whose new residuals are in `state`.

    The twin of `suite.comm.reduce.torch.Reduce`. Residuals have a leading axis of length 1: this rank's own.
    Inside `lax.cond` or `lax.while_loop` only `exact` may be called.
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
        """The mean of small values over ranks, never compressed; any tree of arrays. Those of one type go together."""
        if self.world == 1:
            return values
        leaves, structure = jax.tree.flatten(values)
        found: dict[int, Array] = {}
        for kind in dict.fromkeys(leaf.dtype for leaf in leaves):
            own = [number for number, leaf in enumerate(leaves) if leaf.dtype == kind]
            flat = jnp.concatenate([leaves[number].reshape(-1) for number in own])
            mean = divided(self.transport.all_reduce("exact", flat), self.world)
            ends = list(itertools.accumulate(leaves[number].size for number in own))[:-1]
            for number, part in zip(own, jnp.split(mean, ends), strict=True):
                found[number] = part.reshape(leaves[number].shape)
        return jax.tree.unflatten(structure, [found[number] for number in range(len(leaves))])

    def mean(self, name: str, values: Tree) -> Tree:
        """The mean over ranks, in the run's communication mode; `name` begins with "gradients" where they are some."""
        if self.world == 1:
            return values
        found: Tree = {}
        for bucket, channel, members in self._buckets(name, values):
            flat = jnp.concatenate([values[member].reshape(-1) for member in members])
            total = channel.topology.mean(f"{name}/{bucket}", flat, **self._ways(channel))
            ends = itertools.accumulate(values[member].size for member in members)
            parts = jnp.split(total, list(ends)[:-1])
            found |= {member: part.reshape(values[member].shape) for member, part in zip(members, parts, strict=True)}
        return {member: found[member] for member in values}

    def _buckets(self, name: str, values: Tree) -> list[tuple[str, Channel, list[str]]]:
        if not name.startswith(GRADIENTS):
            return [("all", self.channels.factors, list(values))]
        return list(self.channels.buckets({n: value.size * value.dtype.itemsize for n, value in values.items()}))

    def to_owners(self, name: str, stack: Array, owners: tuple[int, ...], *, symmetric: bool = False) -> Array:
        """Each owner's rows of the mean over ranks of a (m, …) stack: (k, …), zeros where a rank owns fewer than k.

        Args:
            name: for ledger and residuals.
            stack: the rows, on every rank.
            owners: the rank of each row; k is the most that any of them has.
            symmetric: the rows are symmetric matrices (m, n, n), so that triangles may be sent.
        """
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.to_owners(name, layout.pack(stack), owners))
        channel = self.channels.factors
        if as_mean(owners, self.world):
            mean = channel.topology.mean(name, stack.reshape(-1), **self._ways(channel))
            return self.mine(mean.reshape(stack.shape), owners)
        rows = _ordered(stack, np.array(slots(owners, self.world))).reshape(self.world, -1)
        return channel.topology.to_owners(name, rows, **self._ways(channel)).reshape(-1, *stack.shape[1:])

    def gather(
        self, name: str, slices: Array, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Array:
        """Every owner's rows put together again: (k, …) on each rank to (m, …) on all; the twin of `to_owners`.

        As values, in the run's communication mode, or `exact`: as they are, of any type.
        """
        if self.world == 1:
            return slices
        if symmetric and self.channels.symmetric and not exact:
            return layout.unpack(self.gather(name, layout.pack(slices), owners))
        channel, own = self.channels.factors, self._own(owners)
        if exact:
            found = self.transport.all_gather(name, slices)
        elif as_mean(owners, self.world):
            whole = jnp.zeros((len(owners), *slices.shape[1:]), slices.dtype)
            whole = whole.at[jnp.where(own < 0, len(owners), own)].set(slices, mode="drop")
            mean = channel.topology.mean(name, whole.reshape(-1), **self._ways(channel))
            return (mean * self.world).reshape(whole.shape)
        else:  # what nobody owns must not enter what a codec finds out about its values
            clean = slices
            if -1 in slots(owners, self.world):
                clean = jnp.where((own < 0).reshape(-1, *[1] * (slices.ndim - 1)), jnp.zeros_like(slices), slices)
            found = channel.topology.gather(name, clean.reshape(-1), **self._ways(channel))
            found = found.reshape(-1, *slices.shape[1:])
        return _ordered(found, np.array(places(owners, self.world)))

    def mine(self, stack: Array, owners: tuple[int, ...]) -> Array:
        """The rows (k, …) that this rank owns of a stack (m, …) that all ranks hold; nothing is sent."""
        if self.world == 1:
            return stack
        own = self._own(owners)
        return stack.at[jnp.where(own < 0, len(stack), own)].get(mode="fill", fill_value=0)

    def _own(self, owners: tuple[int, ...]) -> Array:
        """This rank's rows (k,); -1 where it has fewer."""
        return jnp.array(slots(owners, self.world)).reshape(self.world, -1)[self.transport.rank]

    def _ways(self, channel: Channel) -> dict[str, Any]:
        """What a topology needs beside the values."""

        def coder(name: str, codec: Codec, whole: bool = False) -> Coder:
            state, most = self.state if channel.feedback else None, float("inf") if whole else channel.piece_bytes
            return Coder(name, codec, state, self.key, self.transport.rank, most)

        coders: Coders = coder
        return {"channel": channel, "coders": coders, "transport": self.transport}


def _ordered(stack: Array, rows: np.ndarray) -> Array:
    """These rows of a stack, zeros for -1; nothing is moved where they are its first ones."""
    if len(rows) <= len(stack) and np.array_equal(rows, np.arange(len(rows))):
        return stack[: len(rows)]
    return stack.at[np.where(rows < 0, len(stack), rows)].get(mode="fill", fill_value=0)
