"""A pipeline on several devices of one process has the bits of the same stages on one device."""

from typing import Any

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cuts import distance, planned, traced
from jax_models import CASES, Draw, running

from suite.comm import setup
from suite.comm.partition.jax.alone import run
from suite.comm.partition.jax.messages import (
    count_bytes,
    decode_values,
    encode_values,
    list_payloads,
    pack_values,
    unpack_values,
)
from suite.comm.partition.jax.pipeline import Pipeline
from suite.comm.partition.jax.tape import by_path
from suite.contract import Spec, UserError
from suite.settings import configure


def same(first: Any, second: Any) -> bool:
    """Return whether two trees have the same paths and bits."""
    return jax.tree.structure(first) == jax.tree.structure(second) and jax.tree.all(
        jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), first, second)
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", ["tied", "skipping", "dropout", "unread"])
def test_devices_of_one_process(name: str, schedule: Any) -> None:
    case = CASES[name](Draw())
    made = traced(case)
    for devices, recompute in ((2, False), (3, True)):
        cut = planned(made.graph, 2, recompute, schedule, devices)  # with three devices, one stage has two
        pipeline = Pipeline(made, cut, case.params, jax.local_devices()[:devices])
        loss = pipeline.step(*case.inputs)
        expected_loss, expected = run(made, cut, case.params, case.inputs)
        assert float(loss) == float(expected_loss)
        assert same(dict(sorted(pipeline.gradients.items())), dict(sorted(expected.items())))


def test_new_parameters_reach_all_stages_that_read_them() -> None:
    case = CASES["tied"](Draw())
    made = traced(case)
    cut = planned(made.graph, 2, False, devices=4)
    pipeline = Pipeline(made, cut, case.params, jax.local_devices()[:4])
    assert pipeline.shared == {"embed": [0, 1]}
    first = float(pipeline.step(*case.inputs))
    params = case.params
    for _ in range(2):
        grads = pipeline.gradients
        pipeline.parameters = {name: value - 0.5 * grads[name] for name, value in pipeline.parameters.items()}
        params = {name: params[name] - 0.5 * np.asarray(grads[name]) for name in params}
        loss = pipeline.step(*case.inputs)
        assert float(loss) == float(run(made, cut, params, case.inputs)[0])
    assert float(loss) < first
    with pytest.raises(UserError, match="does not own nothing"):
        pipeline.parameters = {"nothing": jnp.zeros(())}


@pytest.mark.parametrize("devices, recompute", [(2, False), (3, True)])
def test_buffers_are_the_means_over_micro_batches(devices: int, recompute: bool) -> None:
    """Every micro-batch starts from the step's old buffers; with three devices, a stage has two."""
    case = running(Draw())
    made = traced(case)
    pipeline = Pipeline(
        made, planned(made.graph, 2, recompute, devices=devices), case.params, jax.local_devices()[:devices]
    )
    pipeline.warm(*case.inputs)
    params: Any = dict(case.params)
    for _ in range(2):
        loss = pipeline.step(*case.inputs)
        parts = [case.function(params, part) for part in jnp.split(case.inputs[0], 4)]
        assert float(loss) == pytest.approx(float(sum(part[0] for part in parts) / sum(part[1] for part in parts)))
        params |= jax.tree.map(lambda *values: sum(values) / 4, *[part[2] for part in parts])
    expected = {f"{name}/mean": params[name]["mean"] for name in ("first", "second")}
    assert pipeline.buffers.keys() == expected.keys() and pipeline.gradients.keys() == {"a", "b"}
    assert pipeline.whole().keys() == {"a", "b", *expected}
    for found in (pipeline.buffers, pipeline.whole()):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7)


def test_a_plan_needs_its_devices() -> None:
    case = CASES["swapped"](Draw())
    made = traced(case)
    cut = planned(made.graph, 2, False)
    with pytest.raises(UserError, match="for 2 devices; devices names 1"):
        Pipeline(made, cut, case.params, jax.local_devices()[:1] * 2)


