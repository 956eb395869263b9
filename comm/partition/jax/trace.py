"""Reads the graph of an unmodified jax function.

Nothing is computed: parameters and inputs may be `jax.ShapeDtypeStruct`s.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.comm.partition.draws import reject_draws
from suite.comm.partition.graph import Graph
from suite.comm.partition.jax.graph import plan_graph
from suite.comm.partition.jax.tape import Operand, Operation, Tape, Tree, by_path, describe_array
from suite.contract import UserError
from suite.differences import find_difference

# (params, *inputs) to a loss, to (sum, weight), or to (sum, weight, new values of some of the params)
Function = Callable[..., Array | tuple[Array, Array] | tuple[Array, Array, Tree]]


@dataclass(frozen=True)
class Traced:
    """A function's graph, for the planner and for jax.

    Attributes:
        graph: what the planner cuts.
        operations: in the order of `graph.nodes`.
        shapes: shape and type of each value and parameter, by name.
        constants: arrays that the function contains, by name; they are parameters of the graph.
        split: of each input, whether its axis 0 has the samples; other inputs are the same for all micro-batches.
        changes: of each buffer, the name of its new value.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    constants: Mapping[str, Array]
    split: Mapping[str, bool]
    changes: Mapping[str, str]


def trace_function(
    function: Function, params: Tree, inputs: Sequence[Tree], *, split: Sequence[bool] | None = None
) -> Traced:
    """Trace a function with one micro-batch.

    Args:
        function: (params, *inputs) to a scalar loss, the mean over samples; or to two scalars, the sum of the losses
            and the sum of their weights; or to these two and the new values of buffers, a part of the tree `params`.
        params: a pytree; floating-point arrays are trained, unless the function returns new values for them.
        inputs: pytrees, with the samples of one micro-batch along axis 0.
        split: of each array of the inputs, whether its axis 0 has the samples; None: if it is as long as that of the
            first array.

    Raises:
        UserError: if the function does not return a floating-point scalar that depends on the parameters, or also a
            weight that does not; or if it does not compute a buffer's new value, of the same shape and type.
    """
    named = {name: describe_array(leaf) for name, leaf in by_path(params).items()}
    leaves = {name: describe_array(leaf) for name, leaf in by_path(tuple(inputs), "%inputs/").items()}
    samples = next((leaf.shape[0] for leaf in leaves.values() if leaf.shape), 1)
    if split is None:
        split = [bool(leaf.shape) and leaf.shape[0] == samples for leaf in leaves.values()]
    halves = dict(zip(leaves, split, strict=True))
    with reject_draws("jax.random and a key among the inputs"):
        tape, results, changes = _taped(function, params, inputs, [*named, *leaves])
    _compare(tape, _taped(function, params, inputs, [*named, *leaves])[0], _name(function))
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
    buffers = {name: value for name, value in changes.items() if isinstance(value, str)}
    for name in changes:
        value = buffers.get(name, name)
        floating = name in named and jnp.issubdtype(named[name].dtype, jnp.floating)
        if not floating or value in given or shapes[value] != named[name]:
            raise UserError(
                f"{fault} must compute the new value of {name}, with the shape and the floating-point type that it has "
                "among the parameters"
            )
    graph = plan_graph(tape, shapes, halves, tuple(named), outputs, samples, grown, buffers)
    loss, *weights = (graph.values[name] for name in outputs)
    if not loss.differentiable:
        raise UserError(f"the function cannot be cut: the loss of {_name(function)} does not depend on the parameters")
    if any(weight.differentiable for weight in weights):
        raise UserError(f"the function cannot be cut: the weight of {_name(function)} depends on the parameters")
    return Traced(graph, tuple(tape.operations), shapes, tape.constants, halves, buffers)


def _taped(
    function: Function, params: Tree, inputs: Sequence[Tree], names: Sequence[str]
) -> tuple[Tape, list[Operand], dict[str, Operand]]:
    """Return the operations of a function, its results, and the new values of buffers."""
    tape = Tape()
    traced = jax.make_jaxpr(lambda *arguments: function(*arguments), return_shape=True)  # jax keeps traces by function
    jaxpr, shape = traced(params, *inputs)
    results = tape.record(jaxpr, names)
    tape.prune(results)
    buffers = list(by_path(shape[2])) if isinstance(shape, tuple) and len(shape) == 3 else []
    first = len(results) - len(buffers)
    return tape, results[:first], dict(zip(buffers, results[first:], strict=True))


def _compare(tape: Tape, again: Tape, name: str) -> None:
    """Compare a function's operations with those of a second trace.

    Raises:
        UserError: naming the first difference: the function depends on Python's state.
    """
    first, second = (dict(_describe(one)) for one in (tape, again))
    difference = find_difference(first, second)
    if difference:
        raise UserError(
            f"the function cannot be cut: {name} is another one when it is traced again: {difference}; it depends on "
            "Python's state: pass what changes as an input"
        )


def _describe(tape: Tape) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what a trace keeps of Python, by the operation that has it: constants, literals and parameters."""
    for name, constant in tape.constants.items():
        yield name, np.asarray(jax.random.key_data(constant) if _is_key(constant) else constant)
    for number, operation in enumerate(tape.operations):
        equation = operation.equation
        place = f"operation {number} ({equation.primitive.name}{operation.scope and f' in {operation.scope}'})"
        yield place, np.frombuffer(re.sub("0x[0-9a-f]+", "", str(equation.params)).encode(), np.uint8)
        for position, operand in enumerate(operation.reads):
            if not isinstance(operand, str):
                yield f"operand {position} of {place}", operand


def _is_key(value: Array) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


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
        other, *_ = _taped(function, params, jax.tree.unflatten(structure, doubled), names)
    except (TypeError, ValueError):  # the function accepts this size of batch only
        return None
    same = [operation.makes for operation in other.operations] == [operation.makes for operation in tape.operations]
    return other.shapes if same else None


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
