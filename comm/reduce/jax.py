"""Reductions over ranks in jax, inside `shard_map`."""

from types import ModuleType

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.comm.transport.jax import Transport

Tree = dict[str, Array]


class Reduce:
    """Means over ranks, and stacks split among owners; bound to one trace, whose new residuals are in `state`.

    The twin of `suite.comm.reduce.torch.Reduce`. Residuals have a leading axis of length 1: this rank's own.
    Inside `lax.cond` or `lax.while_loop` only `exact` may be called.
    """

    def __init__(
        self, transport: Transport, *, codec: ModuleType, algorithm: ModuleType, feedback: bool = False, state: Tree
    ):
        self.transport, self.codec, self.algorithm, self.feedback = transport, codec, algorithm, feedback
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
        """The mean over ranks, in the run's communication mode."""
        if self.world == 1:
            return values
        flat = jnp.concatenate([value.reshape(-1) for value in values.values()])
        if self.feedback:
            flat = flat + (self.state[name][0] if name in self.state else jnp.zeros_like(flat))
        total, sent = self.algorithm.mean(name, flat, codec=self.codec, transport=self.transport)
        if self.feedback:
            self.state[name] = (flat - sent)[None]
        parts, start = {}, 0
        for key, value in values.items():
            parts[key] = total[start : start + value.size].reshape(value.shape)
            start += value.size
        return parts

    def to_owners(self, name: str, stack: Array) -> Array:
        """Rank r's share, rows [r · k, (r + 1) · k), of the mean over ranks of a (world · k, …) stack."""
        if self.world == 1:
            return stack
        rows = self.transport.all_to_all(name, stack.reshape(self.world, -1, *stack.shape[1:]))
        total = rows[0]
        for rank in range(1, self.world):
            total = total + rows[rank]
        return total / self.world

    def gather(self, name: str, slices: Array) -> Array:
        """Every owner's rows put together again: (k, …) on each rank to (world · k, …) on all."""
        return slices if self.world == 1 else self.transport.all_gather(name, slices)

    def mine(self, stack: Array) -> Array:
        """This rank's rows of a stack that all ranks hold; nothing is sent."""
        share = stack.shape[0] // self.world
        return lax.dynamic_slice_in_dim(stack, self.transport.rank * share, share) if self.world > 1 else stack
