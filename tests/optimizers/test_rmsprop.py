"""RMSProp against torch.optim's and optax's own, each in its own convention."""

from typing import Any

import numpy as np
import optax
import pytest
import torch
from alone import BACKENDS, STEPS, decaying, gap, in_jax, in_torch, train

from suite.optimizers.rmsprop.jax import rmsprop
from suite.optimizers.rmsprop.torch import RMSprop

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("backend", BACKENDS)
HYPER = {"lr": 0.02, "beta2": 0.8, "epsilon": 1e-3}


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_torch_equals_torch(momentum: float, centered: bool) -> None:
    options: dict[str, Any] = {"lr": 0.02, "alpha": 0.8, "eps": 1e-3, "momentum": momentum, "centered": centered}
    oracle = in_torch(lambda params: torch.optim.RMSprop(decaying(params, 0.1), **options))
    hyper = HYPER | {"weight_decay": 0.1, "momentum": momentum, "centered": centered}
    assert gap(in_torch(lambda params: RMSprop(params.items(), **hyper)), oracle) <= 1e-12


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_tensorflows_equals_optax(momentum: float, centered: bool) -> None:
    """ε inside the root, averages that begin at 1, η inside the velocity: a schedule shows where it stands."""
    rate = optax.piecewise_constant_schedule(0.02, {STEPS // 2: 0.1})
    options: dict[str, Any] = {"decay": 0.8, "eps": 1e-3, "initial_scale": 1.0, "eps_in_sqrt": True}
    oracle = in_jax(lambda: optax.rmsprop(rate, **options, centered=centered, momentum=momentum or None))
    hyper = HYPER | {"momentum": momentum, "centered": centered, "tensorflow": True}
    assert gap(in_jax(lambda: rmsprop(**hyper), edit={"lr": 0.002}), oracle) <= 1e-12


def test_torchs_form_equals_optax_outside_the_root() -> None:
    oracle = in_jax(lambda: optax.rmsprop(0.02, decay=0.8, eps=1e-3, eps_in_sqrt=False, momentum=0.7))
    assert gap(in_jax(lambda: rmsprop(**HYPER, momentum=0.7)), oracle) <= 1e-12


@both
def test_a_constant_gradient_has_no_variance_below_zero(backend: str) -> None:
    """Centred in float32, v - m² is rounding noise of either sign in the end; its root must not become NaN."""
    start = {"w": np.zeros(64, "float32")}
    constant = lambda params, step: {"w": np.linspace(0.1, 3.0, 64)}  # noqa: E731
    hyper = {"lr": 1e-6, "centered": True, "epsilon": 1e-3}
    found = train(backend, "rmsprop", constant, hyper=hyper, steps=200, start=start, kind="float32")
    assert np.isfinite(found["w"]).all() and (found["w"] < 0).all()


def test_memory_is_what_the_form_needs() -> None:
    def held(**hyper: Any) -> set[str]:
        weight = torch.nn.Parameter(torch.zeros(3))
        return set(RMSprop([("w", weight)], **hyper).state[weight])

    assert held() == {"second"} and held(centered=True) == {"second", "mean"}
    assert held(momentum=0.9) == {"second", "velocity"}
