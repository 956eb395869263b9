"""All stages in one process, one after another: what a pipeline computes, without communication."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from suite.comm.partition.plan import Plan
from suite.comm.partition.torch_rehearsal import rehearse
from suite.comm.partition.torch_split import Part, split
from suite.comm.partition.torch_stage import Stage, seeded
from suite.comm.partition.torch_trace import Traced

CPU = torch.device("cpu")


def owners(parts: Sequence[Part]) -> dict[str, list[int]]:
    """The stages that read each parameter, in order; the first one owns it."""
    readers: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        for name in part.parameters:
            readers.setdefault(name, []).append(number)
    return readers


def stages(traced: Traced, plan: Plan, device: torch.device = CPU) -> list[Stage]:
    """The stages of a plan on one device."""
    parts = split(traced, plan)
    cuts = rehearse(traced, parts, device)
    readers = owners(parts)
    made = []
    for number, (part, stage) in enumerate(zip(parts, plan.stages, strict=True)):
        after = cuts[number + 1] if number + 1 < len(cuts) else None
        tied = [name for name in part.parameters if readers[name][0] != number]
        made.append(Stage(part, cuts[number], after, stage.recompute, tied, device))
    return made


def micro_batch(traced: Traced, batch: Any, number: int) -> dict[str, Tensor]:
    """The inputs of one micro-batch by name, from a batch with the structure that was traced.

    Args:
        traced: the model.
        batch: (inputs, targets) with all samples of the step.
        number: of the micro-batch.
    """
    samples = traced.graph.samples
    leaves = [leaf for leaf in pytree.tree_leaves(batch)]
    placeholders = [node.name for node in traced.module.graph.nodes if node.op == "placeholder"]
    named = dict(zip(placeholders, leaves, strict=True))
    part = slice(number * samples, (number + 1) * samples)
    return {name: named[name][part] if traced.split[name] else named[name] for name in traced.graph.inputs}


def run(traced: Traced, plan: Plan, batch: Any, seeds: Sequence[int] = ()) -> tuple[list[Tensor], Mapping[str, Tensor]]:
    """Train one step without communication: every micro-batch through all stages, forward and backward.

    Args:
        traced: the model.
        plan: with the same size of micro-batches.
        batch: (inputs, targets).
        seeds: of each micro-batch's random numbers; empty if the model draws none.

    Returns:
        The loss of each micro-batch, and the sums of the gradients over micro-batches, by parameter.
    """
    chain = stages(traced, plan)
    count = plan.pipelines * plan.micro_batches
    for number in range(count):
        inputs = micro_batch(traced, batch, number)
        state = seeded(CPU, seeds[number]) if seeds else None
        values: tuple[Tensor, ...] = ()
        for stage in chain:
            values, state = stage.forward(number, inputs, values, state)
        grads: list[Tensor] = []
        tied: dict[str, list[Tensor]] = {}
        for stage in reversed(chain):
            shared = {name: tied[name] for name in stage.own if name in tied}
            returned = stage.backward(number, grads, shared)
            grads = returned.values
            for name, grad in returned.tied.items():
                tied.setdefault(name, []).append(grad)
    losses = [chain[-1].losses[number] for number in range(count)]
    return losses, {name: grad for stage in chain for name, grad in stage.sums.items()}
