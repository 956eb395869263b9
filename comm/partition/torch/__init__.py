"""Partitions an unmodified `nn.Module` into the stages of a pipeline, with replicas of each stage."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.orders import Schedule
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan as planned
from suite.comm.partition.torch.batches import Batched, find_samples, take_samples
from suite.comm.partition.torch.check import Check
from suite.comm.partition.torch.pipeline import Pipeline
from suite.comm.partition.torch.profile import profile_stages
from suite.comm.partition.torch.trace import Inputs, Loss, Traced, WithLoss, trace_model
from suite.comm.projection.network import Network
from suite.comm.transport import torch_messages
from suite.contract import UserError

HOST_MEMORY = 2**34  # bytes of a device whose memory is unknown


def plan(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    *,
    loss: Loss | None = None,
    batched: Batched = None,
    devices: int,
    device: Device,
    network: Network = ONE_HOST,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: Schedule = "1f1b",
    rannc_compat: bool = False,
) -> Plan:
    """Plan the stages of a model without running it; the devices need not exist.

    The model and the inputs may be on the `meta` device, so that they need no memory.

    Args:
        model: in training mode.
        inputs: of the model with the whole batch of a step: positional arguments, or keyword arguments as a dictionary.
        targets: second argument of `loss`.
        loss: (outputs, targets) to a scalar, the mean over samples, or to the losses' sum and weight, whose quotient
            over all micro-batches is the loss; None if the model returns it.
        batched: for each input (or container of inputs), whether its tensors have the samples along axis 0; None: those
            as long as the first tensor have. Other inputs are the same for every micro-batch.
        devices: number of devices.
        device: memory and speed of one device.
        network: between the devices.
        stages: number of stages; None: the fastest.
        micro_batches: number of micro-batches of a step; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        rannc_compat: choose the stages by RaNNC's original rules, for comparison; such a plan is not trained.

    Returns:
        The plan; `print` shows it as a table.

    Raises:
        UserError: if the model cannot be cut or does not fit.

    Example:
        >>> print(plan(model, (ids, mask), labels, loss=loss, devices=8, device=Device(32e9, 15.7e12, 9e11)))
    """
    split, count = find_samples(inputs, targets, batched)
    size = min(count, 2)  # not 1, because BatchNorm cannot train on one sample
    if micro_batches and count % micro_batches == 0:
        size = count // micro_batches
    traced = trace_model(model, *take_samples((inputs, targets), split, slice(size)), loss=loss, split=split)
    request = Request(devices, count, device, network, stages, micro_batches, schedule, rannc_compat=rannc_compat)
    return planned(traced.graph, request)


def partition(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    *,
    loss: Loss | None = None,
    batched: Batched = None,
    micro_batches: int,
    stages: int | None = None,
    schedule: Schedule = "1f1b",
    memory: float = HOST_MEMORY,
    network: Network = ONE_HOST,
    device: torch.device | str = "cpu",
    channels: Channels | None = None,
    activations: Codec | None = None,
    speeds: Device | None = None,
    outputs: bool = False,
    average_buffers: bool = False,
    check: bool = True,
    seed: int = 0,
    deadline: float | None = None,
) -> Pipeline:
    """Cut a model over all processes of `torch.distributed`, and return this process's stage.

    Every process calls this with the same unmodified model. Operators are timed on rank 0's device, and rank 0's
    plan is used. Afterwards, each process needs only the parameters of its own stage.

    Args:
        model: in training mode; the same weights on every process.
        inputs: of the model with the whole batch of a step: positional arguments, or keyword arguments as a dictionary.
        targets: second argument of `loss`.
        loss: (outputs, targets) to a scalar, the mean over samples, or to the losses' sum and weight, whose quotient
            over all micro-batches is the loss; None if the model returns it.
        batched: for each input (or container of inputs), whether its tensors have the samples along axis 0; None: those
            as long as the first tensor have. Other inputs are the same for every micro-batch.
        micro_batches: number of micro-batches of a step.
        stages: number of stages; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        memory: bytes of one device.
        network: between the devices, for the plan.
        device: of this process.
        channels: how gradients are averaged over the replicas of a stage; None: exactly, in their own type.
        activations: encodes the float32 and float64 values that cross a cut, and their gradients; None: they keep their
            bits. The backward pass treats the codec as the identity.
        speeds: of a device, for the plan, which is then the same in every run; None: operators are timed.
        outputs: keep the model's outputs, in `pipeline.outputs` of the last stage.
        average_buffers: every micro-batch starts from the step's old buffers, such as BatchNorm's running statistics,
            and the step leaves their means over all micro-batches and replicas; otherwise, micro-batches change them
            one after another, and those of replicas differ.
        check: compare the stages with a copy of the model on one micro-batch, if twice the model fits into `memory`;
            `pipeline.checked` says the result.
        seed: of dropout and the like, and of codecs that draw random numbers.
        deadline: seconds that a process waits for another; None: torch's default.

    Returns:
        The pipeline. `pipeline.step(inputs, targets)` trains one step up to the gradients.

    Raises:
        UserError: if the model cannot be cut or does not fit, or if the stages compute something else than the model.

    Example:
        >>> torch.distributed.init_process_group("gloo")
        >>> pipeline = partition(model, (ids, mask), labels, loss=loss, micro_batches=8)
        >>> optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
        >>> value = pipeline.step((ids, mask), labels)
        >>> optimizer.step()
    """
    device, batch = torch.device(device), (inputs, targets)
    split, count = find_samples(inputs, targets, batched)
    if count % micro_batches:
        raise UserError(f"micro_batches={micro_batches}: does not divide the batch of {count} samples")
    compared = Check(WithLoss(model, loss, outputs), memory) if check and dist.get_rank() == 0 else None
    first = take_samples(batch, split, slice(count // micro_batches))
    traced = trace_model(model, *first, loss=loss, outputs=outputs, split=split)

    def measured() -> tuple[Plan, str]:
        graph = traced.graph if speeds else profile_stages(traced, device)
        kind = speeds or Device(memory, 1.0, 1.0)  # where every operator is timed, speeds are not used
        request = Request(dist.get_world_size(), count, kind, network, stages, micro_batches, schedule)
        made = planned(graph, request)
        return made, compared.compare(traced, made, batch, split, seed) if compared else "not checked: check=False"

    made, checked = agree_on(measured)
    options = {"channels": channels, "activations": activations, "seed": seed, "deadline": deadline}
    options["average_buffers"] = average_buffers
    return Pipeline(traced, made, device, checked=checked, **options)


def agree_on(make: Callable[[], tuple[Plan, str]]) -> tuple[Plan, str]:
    """Rank 0's plan and what it checked, on every rank; its error, too."""
    answer: tuple[Plan, str] | str = ""
    cause: Exception | None = None
    if dist.get_rank() == 0:
        try:
            answer = make()
        except Exception as error:  # or the other ranks would wait
            cause, answer = error, str(error) if isinstance(error, UserError) else f"rank 0 could not plan: {error!r}"
    answer = torch_messages.broadcast(answer)
    if isinstance(answer, str):
        raise UserError(answer) from cause
    return answer


__all__ = ["Device", "Network", "Pipeline", "Plan", "Traced", "partition", "plan"]
