"""Tests of the public functions: plan without devices, partition over those that there are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_cuts import DEVICE, NETWORK, distance, whole
from jax_models import CASES, Draw

from suite.comm.partition.jax import Device, partition, plan, run
from suite.comm.projection.network import Level, Network
from suite.contract import UserError


@pytest.mark.slow
def test_a_pipeline_trains_with_optax() -> None:
    case = CASES["bert"](Draw())
    pipeline = partition(
        case.function,
        case.params,
        case.inputs,
        devices=jax.local_devices()[:2],
        stages=2,
        micro_batches=4,
        device=DEVICE,
    )
    optimizer = optax.adamw(1e-2)
    state = {name: optimizer.init(value) for name, value in pipeline.parameters.items()}
    losses = []
    for _ in range(3):
        losses.append(float(pipeline.step(*case.inputs)))
        updated = {}
        for name, value in pipeline.parameters.items():
            updates, state[name] = optimizer.update(pipeline.gradients[name], state[name], value)
            updated[name] = optax.apply_updates(value, updates)
        pipeline.parameters = updated
    assert losses[2] < losses[1] < losses[0]
    assert "2 devices: 1 pipeline of 2 stages, 4 micro-batches of 2 samples each" in str(pipeline.plan)


@pytest.mark.slow
def test_operations_are_measured_where_no_device_is_given() -> None:
    case = CASES["unread"](Draw())
    pipeline = partition(case.function, case.params, case.inputs, devices=jax.local_devices()[:2], stages=2)
    loss = pipeline.step(*case.inputs)
    assert pipeline.plan.stages[0].forward > 0
    assert float(loss) == float(run(pipeline.traced, pipeline.plan, case.params, case.inputs)[0])


def test_a_plan_needs_shapes_only() -> None:
    case = CASES["bert"](Draw())
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((64 * leaf.shape[0], *leaf.shape[1:]), leaf.dtype), case.inputs
    )
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), case.params)
    result = plan(case.function, params, shapes, devices=16, stages=4, device=DEVICE, network=NETWORK)
    assert result.devices == 16 and len(result.stages) == 4
    assert result.pipelines * result.micro_batches * result.samples == 512
    assert result.balance < 1.5


def test_the_number_of_micro_batches_is_chosen() -> None:
    case = CASES["forked"](Draw())
    pipeline = partition(
        case.function, case.params, case.inputs, devices=jax.local_devices()[:2], device=DEVICE, network=NETWORK
    )
    assert pipeline.traced.graph.samples == pipeline.plan.samples
    pipeline.step(*case.inputs)
    count = pipeline.plan.pipelines * pipeline.plan.micro_batches
    _, expected = whole(case, pipeline.traced, count)
    assert distance(pipeline.gradients, expected) <= 5e-7


def test_a_function_may_have_other_operations_with_other_sizes() -> None:
    """A plan is for the size of micro-batch that it names, although the first one was made with another."""
    case = CASES["swapped"](Draw())

    def function(params: Any, first: Any, second: Any) -> Any:
        return case.function(params, jnp.tanh(jnp.tanh(first)) if len(first) > 1 else first, second)

    slow = Network("slow", Level(1e-2, 1e10), Level(1e-2, 1e10), None, "ring", 1e9)  # sends few messages
    pipeline = partition(
        function, case.params, case.inputs, devices=jax.local_devices()[:2], stages=2, device=DEVICE, network=slow
    )
    assert pipeline.plan.samples > 1
    assert sum(len(stage.nodes) for stage in pipeline.plan.stages) >= len(pipeline.traced.operations)
    pipeline.step(*case.inputs)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"micro_batches": 3}, "micro_batches=3: does not divide the batch of 8 samples"),
        ({"stages": 5}, "stages=5: there are 2 devices"),
        ({"device": Device(100, 1e9, 1e9)}, "does not fit"),
    ],
)
def test_impossible_requests_are_rejected(changes: dict[str, int], words: str) -> None:
    case = CASES["swapped"](Draw())
    with pytest.raises(UserError, match=words):
        plan(case.function, case.params, case.inputs, **{"devices": 2, "device": DEVICE} | changes)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no array with the samples"):
        plan(case.function, case.params, (np.float32(1),), devices=2, device=DEVICE)
