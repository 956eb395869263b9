"""Parts of a model that `torch.export` does not see: it trains with the model's bits, or an error names the cause."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suite.comm.partition.torch import Device, Pipeline, partition
from suite.contract import UserError

WIDTH, BATCH, MICRO_BATCHES = 4, 8, 4
SAME = "the bits of the model"
NUMBERS = np.random.default_rng(0)
SPEEDS = Device(2**34, 1e9, 1e9)


@pytest.fixture(autouse=True, scope="module")
def alone() -> Iterator[None]:
    """One process of `torch.distributed`."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Between(nn.Module):
    """Two layers; `between` gets the module and what is between them."""

    def __init__(self, between: Callable[..., Tensor]):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.between, self.calls = between, 0

    def forward(self, inputs: Tensor, *more: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(inputs), *more))


class Straight(torch.autograd.Function):
    """Rounds; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Reversed(torch.autograd.Function):
    """A function that keeps the values and turns the gradient around."""

    @staticmethod
    def forward(values: Tensor, scale: float) -> Tensor:
        return values

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * grads[0], None


class Halves(torch.autograd.Function):
    """Two results, with noise."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, weight)
        return values @ weight + torch.rand(WIDTH), values * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        values, weight = ctx.saved_tensors
        return grads[0] @ weight.T + 3 * grads[1], values.T @ grads[0]


