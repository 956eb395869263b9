"""Costs of one operation of a traced jax function: floating-point operations, and what it keeps for its gradient."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.extend.core import JaxprEqn, Literal, Var, jaxprs_in_params

from suite.comm.partition.graph import Parameter
from suite.comm.partition.jax.tape import Operand, Operation, describe_array, nbytes

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def count_flops(equation: JaxprEqn) -> float:
    """Floating-point operations: exact for products and convolutions; otherwise one for each element of the results.

    A `scan` counts its body for every iteration, a `while` once, and a `cond` its most expensive branch.
    """
    name = equation.primitive.name
    size = sum(math.prod(describe_array(atom.aval).shape) for atom in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = describe_array(equation.invars[0].aval).shape
        return 2.0 * size * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = describe_array(equation.invars[1].aval).shape
        channels = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * size * math.prod(kernel) / channels
    bodies = [sum(map(count_flops, body.eqns)) for body in jaxprs_in_params(equation.params)]
    if not bodies:
        return float(size)
    return max(bodies) if name == "cond" else sum(bodies) * equation.params.get("length", 1)


def operands_of(operation: Operation, shapes: Shapes) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of an operation's operands."""
    return [shapes[operand] if isinstance(operand, str) else describe_array(operand) for operand in operation.reads]


def sign_equation(operation: Operation, shapes: Shapes, moving: Sequence[int]) -> str:
    """Equal for operations that differ in values only.

    Args:
        operation: any.
        shapes: of values and parameters.
        moving: numbers of the operands with a gradient.
    """
    whole = f"{operation.equation.primitive} {operation.equation.params} {operands_of(operation, shapes)} {moving}"
    return re.sub(r" at 0x[0-9a-f]+", "", whole)  # addresses of functions; their jaxprs are in the text, too


def linearize_stage(
    operation: Operation, moving: Sequence[int], operands: Sequence[Array]
) -> tuple[list[Array], Callable[..., Any]]:
    """Return the results of an operation, and the function from their gradients to those of the operands `moving`."""

    def result(*changing: Array) -> list[Array]:
        values = list(operands)
        for number, value in zip(moving, changing, strict=True):
            values[number] = value
        return operation(values)

    return jax.vjp(result, *(operands[number] for number in moving))


class Residuals:
    """Bytes that operations keep from forward to backward, by jax's own rules of differentiation.

    A value that several operations keep counts once, at the first of them. Parameters are not counted.

    Args:
        shapes: of values and parameters.
        differentiable: names of the values and parameters that have a gradient.
    """

    def __init__(self, shapes: Shapes, differentiable: set[str]):
        self.shapes, self.differentiable = shapes, differentiable
        self.kept: set[str] = set()
        self.rules: dict[str, tuple[list[int], list[int], int]] = {}

    def saved(self, operation: Operation, parameters: Mapping[str, Parameter]) -> int:
        """Bytes that an operation keeps and no operation before it has kept."""
        moving = [number for number, name in enumerate(operation.reads) if self._moves(name)]
        if not moving or not self.differentiable & set(operation.makes):
            return 0
        key = sign_equation(operation, self.shapes, moving)
        if key not in self.rules:
            self.rules[key] = self._rule(operation, moving)
        reads, makes, new = self.rules[key]
        operands = [operation.reads[number] for number in reads]
        held = {name for name in operands if isinstance(name, str)} | {operation.makes[number] for number in makes}
        held -= self.kept | parameters.keys()
        self.kept |= held
        return new + sum(nbytes(self.shapes[name]) for name in held)

    def _moves(self, operand: Operand) -> bool:
        return isinstance(operand, str) and operand in self.differentiable

    def _rule(self, operation: Operation, moving: list[int]) -> tuple[list[int], list[int], int]:
        """Return what the operation keeps: numbers of its operands and of its results, and bytes of other arrays."""

        def kept(*operands: Array) -> tuple[list[Array], list[Array]]:
            results, back = linearize_stage(operation, moving, operands)
            return results, jax.tree.leaves(back)

        jaxpr = jax.make_jaxpr(kept)(*operands_of(operation, self.shapes)).jaxpr
        results = jaxpr.outvars[: len(operation.makes)]
        arrays = {atom for atom in jaxpr.outvars[len(operation.makes) :] if isinstance(atom, Var)}
        reads = [number for number, atom in enumerate(jaxpr.invars) if atom in arrays]
        arrays -= set(jaxpr.invars)
        makes = [number for number, atom in enumerate(results) if not isinstance(atom, Literal) and atom in arrays]
        arrays -= {results[number] for number in makes}
        return reads, makes, sum(nbytes(describe_array(atom.aval)) for atom in arrays)
