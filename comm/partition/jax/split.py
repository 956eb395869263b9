"""Cuts a traced jax function into the stages of a plan: one pure function each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array, lax

from suite.comm.partition.jax.tape import Operation
from suite.comm.partition.jax.trace import Traced
from suite.comm.partition.plan import Plan

Named = Mapping[str, Array]


@dataclass(frozen=True)
class Part:
    """Function of one stage.

    Attributes:
        operations: in program order.
        trainable: names of the parameters with a gradient that it reads. The first stage also has all that none reads.
        fixed: names of the other parameters and constants that it reads.
        inputs: names of the inputs that it reads; every stage receives them directly.
        receives: names of the values from the previous stage, in order.
        sends: names of the values for the next stage, in order; the function's results for the last stage.
        changes: of each buffer that it changes, the name of its new value; these buffers are in `fixed`.
    """

    operations: tuple[Operation, ...]
    trainable: tuple[str, ...]
    fixed: tuple[str, ...]
    inputs: tuple[str, ...]
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    changes: Mapping[str, str]

    def __call__(
        self, parameters: Named, inputs: Named, received: Sequence[Array]
    ) -> tuple[list[Array], dict[str, Array]]:
        """Return the values for the next stage, and the new values of buffers.

        Args:
            parameters: `trainable` and `fixed`.
            inputs: of the micro-batch; at least `inputs`.
            received: the values of `receives`.
        """
        values: dict[str, Array] = {**parameters, **inputs, **dict(zip(self.receives, received, strict=True))}
        for operation in self.operations:
            operands = [values[name] if isinstance(name, str) else name for name in operation.reads]
            values |= zip(operation.makes, operation(operands), strict=True)
        return [_strong(values[name]) for name in self.sends], {
            name: _strong(values[value]) for name, value in self.changes.items()
        }


def _strong(value: Array) -> Array:
    """Return the value without jax's weak type, which a message would lose and which derivatives may depend on."""
    return lax.convert_element_type(value, value.dtype) if jax.typeof(value).weak_type else value


def split_graph(traced: Traced, plan: Plan) -> list[Part]:
    """Return the functions of a plan's stages.

    A parameter that several stages read is in `trainable` of each; the first of them owns it.
    """
    graph = traced.graph
    ends = [*(stage.receives for stage in plan.stages[1:]), graph.outputs]
    nodes = [graph.with_results(stage.nodes, sent) for stage, sent in zip(plan.stages, ends, strict=True)]
    operations = [tuple(traced.operations[node] for node in own) for own in nodes]
    changes = [_find_changes(traced, own) for own in operations]
    read = [_reads(own) | changed.keys() for own, changed in zip(operations, changes, strict=True)]
    unread = dict.fromkeys(graph.parameters.keys() - set().union(*read))
    parts = []
    for number, stage in enumerate(plan.stages):
        known = [name for name in graph.parameters if name in read[number] or (not number and name in unread)]
        parts.append(
            Part(
                operations=operations[number],
                trainable=tuple(name for name in known if graph.parameters[name].trainable),
                fixed=tuple(name for name in known if not graph.parameters[name].trainable),
                inputs=tuple(name for name in graph.inputs if name in read[number]),
                receives=stage.receives,
                sends=ends[number],
                changes=changes[number],
            )
        )
    return parts


def _find_changes(traced: Traced, operations: Sequence[Operation]) -> dict[str, str]:
    """Return the buffers whose new values some operations make, with the names of these values."""
    makes = {name for operation in operations for name in operation.makes}
    return {name: value for name, value in traced.changes.items() if value in makes}


def _reads(operations: Sequence[Operation]) -> set[str]:
    return {operand for operation in operations for operand in operation.reads if not isinstance(operand, np.ndarray)}
