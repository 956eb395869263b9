"""A request for a plan, and the problem of one pipeline that follows from it."""

import math
from dataclasses import dataclass

import numpy as np

from suite.comm.partition.device import Device
from suite.comm.partition.orders import Schedule
from suite.comm.partition.planner.stages import ADAM, FEW, Array, Costs, Problem
from suite.comm.projection.cost import compute_cost
from suite.comm.projection.network import Network, Place
from suite.comm.transport import make_entry
from suite.contract import UserError

POWERS = (1, 2, 4, 8, 16, 32, 64)  # replicas of a stage that the planner tries, in large pipelines


@dataclass(frozen=True)
class Request:
    """A request for a plan.

    Attributes:
        devices: number of devices.
        batch: samples of one step, of all devices together.
        device: the kind of device.
        network: between devices.
        stages: number of stages; None: the fastest.
        micro_batches: of one step, of all pipelines together; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        state: bytes of optimizer state for a byte of trainable parameters.
        rannc_compat: plan by RaNNC's original rules (`rannc/`). Such a plan shows what RaNNC would choose; it cannot
            be trained, because the bits would differ from those of the unmodified model.
    """

    devices: int
    batch: int
    device: Device
    network: Network
    stages: int | None = None
    micro_batches: int | None = None
    schedule: Schedule = "1f1b"
    state: float = ADAM
    rannc_compat: bool = False


def check(request: Request) -> None:
    """Reject a request that no plan can meet.

    Raises:
        UserError: naming the number that is out of range.
    """
    if request.devices < 1 or request.batch < 1:
        raise UserError("a plan needs at least one device and one sample")
    if request.stages is not None and not 1 <= request.stages <= request.devices:
        raise UserError(f"stages={request.stages}: there are {request.devices} devices; set 1 to {request.devices}")
    if request.micro_batches is not None and request.batch % request.micro_batches:
        raise UserError(f"micro_batches={request.micro_batches}: does not divide the batch of {request.batch} samples")


def check_stages(request: Request, count: int) -> None:
    """Reject more stages than there are blocks.

    Raises:
        UserError: naming the number of blocks.
    """
    if request.stages is not None and request.stages > count:
        raise UserError(
            f"stages={request.stages}: the model can be cut into at most {count} stages; set a smaller number"
        )


def pipeline_problem(table: Costs, request: Request, micro_batches: int, pipelines: int) -> Problem:
    """Return the problem of one pipeline among `pipelines` equal ones.

    Args:
        table: costs of the blocks, for the size of the micro-batch.
        request: what is planned.
        micro_batches: of the pipeline in one step.
        pipelines: number of pipelines.
    """
    network, devices = request.network, request.devices
    locals_ = min(network.ranks_per_host or devices, devices)
    one_host = locals_ == devices
    link = network.inner if one_host else network.outer  # neighbouring stages may lie on different hosts

    def send(size: Array) -> Array:
        return np.where(size > 0, link.latency + size / link.bandwidth, 0.0)

    def together(ranks: int) -> int:
        """How many replicas of a stage lie on one host."""
        if one_host:
            return ranks
        return math.gcd(locals_, ranks) if ranks == devices else 1  # a host has several stages of one pipeline

    def all_reduce(size: Array, replicas: int) -> Array:
        ranks = replicas * pipelines
        if ranks == 1:
            return np.zeros_like(size)

        def seconds(payload: int) -> float:
            item = make_entry("all_reduce", "gradients", "float32", payload, ranks)
            return compute_cost(item, Place(ranks, together(ranks)), network).seconds(network)

        unit = 2**20
        start = seconds(0)
        return start + size * ((seconds(unit) - start) / unit)

    replicas = tuple(range(1, devices + 1)) if devices // pipelines <= FEW else POWERS
    return Problem(
        costs=table,
        micro_batches=micro_batches,
        schedule=request.schedule,
        memory=request.device.memory,
        send=send,
        all_reduce=all_reduce,
        replicas=tuple(number for number in replicas if number <= devices // pipelines),
        state=request.state,
    )