def test_inputs_with_other_samples_are_rejected() -> None:
    case = CASES["swapped"](Draw())
    made = traced(case)
    first, second = case.inputs
    with pytest.raises(UserError, match="input 1 has 6 samples; 4 micro-batches of 2 samples need 8"):
        run(made, planned(made.graph, 2, False), case.params, (first, second[:6]))
    with pytest.raises(UserError, match="the inputs are 0; the function was traced with 0, 1"):
        run(made, planned(made.graph, 2, False), case.params, (first,))


def test_messages_keep_every_type() -> None:
    types = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.int8, jnp.uint16, jnp.int32, jnp.bool_]
    values = [jnp.arange(6).reshape(2, 3).astype(dtype) for dtype in (*types, jnp.complex64)]
    values += [jax.random.split(jax.random.key(3), 2), jax.random.key(1, impl="rbg"), jnp.float32(np.nan)]
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    message = jax.jit(pack_values)(values)
    assert message.shape == (count_bytes(shapes),) and message.dtype == jnp.uint8
    for value, other in zip(values, unpack_values(message, shapes), strict=True):
        assert value.dtype == other.dtype and value.shape == other.shape
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value, other = jax.random.key_data(value), jax.random.key_data(other)
        assert np.asarray(value).tobytes() == np.asarray(other).tobytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("codec, error", [("float32", 0.0), ("float16", 1e-3), ("minifloat", 0.07), ("table", 0.5)])
def test_a_codec_encodes_floating_point_numbers_only(codec: str, error: float) -> None:
    values = [jnp.linspace(-1, 1, 24).reshape(4, 6), jnp.arange(5), jnp.ones((3, 2), jnp.bool_), jax.random.key(3)]
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    coder = setup.make_codec(engines.part(f"suite.comm.codecs.{codec}"), "jax")
    sent = encode_values(values, coder)
    assert [(one.shape, one.dtype) for one in sent] == [(one.shape, one.dtype) for one in list_payloads(shapes, coder)]
    assert count_bytes(list_payloads(shapes, coder)) == coder.nbytes(24) + 4 * 5 + 6 + 8
    first, *others = decode_values(unpack_values(pack_values(sent), list_payloads(shapes, coder)), shapes, coder)
    assert first.shape == (4, 6) and float(abs(first - values[0]).max()) <= error
    assert all((one == other).all() for one, other in zip(others, values[1:], strict=True))


class Task:
    """Parameters without layers, for `suite.comm.setup`."""

    def __init__(self, params: Any):
        self.shapes = lambda: {name: Spec(np.shape(value), "zeros") for name, value in by_path(params).items()}
        self.layers = dict


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode, error", [("float32", 1e-7), ("int8", 0.02), ("onebit", 1.0)])
def test_replicas_average_in_any_communication_mode(mode: str, error: float) -> None:
    case = CASES["forked"](Draw())
    made = traced(case)
    cut = planned(made.graph, 1, False, devices=2)
    node = configure.resolve(["task=resnet50", f"comm={mode}"]).comm
    channels = setup.make_channels(node, Task(case.params), 2, "jax")  # type: ignore[arg-type]
    pipeline = Pipeline(made, cut, case.params, jax.local_devices()[:2], channels=channels)
    exact = {name: np.asarray(value) for name, value in run(made, cut, case.params, case.inputs)[1].items()}
    total = dict.fromkeys(exact, np.float32(0))
    for step in range(1, 17):
        pipeline.step(*case.inputs)
        total = {name: total[name] + np.asarray(value) for name, value in pipeline.gradients.items()}
        if step == 1:
            first = distance(pipeline.gradients, exact)
    assert first <= error and (mode == "float32" or first > 1e-4)
    if mode == "onebit":  # what error feedback keeps enters later steps
        assert pipeline.replicas[0].residuals
        assert distance({name: value / 16 for name, value in total.items()}, exact) < 0.6 * first
    assert pipeline.ledger.facts()["by_name"]["gradients"] > 0