class Changing(torch.autograd.Function):
    """Changes its input."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.mark_dirty(values)
        return values.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


straight = Straight.apply  # as quantization papers do


def hooked(model: Any, values: Tensor) -> Tensor:
    values = values.tanh()
    early = values * 2
    values.register_hook(lambda grad: 10 * grad)
    return values.sin() + early


def hooked_twice(model: Any, values: Tensor) -> Tensor:
    result = values.sin()
    values.register_hook(lambda grad: 10 * grad)
    values.register_hook(lambda grad: grad + 1)
    return result


def hooked_weight(model: Any, values: Tensor) -> Tensor:
    model.last.weight.register_hook(lambda grad: 2 * grad)
    return values


def of_a_class_in_forward(model: Any, values: Tensor) -> Tensor:
    class Inner(Straight):
        pass

    return Inner.apply(values)  # type: ignore[return-value]


def without_gradient(model: Any, values: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (values * model.last.weight[0]).abs().mean(1, keepdim=True)
        with torch.autocast("cpu", enabled=False):
            scale = scale + 1
    return values / scale + scale


def counting(model: Any, values: Tensor) -> Tensor:
    model.calls += 1
    return values * model.calls


def train(model: nn.Module, *more: Any, loss: Any = nn.functional.mse_loss, **options: Any) -> Pipeline:
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    batch = (inputs, *more)
    options = {"micro_batches": MICRO_BATCHES, "stages": 1, "speeds": SPEEDS, "seed": 1} | options
    pipeline = partition(model, batch, targets, loss=loss, **options)
    pipeline.step(batch, targets)
    return pipeline


def made(between: Callable[..., Any]) -> Between:
    torch.manual_seed(0)
    return Between(between)


@pytest.mark.parametrize(
    "between",
    [
        lambda _, values: straight(values),
        lambda _, values: Straight.apply(values).relu_(),
        lambda _, values: Reversed.apply(values, 0.5).tanh(),
        lambda model, values: torch.cat(Halves.apply(values, model.last.weight), 0)[: len(values)],
        hooked,
        hooked_twice,
        without_gradient,
    ],
)
def test_own_gradients_are_those_of_the_model(between: Any) -> None:
    """Gradients equal those of the model; the check compares them, and so does this test, without it."""
    model, plain = made(between), made(between)
    pipeline = train(model)
    assert pipeline.checked == SAME
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    size = BATCH // MICRO_BATCHES
    for number in range(MICRO_BATCHES):
        torch.manual_seed(pipeline.seed_of(0, number))
        part = slice(size * number, size * (number + 1))
        nn.functional.mse_loss(plain(inputs[part]), targets[part]).backward()
    for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and torch.equal(mine.grad, other.grad / 4), name


@pytest.mark.parametrize(
    "between, words",
    [
        (lambda _, values: Changing.apply(values), "the autograd function Changing changes an input"),
        (of_a_class_in_forward, r"forward defines the autograd function .*Inner; define it outside forward"),
        (
            lambda _, values: checkpoint(torch.sin, values, use_reentrant=True),
            "use_reentrant=False",
        ),
        (hooked_weight, r"register_hook on model\.last\.weight in forward"),
        (lambda _, values: values * random.random(), "the model draws numbers with random"),
        (lambda _, values: values * float(np.random.rand()), r"the model draws numbers with np\.random"),
        (counting, "in the second pass, because forward changes Python's state: the loss differs"),
        (
            lambda _, values: values * float(NUMBERS.random()),
            "compute something else than the model: the loss differs",
        ),
        (lambda _, values: torch.cond(values.sum() > 0, torch.sin, torch.cos, (values,)), "uses torch.cond"),
        (
            lambda _, values: torch.func.vmap(torch.sin)(values),
            r"\(test_torch_check.py:\d+\) uses a transform of torch.func",
        ),
        (
            lambda _, values: values if values.sum() > 0 else -values,
            r"the model \(test_torch_check.py:\d+\): torch.export rejects it: Could not guard",
        ),
    ],
)
def test_what_a_stage_would_lose_is_rejected(between: Any, words: str) -> None:
    python, numpy = random.getstate(), str(np.random.get_state())
    with pytest.raises(UserError, match=words):
        train(made(between))
    assert (random.getstate(), str(np.random.get_state())) == (python, numpy)
    assert torch.rand(3).shape == (3,) and not torch.compiler.is_exporting()
    assert Straight.forward(None, torch.ones(1)) == 1 and "forward" not in vars(Between(between))


def test_an_error_names_the_layer() -> None:
    inner = made(lambda _, values: values if values.sum() > 0 else -values)
    with pytest.raises(UserError, match=r"cut: 1\.0 \(test_torch_check.py:\d+\): torch.export rejects it"):
        train(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(inner)))


@pytest.mark.parametrize("kind", ["layer", "before", "parameter", "accumulated", "sparse"])
def test_hooks_of_layers_and_parameters_are_rejected(kind: str) -> None:
    model = made(lambda _, values: values)
    if kind == "layer":
        model.first.register_full_backward_hook(lambda *_: None)
    elif kind == "before":
        model.first.register_full_backward_pre_hook(lambda *_: None)
    elif kind == "parameter":
        model.first.weight.register_hook(lambda grad: grad * 2)
    elif kind == "accumulated":
        model.first.weight.register_post_accumulate_grad_hook(lambda _: None)
    else:
        model.between = lambda own, values: values + own.words(torch.zeros(1, dtype=torch.long))
        model.words = nn.Embedding(3, WIDTH, sparse=True)
    words = {"layer": "first has a backward hook", "before": "first has a backward hook"}
    words["sparse"] = r"words \(.*\) has sparse gradients; set sparse=False"
    with pytest.raises(UserError, match=words.get(kind, "the parameter first.weight has a hook")):
        train(model)


def test_a_forward_hook_is_part_of_the_model() -> None:
    model = made(lambda _, values: values)
    model.first.register_forward_hook(lambda *call: 2 * call[-1])
    assert train(model).checked == SAME


def scaled(_: Any, values: Tensor, scale: Tensor) -> Tensor:
    return values * scale.mean().exp()


def test_an_input_as_long_as_the_batch_without_samples_is_named() -> None:
    scale = torch.linspace(-1, 2, BATCH)
    with pytest.raises(UserError, match=r"tensor 1 of the inputs .* batched=\(True, False\)"):
        train(made(scaled), scale)
    assert train(made(scaled), scale, batched=(True, False)).checked == SAME
    assert train(made(lambda _, values, factor: values * factor[:, None]), scale).checked == SAME
    with pytest.raises(UserError, match=r"batched=.*: tensor 1 of the inputs does not have 8 samples along axis 0"):
        train(made(scaled), scale[:3], batched=(True, True))
    with pytest.raises(UserError, match="pass a truth value for each of the 2 inputs"):
        train(made(scaled), scale, batched=(True,))


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    mask = (targets.cumsum(0) > 0.5).to(outputs)
    return ((outputs - targets) ** 2 * mask).sum() / mask.sum()


def words_only(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    mask = (targets > 0.5).to(outputs)
    return ((outputs - targets) ** 2 * mask).sum(), mask.sum()


def test_a_mean_over_words_is_rejected_and_a_sum_with_a_weight_is_the_mean_of_all() -> None:
    with pytest.raises(UserError, match=r"and the mean of their losses .*: return the losses' sum and weight"):
        train(made(lambda _, values: values), loss=masked)
    assert train(made(lambda _, values: values), loss=lambda *both: (masked(*both), 1)).checked == SAME
    model, plain = made(lambda _, values: values), made(lambda _, values: values)
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    total, weight = words_only(plain(inputs), targets)
    (total / weight).backward()
    pipeline = train(model, loss=words_only)
    for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name)
    assert pipeline.step((inputs,), targets).item() == pytest.approx((total / weight).item(), rel=1e-6)


@pytest.mark.parametrize("loss", [lambda o, y: o - y, lambda o, y: (y**2).mean(), lambda o, y: (o.mean(), o.mean())])
def test_a_loss_that_is_no_number_of_the_parameters_is_rejected(loss: Any) -> None:
    with pytest.raises(
        UserError, match=r"the model cannot be cut: the (weight of the )?loss (must be|does not depend)"
    ):
        train(made(lambda _, values: values), loss=loss)


def test_the_check_says_why_it_did_not_check() -> None:
    model = made(counting)
    assert train(model, check=False).checked == "not checked: check=False"
    assert "two models with gradients need 640 B of 600 B" in train(model, memory=600.0).checked


def test_a_check_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout())
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    options = {"micro_batches": MICRO_BATCHES, "stages": 1, "speeds": SPEEDS}
    pipeline = partition(model, (inputs,), targets, loss=nn.functional.mse_loss, **options)
    assert pipeline.checked == SAME
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert not [name for name, value in model.named_parameters() if value.grad is not None]
