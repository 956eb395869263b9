"""Partitions an unmodified jax function into the stages of a pipeline, with replicas of each stage."""

import dataclasses
from collections.abc import Sequence

import jax

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.jax.alone import micro_batch, run
from suite.comm.partition.jax.pipeline import Pipeline
from suite.comm.partition.jax.processes import agree_on
from suite.comm.partition.jax.profile import profile_stages
from suite.comm.partition.jax.stages import Device as JaxDevice
from suite.comm.partition.jax.tape import Tree, by_path, describe_array
from suite.comm.partition.jax.trace import Function, Traced, trace_function
from suite.comm.partition.orders import Schedule
from suite.comm.partition.peers import PeerLost
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan as planned
from suite.comm.projection.network import Network
from suite.contract import UserError

HOST_MEMORY = 2**34  # bytes of a device whose memory is unknown
FIRST = 4  # micro-batches for each device that a function is traced with while their number is not known


def plan(
    function: Function,
    params: Tree,
    inputs: Sequence[Tree],
    *,
    devices: int,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: Schedule = "1f1b",
    memory: float = HOST_MEMORY,
    device: Device | None = None,
    network: Network = ONE_HOST,
    rannc_compat: bool = False,
) -> Plan:
    """Plan the stages of a function; the devices need not exist.

    Args:
        function: as for `partition`.
        params: a pytree of arrays, or of `jax.ShapeDtypeStruct`.
        inputs: of the whole batch of a step: pytrees of arrays or of `jax.ShapeDtypeStruct`. The first array with axes
            has the samples along axis 0; arrays of another length are the same for all micro-batches.
        devices: number of devices.
        stages: number of stages; None: the fastest.
        micro_batches: number of micro-batches of a step; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        memory: bytes of one device, if `device` is None.
        device: memory and speed of one device; None: every operation is measured on this machine.
        network: between the devices.
        rannc_compat: choose the stages by RaNNC's original rules, for comparison; such a plan is not trained.

    Returns:
        The plan; `print` shows it as a table.

    Raises:
        UserError: if the function cannot be cut or does not fit.

    Example:
        >>> print(plan(loss, params, (ids, mask, targets), devices=8, device=Device(32e9, 15.7e12, 9e11)))
    """
    batch = count_samples(inputs)
    kind = device or measure_costs(memory)
    request = Request(devices, batch, kind, network, stages, micro_batches, schedule, rannc_compat=rannc_compat)
    return _planned(function, params, inputs, request, measure=device is None)


def partition(
    function: Function,
    params: Tree,
    inputs: Sequence[Tree],
    *,
    devices: Sequence[JaxDevice] | None = None,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: Schedule = "1f1b",
    memory: float = HOST_MEMORY,
    device: Device | None = None,
    network: Network = ONE_HOST,
    channels: Channels | None = None,
    activations: Codec | None = None,
    seed: int = 0,
) -> Pipeline:
    """Cut a function over devices of one process, or of all processes of `jax.distributed`.

    Every process calls this with the same function. Process 0 plans, and its plan is used. A PRNG key without axes
    among the inputs is folded with the number of each micro-batch.

    Args:
        function: (params, *inputs) to a scalar loss, the mean over samples; or to two scalars, the sum of the losses
            and the sum of their weights, whose quotient over all micro-batches is the loss.
        params: a pytree of arrays; the same on every process.
        inputs: of the whole batch of a step, as for `plan`.
        devices: of all processes; None: `jax.devices()` in the order of processes.
        stages: number of stages; None: the fastest.
        micro_batches: number of micro-batches of a step; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        memory: bytes of one device, if `device` is None.
        device: memory and speed of one device, as for `plan`.
        network: between the devices, for the plan.
        channels: how gradients are averaged over replicas of a stage; None: exactly, in their own type.
        activations: encodes the float32 and float64 values that cross a cut, and their gradients; None: they keep their
            bits.
        seed: of codecs that draw random numbers.

    Returns:
        The pipeline. `pipeline.step(*inputs)` trains one step up to the gradients.

    Raises:
        UserError: if the function cannot be cut or does not fit.

    Example:
        >>> pipeline = partition(loss, params, (ids, mask, targets), micro_batches=8)
        >>> optimizer = optax.adamw(1e-3)
        >>> state = optimizer.init(pipeline.parameters)
        >>> value = pipeline.step(ids, mask, targets)
        >>> updates, state = optimizer.update(pipeline.gradients, state, pipeline.parameters)
        >>> pipeline.parameters = optax.apply_updates(pipeline.parameters, updates)
    """
    chosen = list(devices or sorted(jax.devices(), key=lambda one: (one.process_index, one.id)))
    batch = count_samples(inputs)
    request = Request(len(chosen), batch, device or measure_costs(memory), network, stages, micro_batches, schedule)
    result = agree_on(lambda: _planned(function, params, inputs, request, measure=device is None))
    traced = _traced(function, params, inputs, result.samples)
    return Pipeline(traced, result, params, chosen, channels=channels, activations=activations, seed=seed)


def measure_costs(memory: float) -> Device:
    """A device whose operations are measured, so that its speeds are not used."""
    return Device(memory, 1.0, 1.0)


def count_samples(inputs: Sequence[Tree]) -> int:
    """Return the number of samples of a batch: the length of its first array with axes.

    Raises:
        UserError: if there is none.
    """
    shapes = [describe_array(leaf).shape for leaf in jax.tree.leaves(tuple(inputs))]
    if not any(shapes):
        raise UserError("inputs: no array with the samples along axis 0; pass a tuple, for example (ids, mask)")
    return next(shape[0] for shape in shapes if shape)


def _planned(function: Function, params: Tree, inputs: Sequence[Tree], request: Request, measure: bool) -> Plan:
    """Return the plan of a function that was traced with micro-batches of the planned size."""
    count = request.micro_batches
    if count and request.batch % count:
        raise UserError(f"micro_batches={count}: does not divide the batch of {request.batch} samples")
    wanted = min(request.batch, FIRST * request.devices)
    count = count or next(number for number in range(wanted, 0, -1) if request.batch % number == 0)
    traced = _traced(function, params, inputs, request.batch // count)
    result = planned(profile_stages(traced) if measure else traced.graph, request)
    if result.samples == traced.graph.samples:
        return result
    again = dataclasses.replace(request, micro_batches=result.pipelines * result.micro_batches)
    return _planned(function, params, inputs, again, measure)  # other sizes may have other operations


def _traced(function: Function, params: Tree, inputs: Sequence[Tree], size: int) -> Traced:
    """Return the function traced with the first `size` samples of a batch."""
    batch = count_samples(inputs)
    leaves, structure = jax.tree.flatten(jax.tree.map(describe_array, tuple(inputs)))
    split = [leaf.shape[:1] == (batch,) for leaf in leaves]
    parts = [
        jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) if halved else leaf
        for leaf, halved in zip(leaves, split, strict=True)
    ]
    return trace_function(
        function, jax.tree.map(describe_array, params), jax.tree.unflatten(structure, parts), split=split
    )


__all__ = [
    "Device",
    "Network",
    "PeerLost",
    "Pipeline",
    "Plan",
    "Traced",
    "by_path",
    "micro_batch",
    "partition",
    "plan",
    "run",
]
