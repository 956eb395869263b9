"""AdamW against torch.optim's and optax's own, and where it is sign descent."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from alone import BACKENDS, SHAPES, STEPS, decaying, draw, gap, in_jax, in_torch, pulled, train

from suite.optimizers.adamw.jax import adamw
from suite.optimizers.adamw.torch import AdamW

pytestmark = pytest.mark.quick

HYPER = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1}


def test_torch_equals_torch() -> None:
    def oracle(params: Any) -> torch.optim.Optimizer:
        groups = decaying(params, HYPER["weight_decay"])
        return torch.optim.AdamW(groups, lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["epsilon"])

    assert gap(in_torch(lambda params: AdamW(params.items(), **HYPER)), in_torch(oracle)) <= 1e-12


def test_jax_equals_optax() -> None:
    def oracle() -> optax.GradientTransformation:
        mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
        b1, b2, eps = HYPER["beta1"], HYPER["beta2"], HYPER["epsilon"]
        return optax.adamw(HYPER["lr"], b1, b2, eps, weight_decay=HYPER["weight_decay"], mask=mask)

    assert gap(in_jax(lambda: adamw(**HYPER)), in_jax(oracle)) <= 1e-12


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_averages_it_is_sign_descent(backend: str) -> None:
    """β₁ = β₂ = 0 and a tiny ε: each entry moves by η against the gradient's sign; β = 0 is a legal value."""
    hyper = {"lr": 0.25, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e-12, "weight_decay": 0.0}
    expected = draw(0)
    for step in range(STEPS):
        grads = pulled(expected, step)
        expected = {name: value - 0.25 * np.sign(grads[name]) for name, value in expected.items()}
    assert gap(train(backend, "adamw", hyper=hyper), expected) <= 1e-9


def test_the_first_float32_step_has_the_size_of_the_learning_rate() -> None:
    """1 - β₂ᵗ is 1e-3 here, which cancellation would spoil; the decay is off."""
    params = {"matrix": jnp.zeros((3, 3))}
    optimizer = adamw(lr=1.0, epsilon=0.0, weight_decay=0.0)
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = optimizer.update({"matrix": jnp.full((3, 3), 0.3)}, state, params)
        assert np.abs(np.asarray(updates["matrix"]) + 1.0).max() < 1e-6


def test_blocks_of_a_parameter_that_missed_an_update_are_reset() -> None:
    """Their averages start again; how many updates it missed is a number of the whole parameter, and stays."""
    weight, other = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = AdamW([("weight", weight), ("other", other)])
    for grad in (None, torch.ones(3, 2)):
        weight.grad, other.grad = grad, torch.ones(3, 2)
        optimizer.step()
    optimizer.reset({weight: torch.tensor([True, False, False])})
    assert optimizer.state[weight]["missed"] == 1
    for name in ("first", "second"):
        assert not optimizer.state[weight][name][0].any() and optimizer.state[weight][name][1:].all()


def test_a_class_derived_from_it_follows_the_same_rule() -> None:
    class Own(AdamW):
        """With a name of its own."""

    assert gap(in_torch(lambda params: Own(params.items(), **HYPER)), train("torch", "adamw", hyper=HYPER)) == 0.0
