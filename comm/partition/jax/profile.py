"""Measures how long each operation of a traced jax function takes on a device."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.comm.partition.graph import Graph
from suite.comm.partition.jax.costs import linearize_stage, operands_of, sign_equation
from suite.comm.partition.jax.tape import Operation
from suite.comm.partition.jax.trace import Traced

REPEATS = 5  # measurements of each operation; the result is their median
SHORTEST = 1e-3  # seconds that one measurement takes at least, so that the clock's resolution does not matter


def profile_stages(traced: Traced) -> Graph:
    """Return the function's graph with the seconds of each operation on jax's default device.

    Operations that differ in values only are measured once, each compiled alone. The time of a call that computes
    almost nothing is subtracted. Operands are random numbers (integers are 0), so that parameters need not exist.
    """
    values, parameters = traced.graph.values, traced.graph.parameters
    gradients = {name for name, value in values.items() if value.differentiable}
    gradients |= {name for name, parameter in parameters.items() if parameter.trainable}
    overhead = _timed(jax.jit(lambda value: value + 1), jnp.zeros(()))
    seconds: dict[str, tuple[float, float]] = {}
    nodes = []
    for node, operation in zip(traced.graph.nodes, traced.operations, strict=True):
        moving = [number for number, name in enumerate(operation.reads) if isinstance(name, str) and name in gradients]
        moving = moving if gradients & set(operation.makes) else []
        key = sign_equation(operation, traced.shapes, moving)
        if key not in seconds:
            forward, backward = _measured(operation, moving, traced)
            seconds[key] = max(forward - overhead, 0.0), max(backward - overhead, 0.0)
        nodes.append(dataclasses.replace(node, seconds=seconds[key]))
    return dataclasses.replace(traced.graph, nodes=tuple(nodes))


def _measured(operation: Operation, moving: list[int], traced: Traced) -> tuple[float, float]:
    """Seconds of an operation, (forward, backward)."""
    operands = [_random(shape) for shape in operands_of(operation, traced.shapes)]
    forward = _timed(jax.jit(operation), operands)
    if not moving:
        return forward, 0.0
    results, back = jax.jit(lambda operands: linearize_stage(operation, moving, operands))(operands)
    grads = [_gradient(result) for result in results]
    return forward, _timed(jax.jit(lambda back, grads: back(grads)), back, grads)


def _random(shape: jax.ShapeDtypeStruct) -> Array:
    """An array of a shape: random floating-point numbers, integers 0, or copies of one key."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), shape.shape)
    if jnp.issubdtype(shape.dtype, jnp.inexact):
        return jax.random.normal(jax.random.key(0), shape.shape).astype(shape.dtype)
    return jnp.zeros(shape.shape, shape.dtype)


def _gradient(result: Array) -> Array | np.ndarray:
    """A gradient of a result; jax wants one of type float0 for integers."""
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.ones_like(result)
    return np.zeros(result.shape, jax.dtypes.float0)


def _timed(work: Callable[..., Any], *operands: Any) -> float:
    """Median seconds of one call."""

    def calls(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(work(*operands))
        return time.perf_counter() - began

    calls(1)
    count = max(1, round(SHORTEST / max(calls(1), 1e-7)))
    return statistics.median(calls(count) / count for _ in range(REPEATS))
