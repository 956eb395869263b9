"""Reductions over ranks in jax, inside `shard_map`."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.comm.channel import GRADIENTS, Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.coder.jax import Coder, Coders
from suite.comm.layout import jax as layout
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

    def exact(self, values: Tree) -> Tree:
        """The mean of small values over ranks, never compressed; any tree of arrays."""
        if self.world == 1:
            return values
        return jax.tree.map(lambda value: self.transport.all_reduce("exact", value) / self.world, values)

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

    def to_owners(self, name: str, stack: Array, *, symmetric: bool = False) -> Array:
        """Rank r's share, rows [r · k, (r + 1) · k), of the mean over ranks of a (world · k, …) stack.

        Of matrices that are `symmetric`, (world · k, n, n), triangles may be sent.
        """
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.to_owners(name, layout.pack(stack)))
        channel, rows = self.channels.factors, stack.reshape(self.world, -1)
        return channel.topology.to_owners(name, rows, **self._ways(channel)).reshape(-1, *stack.shape[1:])

    def gather(self, name: str, slices: Array, *, exact: bool = False, symmetric: bool = False) -> Array:
        """Every owner's rows put together again: (k, …) on each rank to (world · k, …) on all.

        As values, in the run's communication mode, or `exact`: as they are, of any type. Of matrices that are
        `symmetric`, (k, n, n), triangles may be sent.
        """
        if self.world == 1:
            return slices
        if exact:
            return self.transport.all_gather(name, slices)
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.gather(name, layout.pack(slices)))
        channel = self.channels.factors
        return channel.topology.gather(name, slices.reshape(-1), **self._ways(channel)).reshape(-1, *slices.shape[1:])

    def mine(self, stack: Array) -> Array:
        """This rank's rows of a stack that all ranks hold; nothing is sent."""
        share = stack.shape[0] // self.world
        return lax.dynamic_slice_in_dim(stack, self.transport.rank * share, share) if self.world > 1 else stack

    def _ways(self, channel: Channel) -> dict[str, object]:
        """What a topology needs beside the values."""

        def coder(name: str, codec: Codec) -> Coder:
            return Coder(name, codec, self.state if channel.feedback else None, self.key, self.transport.rank)

        coders: Coders = coder
        return {"channel": channel, "coders": coders, "transport": self.transport}
