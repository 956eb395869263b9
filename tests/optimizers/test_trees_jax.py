"""Trees of parameters and gradients that jax optimizers accept, and the types of their state."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from own_loops import LAYERS, NAMES, batch, loss_by_hand, make, start, train

from suite.contract import UserError


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "grads, message",
    [
        ({"bias": jnp.ones(2)}, "weight has no gradient; pass one for each parameter"),
        ({"weight": None, "bias": jnp.ones(2)}, "weight has no gradient; pass one for each parameter"),
        ({"weight": jnp.ones((3, 2)), "bias": jnp.ones(2)}, "weight has shape (2, 3); its gradient has (3, 2)"),
        ({"weight": jnp.ones(3), "bias": jnp.ones(2)}, "weight has shape (2, 3); its gradient has (3,)"),
        ({"weight": jnp.ones((2, 3)), "bias": 1.0}, "bias is a float and no array"),
        (
            {"weight": jnp.ones((2, 3)), "bias": jnp.ones(2), "more": jnp.ones(2)},
            "a gradient of more, which is no parameter",
        ),
    ],
)
def test_gradients_are_those_of_the_parameters(name: str, grads: Any, message: str) -> None:
    """Otherwise the optimizer broadcasts or reshapes a gradient of another shape, and raises no error."""
    params = {"weight": jnp.ones((2, 3)), "bias": jnp.ones(2)}
    optimizer = make(name, params, {})
    with pytest.raises(UserError, match=re.escape(message)):
        optimizer.update(grads, optimizer.init(params), params)


@pytest.mark.parametrize("value", [jnp.arange(3), jnp.array(True), jnp.ones(2, jnp.float8_e4m3fn), jax.random.key(0)])
def test_parameters_are_of_a_type_that_state_can_have(value: Any) -> None:
    """Averages of whole numbers and of 8-bit floats would be rounded to these."""
    for name in NAMES:
        params = {"a": value, "b": jnp.ones(3)}
        with pytest.raises(UserError, match=re.escape(f"a has type {value.dtype}; parameters must be bfloat16, ")):
            make(name, params, {}).init(params)
    with pytest.raises(UserError, match=r"^b is a function and no array"):
        make("adamw", {}, {}).init({"a": jnp.ones(3), "b": batch})


@pytest.mark.sample(4, keep=("sgd", "kfac"))
@pytest.mark.parametrize("name", NAMES)
def test_state_keeps_its_types_where_those_of_parameters_differ(name: str) -> None:
    """Otherwise a scan over steps would fail, because the hyper-parameters have the widest type."""
    with jax.enable_x64(True):
        params = start() | {"first": jax.tree.map(lambda value: value.astype("float64"), start()["first"])}
        optimizer = make(name, params, LAYERS)
        _, state = train(name, loss_by_hand, params, LAYERS, optimizer)
        kinds = [[v.dtype for v in jax.tree.leaves(tree)] for tree in (state, optimizer.init(params))]
    assert kinds[0] == kinds[1]
