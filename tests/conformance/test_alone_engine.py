"""An optimizer alone makes the same trajectory as the engine that drives it, with the same gradients and settings."""

from typing import Any

import pytest
from engines import advance, config, engine, gap, weights
from mlps import NAMES

from suite import load
from suite.contract import Plan

STEPS = 8
# which the engine does more for than to average the gradient, and which need nothing beside it
DRIVEN = [name for name in NAMES if {"program", "reduce"} <= set(load.load_member(f"suite.optimizers.{name}").NEEDS)]
DRIVEN = [name for name in DRIVEN if "observe" not in load.load_member(f"suite.optimizers.{name}").NEEDS]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in DRIVEN),
    ("shampoo", {"lag": 2, "start_preconditioning": 1}),
    ("shampoo", {"stagger": True, "start_preconditioning": 1}),
    ("soap", {"one_sided": True, "precondition_frequency": 3}),
]


def alone(made: Any) -> Any:
    """An engine that gives its optimizer the gradient and nothing else."""
    made.needs, made.plan = (), Plan()
    return made


@pytest.mark.parametrize("name, hyper", CASES)
def test_in_torch_bit_for_bit(name: str, hyper: dict[str, Any]) -> None:
    driven, other = (engine(config(name, "torch", precision="float32", hyper=dict(hyper))) for _ in range(2))
    losses = advance(driven, range(STEPS))
    assert advance(alone(other), range(STEPS)) == losses
    assert gap(weights(other), weights(driven)) == 0.0


@pytest.mark.sample(1)
@pytest.mark.parametrize("name, hyper", CASES)
def test_in_jax_up_to_rounding(name: str, hyper: dict[str, Any]) -> None:
    """Compiled as one program it is rounded otherwise, and a lag's roots are taken by another routine."""
    import dataclasses

    driven, other = (engine(config(name, "jax", hyper=dict(hyper))) for _ in range(2))
    advance(driven, range(STEPS))
    other.split, other.maths = False, dataclasses.replace(other.maths, needs=())
    advance(alone(other), range(STEPS))
    assert gap(weights(other), weights(driven)) <= 1e-10


def test_there_are_such_optimizers() -> None:
    assert {"shampoo", "soap"} <= set(DRIVEN)
