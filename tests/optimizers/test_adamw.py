"""AdamW against its specification and against torch.optim's and optax's own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from suite.optimizers.adamw import reference
from suite.optimizers.adamw.jax import adamw
from suite.optimizers.adamw.settings import Settings
from suite.optimizers.adamw.torch import AdamW

pytestmark = pytest.mark.quick

SHAPES = {"matrix": (4, 3), "filter": (2, 3, 3, 3), "bias": (5,), "scale": ()}
HYPER = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1}
STEPS = 10
Tree = dict[str, np.ndarray]


def draw(seed: int) -> Tree:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def gradient(params: Any, step: int) -> Any:
    """Noise, and a pull that depends on where one is."""
    return {name: noise + params[name] for name, noise in draw(100 + step).items()}


def in_reference(edit: dict[str, Any] | None = None, **hyper: Any) -> Tree:
    params, state = draw(0), reference.init(draw(0))
    for step in range(STEPS):
        hyper |= edit or {} if step == STEPS // 2 else {}
        params, state = reference.update(params, gradient(params, step), state, Settings(**hyper), step=step)
    return params


def in_torch(make: Any, edit: dict[str, Any] | None = None) -> Tree:
    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in draw(0).items()}
    optimizer = make(params)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group.update(edit or {} if step == STEPS // 2 else {})
        for name, value in gradient({n: p.detach().numpy() for n, p in params.items()}, step).items():
            params[name].grad = torch.as_tensor(value)
        optimizer.step()
    return {name: parameter.detach().numpy() for name, parameter in params.items()}


def in_jax(make: Any, edit: dict[str, Any] | None = None) -> Tree:
    with jax.enable_x64(True):
        optimizer, params = make(), {name: jnp.asarray(value) for name, value in draw(0).items()}
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step in range(STEPS):
            if edit and step == STEPS // 2:
                state = state | {"hyper": state["hyper"] | {n: jnp.asarray(value) for n, value in edit.items()}}
            updates, state = update(gradient(params, step), state, params)
            params = optax.apply_updates(params, updates)
        return {name: np.asarray(value) for name, value in params.items()}


def assert_equal(one: Tree, other: Tree, bound: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    assert max(float(np.abs(one[name] - other[name]).max()) for name in one) <= bound


@pytest.mark.parametrize("correction", [True, False])
def test_backends_equal_the_reference(correction: bool) -> None:
    hyper = HYPER | {"bias_correction": correction}
    expected = in_reference(**hyper)
    assert_equal(in_torch(lambda params: AdamW(params.items(), **hyper)), expected)
    assert_equal(in_jax(lambda: adamw(**hyper)), expected)


def test_torch_equals_torch() -> None:
    def oracle(params: Any) -> torch.optim.Optimizer:
        groups = [
            {"params": [p for p in params.values() if p.ndim > 1], "weight_decay": HYPER["weight_decay"]},
            {"params": [p for p in params.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["epsilon"])

    assert_equal(in_torch(lambda params: AdamW(params.items(), **HYPER)), in_torch(oracle))


def test_jax_equals_optax() -> None:
    def oracle() -> optax.GradientTransformation:
        mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
        b1, b2, eps = HYPER["beta1"], HYPER["beta2"], HYPER["epsilon"]
        return optax.adamw(HYPER["lr"], b1, b2, eps, weight_decay=HYPER["weight_decay"], mask=mask)

    assert_equal(in_jax(lambda: adamw(**HYPER)), in_jax(oracle))


@pytest.mark.parametrize(
    "change", [{"lr": 0.1}, {"beta1": 0.5}, {"beta2": 0.5}, {"epsilon": 0.1}, {"weight_decay": 1.0}]
)
def test_an_edit_takes_effect_at_once(change: dict[str, float]) -> None:
    expected = in_reference(change, **HYPER)
    assert_equal(in_torch(lambda params: AdamW(params.items(), **HYPER), change), expected)
    assert_equal(in_jax(lambda: adamw(**HYPER), change), expected)
    assert np.abs(expected["matrix"] - in_reference(**HYPER)["matrix"]).max() > 1e-4


def test_without_averages_it_is_sign_descent() -> None:
    """β₁ = β₂ = 0 and a tiny ε: each entry moves by η against the gradient's sign; β = 0 is a legal value."""
    hyper = {"lr": 0.25, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e-12, "weight_decay": 0.0}
    expected = draw(0)
    for step in range(STEPS):
        grads = gradient(expected, step)
        expected = {name: value - 0.25 * np.sign(grads[name]) for name, value in expected.items()}
    assert_equal(in_torch(lambda params: AdamW(params.items(), **hyper)), expected, 1e-9)
    assert_equal(in_jax(lambda: adamw(**hyper)), expected, 1e-9)


def test_the_first_float32_step_has_the_size_of_the_learning_rate() -> None:
    """1 - β₂ᵗ is 1e-3 here, which cancellation would spoil; the decay is off."""
    params = {"matrix": jnp.zeros((3, 3))}
    optimizer = adamw(lr=1.0, epsilon=0.0, weight_decay=0.0)
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = optimizer.update({"matrix": jnp.full((3, 3), 0.3)}, state, params)
        assert np.abs(np.asarray(updates["matrix"]) + 1.0).max() < 1e-6
