"""Planner's graph of a traced jax function: dependencies and costs of its operations."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from suite.comm.partition.graph import Graph, Node, Parameter, Value
from suite.comm.partition.jax.costs import Residuals, Shapes, count_flops
from suite.comm.partition.jax.tape import Operation, Tape, nbytes

RANDOM = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


class Dependencies:
    """Dependencies of each value.

    Args:
        operations: in program order.
        shapes: of values and parameters.
        split: the inputs, and whether they have samples.
        trainable: names of the trainable parameters.
    """

    def __init__(self, operations: Sequence[Operation], shapes: Shapes, split: Mapping[str, bool], trainable: set[str]):
        self.differentiable, self.given = set(trainable), set(split)
        self.sampled = {name for name, halved in split.items() if halved}
        for operation in operations:
            reads = name_values(operation)
            for depends in (self.given, self.sampled):
                if reads & depends:
                    depends.update(operation.makes)
            if reads & self.differentiable and operation.equation.primitive.name != "stop_gradient":
                self.differentiable |= {name for name in operation.makes if is_inexact(shapes[name])}


def name_values(operation: Operation) -> set[str]:
    """Return the values and parameters that an operation reads."""
    return {operand for operand in operation.reads if isinstance(operand, str)}


def is_inexact(shape: jax.ShapeDtypeStruct) -> bool:
    """Return whether an array can have a gradient."""
    return jnp.issubdtype(shape.dtype, jnp.inexact)


def plan_graph(
    tape: Tape,
    shapes: Shapes,
    split: Mapping[str, bool],
    params: tuple[str, ...],
    outputs: tuple[str, ...],
    samples: int,
    grown: Shapes | None,
    changes: Mapping[str, str],
) -> Graph:
    """Return the planner's graph.

    Args:
        tape: the operations.
        shapes: of values, inputs, parameters and constants.
        split: the inputs, and whether they have samples.
        params: names of the parameters.
        outputs: names of the results.
        samples: of the micro-batch.
        grown: the shapes of values with twice the samples; None if they are unknown: then all values that depend on an
            input with samples count as batched.
        changes: of each buffer, the name of its new value.
    """
    trainable = {name for name in params if is_inexact(shapes[name]) and name not in changes}
    depends = Dependencies(tape.operations, shapes, split, trainable)
    parameters = {name: Parameter(nbytes(shapes[name]), name in trainable) for name in (*params, *tape.constants)}

    def value(name: str) -> Value:
        if name in split:
            return Value(nbytes(shapes[name]), split[name])
        batched = grown[name].shape != shapes[name].shape if grown else name in depends.sampled
        return Value(nbytes(shapes[name]), batched, name in depends.differentiable)

    makes = [name for operation in tape.operations for name in operation.makes]
    values = {name: value(name) for name in (*split, *makes)}
    residuals = Residuals(shapes, depends.differentiable)
    nodes: list[Node] = []
    for operation in tape.operations:
        reads = list(dict.fromkeys(operand for operand in operation.reads if isinstance(operand, str)))
        primitive = operation.equation.primitive.name
        inputs = tuple(name for name in reads if name in values)
        changed = tuple(name for name, value in changes.items() if value in operation.makes)
        nodes.append(
            Node(
                name=operation.makes[0] if operation.makes else f"%{primitive}_{len(nodes)}",
                operation=primitive,
                layer=_layer(operation, parameters, nodes),
                inputs=inputs,
                outputs=operation.makes,
                parameters=tuple(dict.fromkeys([*(name for name in reads if name in parameters), *changed])),
                flops=count_flops(operation.equation),
                traffic=sum(values[name].nbytes for name in (*inputs, *operation.makes)),
                saved=residuals.saved(operation, parameters),
                random=primitive in RANDOM and not set(reads) & depends.given,
                changes=changed,
            )
        )
    first = next((node.layer for node in nodes if node.layer), "")
    nodes = [dataclasses.replace(node, layer=node.layer or first) for node in nodes]
    return Graph(samples, tuple(nodes), values, tuple(split), outputs, parameters)


def _layer(operation: Operation, parameters: Mapping[str, Parameter], before: Sequence[Node]) -> str:
    """Return an operation's scope, else the path of a parameter that it reads, else the layer before it."""
    if operation.scope:
        return operation.scope
    own = [name for name in operation.reads if isinstance(name, str) and name in parameters and name[0] != "%"]
    if own:
        return own[0].rpartition("/")[0] or own[0].rpartition(".")[0] or own[0]
    return before[-1].layer if before else ""
