"""Layers whose classes, hooks or calls a user wrote: right statistics, or an error that names the cause."""

import copy
from collections.abc import Callable
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.contract import UserError
from suite.engine import jax_alone
from suite.engine.torch_alone import layers_of, observed
from suite.optimizers.kfac.torch import make as kfac
from suite.optimizers.vogn.jax import make as vogn_in_jax
from suite.optimizers.vogn.torch import make as vogn


class Cast(nn.Linear):
    """Its weight in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).to(x.dtype)


class Scaled(nn.Linear):
    """Its weight times a number."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, 3.0 * self.weight, self.bias)


class Standardised(nn.Conv2d):
    """Its filters with a mean of zero; `Conv2d.forward` calls this method."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Activated(nn.Linear):
    """With its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


def observe(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, run: Callable[..., Tensor] | None = None
) -> None:
    with observed(model, optimizer):
        (run or model)(x).square().mean().backward()


@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [(Scaled, (3, 2), (4, 3)), (Activated, (3, 2), (4, 3)), (Standardised, (2, 2, 3), (4, 2, 5, 5))],
)
def test_a_layer_that_computes_something_else_is_named(
    kind: type[nn.Module], arguments: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)  # a filter whose mean happens to be about zero is Standardised's own
    layer = kind(*arguments)
    model = nn.Sequential(layer)
    optimizer = kfac(model.named_parameters(), layers=layers_of(model))
    with pytest.raises(UserError, match=rf"layer 0 \({type(layer).__name__}\) does not compute what its weight"):
        observe(model, optimizer, torch.randn(shape))


def test_a_layer_that_casts_its_weight_is_observed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Cast(3, 2))
    optimizer = kfac(model.named_parameters(), layers=layers_of(model))
    observe(model, optimizer, torch.randn(4, 3))
    optimizer.step()


def test_hooks_that_change_an_output_do_not_change_the_statistics() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 2)).double(), torch.randn(4, 3).double()
    model[0].register_forward_hook(lambda module, inputs, output: 5.0 * output)
    optimizer = vogn(model.named_parameters(), layers=layers_of(model), samples=4)
    observe(model, optimizer, x)
    alone = torch.stack([torch.autograd.grad(model(each[None]).square().mean(), model[0].weight)[0] for each in x])
    torch.testing.assert_close(optimizer.seen()["0.weight"], alone.square().mean(0))


class Twice(nn.Module):
    """Calls a layer for one token, and for each sample."""

    def __init__(self, *, token_first: bool) -> None:
        super().__init__()
        self.inner, self.token_first = nn.Linear(3, 3), token_first

    def forward(self, x: Tensor) -> Tensor:
        calls = [self.inner(x[:1]), self.inner(x)] if self.token_first else [self.inner(x), self.inner(x[:1])]
        return calls[0] + calls[1]


@pytest.mark.parametrize("token_first", [True, False])
@pytest.mark.parametrize("make", [kfac, vogn])
def test_calls_with_other_numbers_of_samples_are_named(make: Any, token_first: bool) -> None:
    model = Twice(token_first=token_first)
    samples = {"samples": 4} if make is vogn else {}
    optimizer = make(model.named_parameters(), layers=layers_of(model), **samples)
    with pytest.raises(UserError, match=r"first axis of layer inner has length \d, that of another call or layer \d"):
        observe(model, optimizer, torch.randn(4, 3))


def test_a_compiled_model_that_was_called_before_is_the_cause() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer, compiled = kfac(model.named_parameters(), layers=layers_of(model)), torch.compile(model, backend="eager")
    compiled(x)
    with pytest.raises(UserError, match=r"none was called inside.*torch\.compile"):
        observe(model, optimizer, x, compiled)


def test_gradients_in_float16_are_not_unscaled() -> None:
    model, scaler = nn.Sequential(nn.Linear(3, 3)).half(), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = kfac(model.named_parameters(), layers=layers_of(model))
    with observed(model, optimizer, scaler=scaler):
        scaler.scale(model(torch.ones(4, 3).half()).square().mean()).backward()
    with pytest.raises(UserError, match="a GradScaler cannot unscale gradients in float16"):
        scaler.step(optimizer)


# ------------------------------------------------------------------------------------------------------------- jax
class Tripled(linen.Dense):
    """Calls flax's own method inside."""

    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        return 3.0 * super().__call__(inputs)


class Once(linen.Module):
    """Calls a layer for one sample, then for all of them."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        dense = linen.Dense(3)
        return dense(x[:1]) + dense(x)


def lose(model: linen.Module) -> Callable[..., Any]:
    return lambda params, x: jnp.mean(jnp.sum(model.apply({"params": params}, x) ** 2, 1))


def test_a_layer_of_flax_that_is_called_inside_another_method_is_tapped_once() -> None:
    x, model = jax.random.normal(jax.random.key(0), (4, 3)), linen.Sequential([Tripled(2)])
    params, loss = model.init(jax.random.key(1), x)["params"], lose(model)
    optimizer = vogn_in_jax(layers=jax_alone.layers_of(loss, params, x), shapes=jax_alone.shapes_of(params), samples=4)
    _, _, statistics = jax_alone.observing(loss, optimizer)(params, optimizer.init(params), x)
    alone = jax.vmap(lambda each: jax.grad(loss)(params, each[None])["layers_0"]["kernel"])(x)
    found = next(value for name, value in statistics.items() if name.endswith("kernel"))
    np.testing.assert_allclose(np.asarray(found).reshape(2, 3).T, (alone**2).mean(0), rtol=1e-5)


def test_calls_in_flax_with_other_numbers_of_samples_are_named() -> None:
    x, model = jax.random.normal(jax.random.key(0), (4, 3)), Once()
    params, loss = model.init(jax.random.key(1), x)["params"], lose(model)
    optimizer = vogn_in_jax(layers=jax_alone.layers_of(loss, params, x), shapes=jax_alone.shapes_of(params), samples=4)
    with pytest.raises(UserError, match="lengths are Dense_0 1, Dense_0 4"):
        jax_alone.observing(loss, optimizer)(params, optimizer.init(params), x)


@pytest.mark.parametrize("other", ["a copy", "another first layer"])
def test_a_model_with_other_parameters_is_refused(other: str) -> None:
    """Its statistics would be those of other weights."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = kfac(model.named_parameters(), layers=layers_of(model), lr=0.1)
    if other == "a copy":
        model = copy.deepcopy(model)
    else:
        model[0] = nn.Linear(3, 4)
    with pytest.raises(UserError, match=r"0\.weight of this model is not the optimizer's"), observed(model, optimizer):
        pytest.fail("it was accepted")
