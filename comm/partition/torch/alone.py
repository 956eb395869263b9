"""All stages in one process, one after another: what a pipeline computes, without communication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from suite.comm.partition.plan import Plan, list_readers
from suite.comm.partition.torch.rehearsal import rehearse_stage
from suite.comm.partition.torch.split import split_graph
from suite.comm.partition.torch.stage import Stage, seed_state
from suite.comm.partition.torch.trace import Traced
from suite.contract import UserError

CPU = torch.device("cpu")


def make_stages(traced: Traced, plan: Plan, device: torch.device = CPU) -> list[Stage]:
    """Return the stages of a plan on one device."""
    parts = split_graph(traced, plan)
    cuts = rehearse_stage(traced, parts, device)
    owners = {name: numbers[0] for name, numbers in list_readers(part.parameters for part in parts).items()}
    made = []
    for number, (part, stage) in enumerate(zip(parts, plan.stages, strict=True)):
        after = cuts[number + 1] if number + 1 < len(cuts) else None
        tied = [name for name in part.parameters if owners[name] != number]
        made.append(Stage(part, cuts[number], after, stage.recompute, tied, device))
    return made


def micro_batch(traced: Traced, batch: Any, number: int, count: int) -> dict[str, Tensor]:
    """Return the inputs of one micro-batch by name, from a batch with the structure that was traced.

    Args:
        traced: the model.
        batch: (inputs, targets) with all samples of the step.
        number: of the micro-batch.
        count: of micro-batches in the step.

    Raises:
        UserError: if the batch has another structure or number of samples than the traced one.
    """
    samples = traced.graph.samples
    leaves = pytree.tree_leaves(batch)
    names = [node.name for node in traced.module.graph.nodes if node.op == "placeholder"]
    if len(leaves) != len(names):
        raise UserError(f"step: got {len(leaves)} inputs and targets; the model was traced with {len(names)}")
    named = dict(zip(names, leaves, strict=True))
    for name in traced.graph.inputs:
        if traced.split[name] and len(named[name]) != samples * count:
            raise UserError(
                f"step: {name} has {len(named[name])} samples; {count} micro-batches of {samples} samples need "
                f"{samples * count}"
            )
    part = slice(number * samples, (number + 1) * samples)
    return {name: named[name][part] if traced.split[name] else named[name] for name in traced.graph.inputs}


def outputs_of(traced: Traced, values: Sequence[Tensor]) -> Any:
    """Return the outputs of one micro-batch in the model's structure.

    Args:
        traced: the model.
        values: results of the last stage.
    """
    named = dict(zip(traced.graph.outputs, values, strict=True))
    return pytree.tree_map_only(fx.Node, lambda node: named[node.name], traced.outputs)


@dataclass(frozen=True)
class Step:
    """One step without communication.

    Attributes:
        losses: of each micro-batch.
        outputs: of each micro-batch; () unless they were asked for.
        sums: of the gradients over micro-batches, by parameter.
    """

    losses: list[Tensor]
    outputs: list[Any]
    sums: dict[str, Tensor]


def run(traced: Traced, plan: Plan, batch: Any, seeds: Sequence[int] = ()) -> Step:
    """Train one step without communication: every micro-batch through all stages, forward and backward.

    Args:
        traced: the model.
        plan: with the same size of micro-batches.
        batch: (inputs, targets).
        seeds: of each micro-batch's random numbers; empty if the model draws none.
    """
    chain = make_stages(traced, plan)
    count = plan.pipelines * plan.micro_batches
    for number in range(count):
        state = seed_state(CPU, seeds[number]) if seeds else None
        run_micro_batch(chain, number, micro_batch(traced, batch, number, count), state)
    last = chain[-1]
    return Step(
        losses=[last.losses[number] for number in range(count)],
        outputs=[outputs_of(traced, last.outputs[number]) for number in range(count)],
        sums={name: grad for stage in chain for name, grad in stage.sums.items()},
    )


def run_micro_batch(chain: Sequence[Stage], number: int, inputs: Mapping[str, Tensor], state: Tensor | None) -> None:
    """Pass one micro-batch through all stages, forward and backward.

    Args:
        chain: the stages, from `make_stages`.
        number: of the micro-batch.
        inputs: by name.
        state: of the random number generator; None if the model draws none.
    """
    values: tuple[Tensor, ...] = ()
    for stage in chain:
        values, state = stage.forward(number, inputs, values, state)
    grads: list[Tensor] = []
    tied: dict[str, Tensor] = {}
    for stage in reversed(chain):
        returned = stage.backward(number, grads, {n: tied[n] for n in stage.part.parameters if n in tied})
        grads = returned.values
        tied |= returned.tied
