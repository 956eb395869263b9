"""Operations of a jax function, from its jaxpr.

Calls of jitted functions are inlined, so that the function can be cut inside them; shardings and donations of these
calls are ignored. Operations with their own rules stay whole: `custom_jvp`, `custom_vjp`, `checkpoint`, `scan`,
`while` and `cond`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

Tree = Any  # a pytree of arrays, as in optax
Operand = str | np.ndarray  # the name of a value or parameter, or a literal
INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # primitive: parameter with its jaxpr


@dataclass(frozen=True, eq=False)
class Operation:
    """One equation of the jaxpr, with names in place of variables.

    Attributes:
        equation: what is computed.
        reads: its operands.
        makes: names of its results.
        scope: `jax.named_scope`s around it, with slashes; "" outside all.
    """

    equation: JaxprEqn
    reads: tuple[Operand, ...]
    makes: tuple[str, ...]
    scope: str

    def __call__(self, values: Sequence[Array | np.ndarray]) -> list[Array]:
        """Compute the results from the values of `reads`."""
        primitive = self.equation.primitive
        bound = primitive.get_bind_params(self.equation.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)  # a tuple before jax 0.10
        with self.equation.ctx.manager:
            results = primitive.bind(*functions, *values, **params)
        return list(results) if primitive.multiple_results else [results]


@dataclass
class Tape:
    """Operations of a jaxpr and of all that it calls, in program order.

    Attributes:
        operations: that were recorded.
        constants: arrays of the jaxprs, by name.
        shapes: of values and constants, by name.
    """

    operations: list[Operation] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, jax.ShapeDtypeStruct] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)

    def record(self, closed: ClosedJaxpr, arguments: Sequence[Operand], scope: str = "") -> list[Operand]:
        """Record a call; return its results."""
        operands: dict[Var, Operand] = dict(zip(closed.jaxpr.invars, arguments, strict=True))
        operands |= zip(closed.jaxpr.constvars, map(self._constant, closed.consts), strict=True)

        def operand(atom: Var | Literal) -> Operand:
            return (
                np.asarray(atom.val, describe_array(atom.aval).dtype) if isinstance(atom, Literal) else operands[atom]
            )

        for equation in closed.jaxpr.eqns:
            reads = [operand(atom) for atom in equation.invars]
            inner = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
            called = INLINED.get(equation.primitive.name)
            if called:
                results = self.record(equation.params[called], reads, inner)
            else:
                results = self._operation(equation, reads, inner)
            operands |= zip(equation.outvars, results, strict=True)
        return [operand(atom) for atom in closed.jaxpr.outvars]

    def _operation(self, equation: JaxprEqn, reads: Sequence[Operand], scope: str) -> Sequence[str]:
        stem = f"%{equation.primitive.name}_{len(self.operations)}"
        count = len(equation.outvars)
        makes = (stem,) if count == 1 else tuple(f"{stem}.{number}" for number in range(count))
        self.operations.append(Operation(equation, tuple(reads), makes, scope))
        self.shapes |= {name: describe_array(atom.aval) for name, atom in zip(makes, equation.outvars, strict=True)}
        return makes

    def prune(self, results: Sequence[Operand]) -> None:
        """Remove operations that the results do not need and that have no effect, such as printing."""
        needed = {operand for operand in results if isinstance(operand, str)}
        kept = []
        for operation in reversed(self.operations):
            if needed & set(operation.makes) or operation.equation.effects:
                needed |= {operand for operand in operation.reads if isinstance(operand, str)}
                kept.append(operation)
        self.operations = kept[::-1]

    def _constant(self, value: Array) -> str:
        if id(value) not in self.known:
            name = self.known[id(value)] = f"%constant_{len(self.constants)}"
            self.constants[name] = value
            self.shapes[name] = describe_array(value)
        return self.known[id(value)]


def by_path(tree: Tree, prefix: str = "") -> dict[str, Array]:
    """Return the leaves of a pytree by path, such as "layers/0/w"; a leaf without a path is "params"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = (jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    return {prefix + (name or "params"): leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def describe_array(value: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and type of an array, a number or an abstract value."""
    shaped = jax.typeof(value) if isinstance(value, int | float | complex) else value
    return jax.ShapeDtypeStruct(shaped.shape, shaped.dtype)


def nbytes(shape: jax.ShapeDtypeStruct) -> int:
    """Return the size of an array."""
    return math.prod(shape.shape) * shape.dtype.itemsize
