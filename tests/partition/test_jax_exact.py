"""Tests that the stages together compute what the unmodified function computes on the same micro-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cuts import MICRO_BATCHES, distance, planned, traced, whole
from jax_models import CASES, LARGE, Case, Draw

from suite.comm.partition.jax.alone import micro_batch, run, stage_of
from suite.comm.partition.jax.split import split_graph


@pytest.mark.sample(4)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("stages", [3, *(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2))])
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"bert"}))
def test_the_stages_have_the_gradients_of_the_function(name: str, stages: int, recompute: bool) -> None:
    _compared(CASES[name](Draw()), stages, recompute)


@pytest.mark.slow
def test_the_stages_of_bert_have_the_gradients_of_the_function() -> None:
    _compared(CASES["bert"](Draw()), 3, True)


@pytest.mark.slow
@pytest.mark.parametrize("name, recompute", [("resnet50", False), ("transformer", True)])
def test_the_stages_of_the_suite_s_own_models_have_the_gradients_of_the_function(name: str, recompute: bool) -> None:
    _compared(LARGE[name](), 3, recompute)


def _compared(case: Case, stages: int, recompute: bool) -> None:
    made = traced(case)
    loss, grads = run(made, planned(made.graph, stages, recompute), case.params, case.inputs)
    expected_loss, expected = whole(case, made)
    assert abs(float(loss) - expected_loss) <= 1e-6 * abs(expected_loss)
    assert distance(grads, expected) <= 5e-7


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["residual", "skipping", "dropout"])
def test_in_float64_the_difference_is_rounding(name: str) -> None:
    with jax.enable_x64(True):
        case = CASES[name](Draw())
        made = traced(case)
        loss, grads = run(made, planned(made.graph, 3, False), case.params, case.inputs)
        expected_loss, expected = whole(case, made)
        assert loss.dtype == jnp.float64
        assert abs(float(loss) - expected_loss) <= 1e-14 * abs(expected_loss)
        assert distance(grads, expected) <= 1e-14


def test_every_value_that_crosses_is_relayed() -> None:
    """Float, integer and mask values skip a stage, as the case intends."""
    made = traced(CASES["skipping"](Draw()))
    cut = planned(made.graph, 4, False)
    both = set(cut.stages[1].receives) & set(cut.stages[2].receives)
    assert {made.shapes[name].dtype.kind for name in both} >= {"f", "i", "b"}


def test_schedules_and_replicas_change_only_the_order_of_sums() -> None:
    case = CASES["tied"](Draw())
    made = traced(case)
    expected = run(made, planned(made.graph, 2, False), case.params, case.inputs)
    gpipe = run(made, planned(made.graph, 2, False, "gpipe"), case.params, case.inputs)
    assert jax.tree.all(jax.tree.map(np.array_equal, gpipe, expected))
    uneven = planned(made.graph, 2, False, devices=3)
    assert sorted(stage.replicas for stage in uneven.stages) == [1, 2]
    _, grads = run(made, uneven, case.params, case.inputs)
    assert distance(grads, {name: np.asarray(value) for name, value in expected[1].items()}) <= 5e-7


def test_a_forward_pass_does_not_keep_copies_of_the_weights() -> None:
    case = CASES["swapped"](Draw())
    made = traced(case)
    cut = planned(made.graph, 1, False)
    stage = stage_of(made, cut, split_graph(made, cut), 0, case.params, None)
    stage.forward(0, micro_batch(made, case.inputs, 0, MICRO_BATCHES), [])
    residuals = stage.held[0].residuals
    assert residuals and residuals.arrays
    assert all(array.shape != case.params["a"].shape for array in residuals.arrays)


def test_the_key_differs_between_micro_batches() -> None:
    case = CASES["dropout"](Draw())
    made = traced(case)
    first, second = (micro_batch(made, case.inputs, number, MICRO_BATCHES)["%inputs/0"] for number in (0, 1))
    assert not jnp.array_equal(jax.random.key_data(first), jax.random.key_data(second))
