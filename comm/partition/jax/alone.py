"""All stages in one process, one after another: what a pipeline computes, without communication."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.comm.partition.jax.split import Part, split_graph
from suite.comm.partition.jax.stages import Device, Grads, Stage, add_values, divide_values
from suite.comm.partition.jax.tape import Tree, by_path
from suite.comm.partition.jax.trace import Traced
from suite.comm.partition.placement import Place
from suite.comm.partition.plan import Plan, list_readers
from suite.contract import UserError


def stage_of(
    traced: Traced, plan: Plan, parts: Sequence[Part], number: int, params: Mapping[str, Array], device: Device | None
) -> Stage:
    """One stage of a plan.

    Args:
        traced: the function.
        plan: how it is cut.
        parts: of the plan, from `split.split_graph`.
        number: of the stage.
        params: arrays by path; at least those that the stage reads.
        device: on which it runs; None: jax's default.
    """
    owners = {name: numbers[0] for name, numbers in list_readers(part.trainable for part in parts).items()}
    own = [name for name in parts[number].trainable if owners[name] == number]
    last = number + 1 == len(parts)
    return Stage(traced, parts[number], own, last, plan.stages[number].recompute, params, device)


def micro_batch(traced: Traced, inputs: Sequence[Tree], number: int, count: int) -> dict[str, Array]:
    """Return the inputs of one micro-batch by name.

    A PRNG key without axes is folded with the micro-batch's number, so that micro-batches draw different numbers.

    Args:
        traced: the function.
        inputs: of the whole step.
        number: of the micro-batch.
        count: of micro-batches in the step.

    Raises:
        UserError: if an input does not have the samples of the step.
    """
    samples = traced.graph.samples
    leaves = by_path(tuple(inputs), "%inputs/")
    if leaves.keys() != traced.split.keys():
        raise UserError(f"step: the inputs are {_listed(leaves)}; the function was traced with {_listed(traced.split)}")
    parts: dict[str, Array] = {}
    for name, leaf in leaves.items():
        if traced.split[name]:
            if np.shape(leaf)[:1] != (samples * count,):
                raise UserError(
                    f"step: input {name.removeprefix('%inputs/')} has {np.shape(leaf)[0]} samples; "
                    f"{count} micro-batches of {samples} samples need {samples * count}"
                )
            parts[name] = leaf[number * samples : (number + 1) * samples]
        elif jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and not leaf.shape:
            parts[name] = jax.random.fold_in(leaf, number)
        else:
            parts[name] = leaf
    return parts


def _listed(names: object) -> str:
    return ", ".join(str(name).removeprefix("%inputs/") for name in names)  # type: ignore[attr-defined]


@jax.jit
def sum_results(results: Array) -> tuple[Array, Array]:
    """Return the summed loss and the summed weight of a step; the step's loss is their quotient.

    Args:
        results: of the function for each micro-batch, (count, 1 or 2); they are added in order. Each loss without a
            weight counts 1.
    """
    total = results[0]
    for result in results[1:]:
        total = total + result
    return total[0], total[1] if len(total) > 1 else jnp.full_like(total[0], len(results))


def run(
    traced: Traced,
    plan: Plan,
    params: Tree,
    inputs: Sequence[Tree],
    devices: Sequence[Device | None] | None = None,
) -> tuple[Array, Grads]:
    """Train one step up to the gradients, without communication.

    Gradients are added in the order of `Pipeline.step`, so that both have the same bits.

    Args:
        traced: the function.
        plan: with micro-batches of the size that was traced.
        params: a pytree.
        inputs: of the whole step.
        devices: one for each stage; None: jax's default device for all.

    Returns:
        The loss, and the gradients by path of the parameter: as of `Pipeline.step`.
    """
    parts, named = split_graph(traced, plan), by_path(params)
    chosen = devices or [None] * len(parts)
    chain = [stage_of(traced, plan, parts, number, named, chosen[number]) for number in range(len(parts))]
    places, count = plan.grid, plan.pipelines * plan.micro_batches
    sums: dict[tuple[int, int], Grads] = {}  # by stage and rank
    for number in range(count):
        inputs_now = micro_batch(traced, inputs, number, count)
        values: list[Array] = []
        for stage in chain:
            values = stage.forward(number, inputs_now, values)
        grads: Sequence[Array] = []
        tied: dict[str, list[Array]] = {}
        for stage_number in reversed(range(len(chain))):
            stage = chain[stage_number]
            returned = stage.backward(number, grads, {name: tied[name] for name in stage.own if name in tied})
            grads = returned.values
            for name, grad in returned.tied.items():
                tied.setdefault(name, []).append(grad)
            pipeline, own = divmod(number, plan.micro_batches)
            rank = places.peer(Place(pipeline, 0, 0), stage_number, own)
            _accumulate(sums, (stage_number, rank), stage)
    loss, weight = sum_results(jnp.stack([chain[-1].results[number] for number in range(count)]))
    means: Grads = {}
    for number in range(len(chain)):
        group = places.group(number)
        divisor = np.float64(weight) / len(group)
        shares = [divide_values(sums[number, rank], divisor) for rank in group if (number, rank) in sums]
        total = shares[0]
        for share in shares[1:]:
            total = add_values(total, share)
        means |= divide_values(total, np.float64(len(group)))
    return loss / weight, {name: means[name] for name in traced.graph.parameters if name in means}


def _accumulate(sums: dict[tuple[int, int], Grads], key: tuple[int, int], stage: Stage) -> None:
    """Move a stage's sums of one micro-batch to the rank that runs it."""
    sums[key] = add_values(sums[key], stage.sums) if key in sums else stage.sums
    stage.sums = {}
