"""Plans of the functions in `jax_models.py`, and what the unmodified functions compute."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax_models import Case

from suite.comm.partition.device import Device
from suite.comm.partition.jax.alone import micro_batch
from suite.comm.partition.jax.tape import by_path
from suite.comm.partition.jax.trace import Traced, trace_function
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.projection.network import Level, Network

DEVICE = Device(memory=2**34, flops=1e9, bandwidth=1e10, overhead=1e-7)
NETWORK = Network("test", Level(1e-6, 1e10), Level(1e-6, 1e10), None, "ring", 1e9)
MICRO_BATCHES = 4


def traced(case: Case, count: int = MICRO_BATCHES) -> Traced:
    """Trace the function with one micro-batch; arrays with the batch's samples along axis 0 are split."""
    leaves, structure = jax.tree.flatten(case.inputs)
    length = max(np.shape(leaf)[0] for leaf in leaves if np.shape(leaf))
    split = [np.shape(leaf)[:1] == (length,) for leaf in leaves]
    parts = [leaf[: length // count] if halved else leaf for leaf, halved in zip(leaves, split, strict=True)]
    return trace_function(case.function, case.params, jax.tree.unflatten(structure, parts), split=split)


def planned(graph: Any, stages: int, recompute: bool, schedule: Any = "1f1b", devices: int | None = None) -> Plan:
    """A plan; the planner chooses recomputation only if memory is short, so set it here."""
    batch = graph.samples * MICRO_BATCHES
    request = Request(devices or stages, batch, DEVICE, NETWORK, stages, MICRO_BATCHES, schedule)
    result = plan(graph, request)
    return dataclasses.replace(
        result, stages=tuple(dataclasses.replace(stage, recompute=recompute) for stage in result.stages)
    )


def whole(case: Case, made: Traced, count: int = MICRO_BATCHES) -> tuple[float, dict[str, np.ndarray]]:
    """Compute the mean loss and gradients of the unmodified function over the micro-batches."""
    structure = jax.tree.structure(case.inputs)
    grad = jax.jit(jax.value_and_grad(case.function, allow_int=True))
    losses, total = [], None
    for number in range(count):
        parts = micro_batch(made, case.inputs, number, count)
        loss, grads = grad(case.params, *jax.tree.unflatten(structure, list(parts.values())))
        losses.append(float(loss))
        named = {name: np.asarray(value) for name, value in by_path(grads).items() if value.dtype != jax.dtypes.float0}
        total = named if total is None else {name: total[name] + named[name] for name in named}
    assert total
    return float(np.mean(losses)), {name: value / count for name, value in total.items()}


def distance(found: dict[str, Any], expected: dict[str, np.ndarray]) -> float:
    """Return the largest error of a gradient over the norm of all."""
    assert list(found) == list(expected)
    norm = np.sqrt(sum((value.astype(float) ** 2).sum() for value in expected.values()))
    return max(float(np.linalg.norm(np.asarray(found[name]) - expected[name])) / norm for name in expected)
