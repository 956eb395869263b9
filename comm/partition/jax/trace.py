"""Reads the graph of an unmodified jax function.

Nothing is computed: parameters and inputs may be `jax.ShapeDtypeStruct`s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from suite.comm.partition.graph import Graph
from suite.comm.partition.jax.graph import plan_graph
from suite.comm.partition.jax.tape import Operand, Operation, Tape, Tree, by_path, describe_array
from suite.contract import UserError

Function = Callable[..., Array | tuple[Array, Array]]  # (params, *inputs) to a loss, or to (sum, weight)


@dataclass(frozen=True)
class Traced:
    """A function's graph, for the planner and for jax.

    Attributes:
        graph: what the planner cuts.
        operations: in the order of `graph.nodes`.
        shapes: shape and type of each value and parameter, by name.
        constants: arrays that the function contains, by name; they are parameters of the graph.
        split: of each input, whether its axis 0 has the samples; other inputs are the same for all micro-batches.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    constants: Mapping[str, Array]
    split: Mapping[str, bool]


def trace_function(
    function: Function, params: Tree, inputs: Sequence[Tree], *, split: Sequence[bool] | None = None
) -> Traced:
    """Trace a function with one micro-batch.

    Args:
        function: (params, *inputs) to a scalar loss, the mean over samples; or to two scalars, the sum of the losses
            and the sum of their weights.
        params: a pytree; floating-point arrays are trained, others are not.
        inputs: pytrees, with the samples of one micro-batch along axis 0.
        split: of each array of the inputs, whether its axis 0 has the samples; None: if it is as long as that of the
            first array.

    Raises:
        UserError: if the function does not return a floating-point scalar that depends on the parameters, or also a
            weight that does not.
    """
    named = {name: describe_array(leaf) for name, leaf in by_path(params).items()}
    leaves = {name: describe_array(leaf) for name, leaf in by_path(tuple(inputs), "%inputs/").items()}
    samples = next((leaf.shape[0] for leaf in leaves.values() if leaf.shape), 1)
    if split is None:
        split = [bool(leaf.shape) and leaf.shape[0] == samples for leaf in leaves.values()]
    halves = dict(zip(leaves, split, strict=True))
    tape, results = _taped(function, params, inputs, [*named, *leaves])
    given = named | leaves | tape.constants
    outputs = tuple(name for name in results if isinstance(name, str) and name not in given)
    fault = f"the function cannot be cut: {_name(function)}"
    if len(outputs) != len(results) or len(outputs) not in (1, 2):
        raise UserError(f"{fault} must return one scalar loss that it computes, or the loss's sum and weight")
    for name in outputs:
        if tape.shapes[name].shape or not jnp.issubdtype(tape.shapes[name].dtype, jnp.floating):
            raise UserError(
                f"{fault} must return floating-point scalars: the mean loss, or the loss's sum and weight; it returns "
                f"{tape.shapes[name].dtype}{list(tape.shapes[name].shape)}"
            )
    shapes, grown = tape.shapes | named | leaves, _grown(function, params, inputs, halves, tape)
    graph = plan_graph(tape, shapes, halves, tuple(named), outputs, samples, grown)
    loss, *weights = (graph.values[name] for name in outputs)
    if not loss.differentiable:
        raise UserError(f"the function cannot be cut: the loss of {_name(function)} does not depend on the parameters")
    if any(weight.differentiable for weight in weights):
        raise UserError(f"the function cannot be cut: the weight of {_name(function)} depends on the parameters")
    return Traced(graph, tuple(tape.operations), shapes, tape.constants, halves)


def _taped(
    function: Function, params: Tree, inputs: Sequence[Tree], names: Sequence[str]
) -> tuple[Tape, list[Operand]]:
    """Return the operations of a function, and its results."""
    tape = Tape()
    results = tape.record(jax.make_jaxpr(function)(params, *inputs), names)
    tape.prune(results)
    return tape, results


def _grown(
    function: Function, params: Tree, inputs: Sequence[Tree], split: Mapping[str, bool], tape: Tape
) -> Mapping[str, jax.ShapeDtypeStruct] | None:
    """Return all shapes with twice the samples; None if the function is another one then, or rejects them."""
    leaves, structure = jax.tree.flatten(tuple(inputs))
    halves = zip(leaves, split.values(), strict=True)
    doubled = [
        jax.ShapeDtypeStruct((2 * leaf.shape[0], *leaf.shape[1:]) if halved else leaf.shape, leaf.dtype)
        for leaf, halved in halves
    ]
    names = [*by_path(params), *split]
    try:
        other, _ = _taped(function, params, jax.tree.unflatten(structure, doubled), names)
    except (TypeError, ValueError):  # the function accepts this size of batch only
        return None
    same = [operation.makes for operation in other.operations] == [operation.makes for operation in tape.operations]
    return other.shapes if same else None


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
