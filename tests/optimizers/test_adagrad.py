"""AdaGrad against torch.optim's and optax's own, and its rows."""

from typing import Any

import numpy as np
import optax
import pytest
import torch
from alone import SHAPES, STEPS, decaying, gap, in_jax, in_torch

from suite.contract import Rows
from suite.optimizers.adagrad.jax import adagrad
from suite.optimizers.adagrad.torch import Adagrad

pytestmark = pytest.mark.quick

HYPER = {"lr": 0.1, "epsilon": 1e-3, "initial_accumulator": 0.2}
ROWS = [[3, 1, 3], [0, 1, 1], [3, 3, 3]]  # what three steps look up in a table of five rows; row 4 never
VALUES = np.random.default_rng(0).normal(size=(3, 3, 2))
TABLE = np.random.default_rng(1).normal(size=(5, 2))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_torch_equals_torch(decay: float) -> None:
    options: dict[str, Any] = {"lr": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-3}
    oracle = in_torch(lambda params: torch.optim.Adagrad(decaying(params, decay), **options))
    found = in_torch(lambda params: Adagrad(params.items(), weight_decay=decay, **HYPER))
    assert gap(found, oracle) <= 1e-12


def test_jax_equals_optax() -> None:
    """Whose ε stands inside the root: here it is part of the initial accumulator."""
    oracle = in_jax(lambda: optax.adagrad(0.1, initial_accumulator_value=0.2, eps=1e-3))
    assert gap(in_jax(lambda: adagrad(lr=0.1, initial_accumulator=0.2 + 1e-3, epsilon=0.0)), oracle) <= 1e-12


def test_momentum_equals_optax() -> None:
    chain = optax.chain(optax.scale_by_rss(0.2, 0.0), optax.trace(0.7), optax.scale(-0.1))
    found = in_jax(lambda: adagrad(lr=0.1, momentum=0.7, initial_accumulator=0.2, epsilon=0.0))
    assert gap(found, in_jax(lambda: chain)) <= 1e-12


def by_rows(make: Any) -> np.ndarray:
    table = torch.nn.Parameter(torch.tensor(TABLE))
    optimizer = make({"table": table})
    for ids, values in zip(ROWS, VALUES, strict=True):
        table.grad = torch.sparse_coo_tensor(
            torch.tensor([ids]), torch.tensor(values), table.shape, check_invariants=False
        )
        optimizer.step()
    return table.detach().numpy()


def whole(step: int) -> np.ndarray:
    grad = np.zeros_like(TABLE)
    np.add.at(grad, ROWS[step], VALUES[step])
    return grad


def test_rows_that_recur_are_added_up_before_they_are_squared() -> None:
    """By rows as by the whole table; torch.optim agrees. Row 4 keeps its bits, and its sum stays 0."""
    import jax
    import jax.numpy as jnp

    found = by_rows(lambda params: Adagrad(params.items(), **HYPER))
    oracle = by_rows(
        lambda params: torch.optim.Adagrad(params.values(), lr=0.1, initial_accumulator_value=0.2, eps=1e-3)
    )
    assert np.abs(found - oracle).max() <= 1e-12
    options: dict[str, Any] = {"steps": 3, "start": {"table": TABLE}}
    dense = in_torch(lambda p: Adagrad(p.items(), **HYPER), lambda params, step: {"table": whole(step)}, **options)
    assert np.abs(found - dense["table"]).max() <= 1e-12
    with jax.enable_x64(True):
        optimizer, params = adagrad(**HYPER), {"table": jnp.asarray(TABLE)}
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for ids, values in zip(ROWS, VALUES, strict=True):
            updates, state = update({"table": Rows(jnp.asarray(ids), jnp.asarray(values))}, state, params)
            assert isinstance(updates["table"], Rows) and set(updates["table"].ids.tolist()) <= {0, *ids}
            params = {"table": params["table"].at[updates["table"].ids].add(updates["table"].values)}
        assert np.abs(found - np.asarray(params["table"])).max() <= 1e-12
        assert not state["sum"]["table"][4].any() and np.array_equal(params["table"][4], TABLE[4])


@pytest.mark.parametrize("reaching", [{"momentum": 0.5}, {"weight_decay": 0.5}])
def test_momentum_and_decay_reach_every_row(reaching: dict[str, float]) -> None:
    hyper = HYPER | reaching
    found = by_rows(lambda params: Adagrad(params.items(), **hyper))
    options: dict[str, Any] = {"steps": 3, "start": {"table": TABLE}}
    gradient = lambda params, step: {"table": whole(step)}  # noqa: E731
    assert gap({"table": found}, in_torch(lambda p: Adagrad(p.items(), **hyper), gradient, **options)) <= 1e-12
    assert gap({"table": found}, in_jax(lambda: adagrad(**hyper), gradient, **options)) <= 1e-12


def test_no_velocity_is_held_without_momentum_and_torch_makes_it_when_asked() -> None:
    import jax.numpy as jnp

    params = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    optimizer = Adagrad(params.items())
    assert all(set(optimizer.state[parameter]) == {"sum"} for parameter in params.values())
    assert adagrad().init({"w": jnp.zeros(3)})["velocity"] == {}
    edited = in_torch(lambda params: Adagrad(params.items(), **HYPER), edit={"momentum": 0.5}, steps=STEPS)
    assert gap(edited, in_torch(lambda params: Adagrad(params.items(), **HYPER))) > 1e-3
