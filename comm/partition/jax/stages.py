"""Stages of a plan: forward and backward passes, sums of gradients, and all stages in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.comm.partition.jax.split import Part
from suite.comm.partition.jax.tape import Tree
from suite.comm.partition.jax.trace import Traced

Device = Any  # a jax.Device, which is no class for type checkers
Grads = dict[str, Array]


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["sources", "structure"])
@dataclass(frozen=True)
class Residuals:
    """Values that a forward pass keeps for its backward pass, without the pass's own arguments.

    Attributes:
        arrays: that are not arguments.
        sources: of each leaf of jax's residuals: the number of the argument that it is, or -1 for the next of `arrays`.
        structure: of jax's residuals.
    """

    arrays: list[Array]
    sources: tuple[int, ...]
    structure: Any


@dataclass(frozen=True)
class Held:
    """A micro-batch between its passes.

    Attributes:
        inputs: of the function.
        received: from the previous stage.
        residuals: of the forward pass; None if it is computed again.
    """

    inputs: Mapping[str, Array]
    received: Sequence[Array]
    residuals: Residuals | None


@dataclass(frozen=True)
class Returned:
    """Results of a backward pass.

    Attributes:
        values: gradients of the received values that get one, in order.
        tied: gradients of the parameters that an earlier stage owns, by name.
    """

    values: Sequence[Array]
    tied: Grads


class Stage:
    """One stage on one device.

    Args:
        traced: the function.
        part: of the stage.
        own: names of the trainable parameters that the stage owns.
        last: whether it computes the function's results.
        recompute: keep only what it received, and compute the rest again before each backward pass.
        params: arrays by path; at least those that the stage reads.
        device: on which it runs; None: jax's default.

    Attributes:
        parameters: the trainable parameters that it reads, by path.
        sums: of the gradients of its own parameters, by path.
        buffers: that it changes, by path; every micro-batch starts from them.
        buffer_sums: of their new values over micro-batches, by path.
        results: of the function, (1 or 2,) for each micro-batch, by number; empty unless it is the last stage.
    """

    def __init__(
        self,
        traced: Traced,
        part: Part,
        own: Sequence[str],
        last: bool,
        recompute: bool,
        params: Mapping[str, Array],
        device: Device | None = None,
    ):
        values = traced.graph.values
        self.part, self.own, self.last, self.device = part, tuple(own), last, device
        self.moving_in = [number for number, name in enumerate(part.receives) if values[name].differentiable]
        self.moving_out = [number for number, name in enumerate(part.sends) if values[name].differentiable]
        arrays = {**traced.constants, **params}
        self.parameters: Grads = self.put({name: arrays[name] for name in part.trainable})
        self.fixed: Grads = self.put({name: arrays[name] for name in part.fixed if name not in part.changes})
        self.buffers: Grads = self.put({name: arrays[name] for name in part.changes})
        self.held: dict[int, Held] = {}
        self.sums: Grads = {}
        self.buffer_sums: Grads = {}
        self.results: dict[int, Array] = {}
        self._forward = jax.jit(self._recomputed_forward if recompute else self._kept_forward)
        self._backward = jax.jit(self._recomputed_backward if recompute else self._kept_backward)

    def put(self, tree: Tree) -> Tree:
        """Arrays on this stage's device."""
        return jax.device_put(tree, self.device)

    def forward(self, micro_batch: int, inputs: Mapping[str, Array], received: Sequence[Array]) -> list[Array]:
        """Run the forward pass of one micro-batch; return the values for the next stage.

        Args:
            micro_batch: its number.
            inputs: of the function, by name.
            received: from the previous stage.
        """
        own = self.put({name: inputs[name] for name in self.part.inputs})
        received = self.put(list(received))
        fixed = self.fixed | self.buffers
        sent, changed, residuals = self._forward(self.parameters, fixed, own, received)
        self.buffer_sums = add_values(self.buffer_sums, changed) if self.buffer_sums else changed
        self.held[micro_batch] = Held(own, received, residuals)
        if self.last:
            self.results[micro_batch] = stack_values(sent)
        return sent

    def backward(
        self, micro_batch: int, grads: Sequence[Array], tied: Mapping[str, Sequence[Array]] | None = None
    ) -> Returned:
        """Run the backward pass of one micro-batch, and add the gradients of the stage's own parameters to `sums`.

        Args:
            micro_batch: its number.
            grads: gradients of the sent values that get one, in order; empty for the last stage.
            tied: by path of a parameter that this stage owns, its gradients at later stages, the last stage first.
        """
        held = self.held.pop(micro_batch)
        if self.last:
            grads = [jnp.ones((), self.results[micro_batch].dtype)]
        arguments = self.parameters, self.fixed | self.buffers, held.inputs, held.received
        parameters, values = self._backward(*arguments, held.residuals, self.put(list(grads)))
        for name, parts in (tied or {}).items():
            for part in self.put(list(parts)):
                parameters[name] = add_values(parameters[name], part)
        mine = {name: parameters[name] for name in self.own}
        self.sums = add_values(self.sums, mine) if self.sums else mine
        return Returned(values, {name: grad for name, grad in parameters.items() if name not in mine})

    def compile(self, inputs: Mapping[str, Array], received: Sequence[Array]) -> None:
        """Run both passes of a micro-batch that no other stage knows, and discard the results.

        Args:
            inputs: as for `forward`.
            received: any values of the right shapes.
        """
        sent = self.forward(-1, inputs, received)
        self.backward(-1, [] if self.last else [jnp.zeros_like(sent[number]) for number in self.moving_out])
        self.sums, self.buffer_sums, self.results = {}, {}, {}

    def zeros(self) -> Grads:
        """Return the sums of a device without micro-batches."""
        return {name: jnp.zeros_like(self.parameters[name]) for name in self.own}

    # ------------------------------------------------------------------------------------------- compiled functions
    def _linearized(self, trainable: Grads, fixed: Grads, inputs: Grads, received: list[Array]):
        """Return the values with a gradient, the function from their gradients to those before, and what it returns."""

        def values(trainable: Grads, moving: list[Array]) -> tuple[list[Array], tuple[list[Array], Grads]]:
            whole = list(received)
            for number, value in zip(self.moving_in, moving, strict=True):
                whole[number] = value
            sent, changed = self.part({**trainable, **fixed}, inputs, whole)
            return [sent[number] for number in self.moving_out], (sent, changed)

        return jax.vjp(values, trainable, [received[number] for number in self.moving_in], has_aux=True)

    def _recomputed_forward(self, trainable: Grads, fixed: Grads, inputs: Grads, received: list[Array]):
        return *self.part({**trainable, **fixed}, inputs, received), None

    def _recomputed_backward(
        self, trainable: Grads, fixed: Grads, inputs: Grads, received: list[Array], residuals: None, grads: list[Array]
    ):
        _, back, _ = self._linearized(trainable, fixed, inputs, received)
        return back(grads)

    def _kept_forward(self, *arguments):
        _, back, (sent, changed) = self._linearized(*arguments)
        leaves, structure = jax.tree.flatten(back)
        numbers = {id(leaf): number for number, leaf in enumerate(jax.tree.leaves(arguments))}
        sources = tuple(numbers.get(id(leaf), -1) for leaf in leaves)
        kept = [leaf for leaf, source in zip(leaves, sources, strict=True) if source < 0]
        return sent, changed, Residuals(kept, sources, structure)

    def _kept_backward(
        self,
        trainable: Grads,
        fixed: Grads,
        inputs: Grads,
        received: list[Array],
        residuals: Residuals,
        grads: list[Array],
    ):
        arguments, kept = jax.tree.leaves((trainable, fixed, inputs, received)), iter(residuals.arrays)
        leaves = [next(kept) if source < 0 else arguments[source] for source in residuals.sources]
        return jax.tree.unflatten(residuals.structure, leaves)(grads)


@jax.jit
def stack_values(results: Sequence[Array]) -> Array:
    """A loss, or a loss's sum and weight, as one array (1 or 2,) of the loss's type."""
    return jnp.stack([value.astype(results[0].dtype) for value in results])


@jax.jit
def add_values(first: Tree, second: Tree) -> Tree:
    """Return the sums of the arrays of two trees."""
    return jax.tree.map(jnp.add, first, second)


@jax.jit
def divide_values(tree: Tree, divisor: Array) -> Tree:
    """All arrays divided by a number that XLA does not know, so that it does not multiply by its reciprocal."""
    return jax.tree.map(lambda array: array / divisor.astype(array.dtype), tree)
