"""Models that change tensors in place, in every form: the bits of the model, or a rejection that says what to write."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.partition.torch.alone import run
from suite.comm.partition.torch.profile import profile_stages
from suite.comm.partition.torch.trace import trace_model
from suite.contract import UserError

WIDTH, BATCH, MICRO_BATCHES = 8, 8, 4
CPU = torch.device("cpu")


class Changing(nn.Module):
    """Two layers; `between` gets the module and the values between them."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(inputs)).tanh())


def slice_assigned(model: Any, values: Tensor) -> Tensor:
    values[:, 0] = 0.5
    return values


def interleaved(model: Any, values: Tensor) -> Tensor:
    made = torch.zeros_like(values)
    made[:, ::2] = values[:, 1::2]
    made[:, 1::2].add_(values[:, ::2].sigmoid())
    return made


def through_a_view(model: Any, values: Tensor) -> Tensor:
    values = values * 2
    values.view(-1, 2, 4).add_(1)
    return values


def copied(model: Any, values: Tensor) -> Tensor:
    made = torch.zeros(values.shape[0], WIDTH)
    made.copy_(values)
    return made


def converted(model: Any, values: Tensor) -> Tensor:
    made = values.to(torch.float32, copy=True)
    return made.mul_(2.0).add_(values)


def transposed(model: Any, values: Tensor) -> Tensor:
    values = values.clone()
    values.transpose(0, 1)[0].fill_(1.0)
    return values


def averaged(model: Any, values: Tensor) -> Tensor:
    model.average.lerp_(values.detach().mean(0), 0.1)
    return values - model.average


def assigned(model: Any, values: Tensor) -> Tensor:
    model.average = model.average * 0.9 + 0.1 * values.detach().mean(0)
    return values - model.average


def without_gradient(model: Any, values: Tensor) -> Tensor:
    with torch.no_grad():
        model.average.mul_(0.9).add_(values.mean(0), alpha=0.1)
    return values - model.average


def in_another_type(model: Any, values: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return values @ values.T @ values


def as_output(model: Any, values: Tensor) -> Tensor:
    torch.add(model.average, 1.0, out=model.average)
    return values - model.average


def of_a_list(model: Any, values: Tensor) -> Tensor:
    torch._foreach_add_([model.average], 1.0)
    return values - model.average


def selected(model: Any, values: Tensor) -> Tensor:
    return values[values > 0].sum() + values


class InputChanged(Changing):
    """Changes its input, through a view too."""

    def forward(self, inputs: Tensor) -> Tensor:
        inputs.mul_(1.5)
        inputs[:, 0].add_(1.0)
        return super().forward(inputs)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 1, generator=generator)


def made(kind: type[Changing], between: Callable[[Any, Tensor], Tensor]) -> Changing:
    torch.manual_seed(0)
    return kind(between)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    "kind, between",
    [
        *((Changing, one) for one in (slice_assigned, interleaved, through_a_view, copied, converted)),
        *((Changing, one) for one in (transposed, averaged)),
        (Changing, without_gradient),
        (InputChanged, averaged),
    ],
)
def test_stages_have_the_bits_of_the_model(kind: type[Changing], between: Any, recompute: bool) -> None:
    model, plain, (inputs, targets), size = made(kind, between), made(kind, between), batch(), BATCH // MICRO_BATCHES
    expected = []
    for number in range(MICRO_BATCHES):
        part = slice(number * size, (number + 1) * size)
        loss = nn.functional.mse_loss(plain(inputs[part].clone()), targets[part])
        loss.backward()
        expected.append(loss.detach())
    traced = trace_model(model, (inputs[:size].clone(),), targets[:size], loss=nn.functional.mse_loss)
    graph = profile_stages(traced, CPU)
    request = Request(2, BATCH, Device(2**40, 1.0, 1.0), ONE_HOST, 2, MICRO_BATCHES, "gpipe")
    plans = plan(graph, request)
    plans = replace(plans, stages=tuple(replace(stage, recompute=recompute) for stage in plans.stages))
    assert len(plans.stages) == 2
    before = inputs.clone()
    step = run(traced, plans, ((inputs,), targets))
    assert all(map(torch.equal, step.losses, expected))
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None and torch.equal(step.sums[name], parameter.grad), name
    assert torch.equal(model.average, plain.average)
    assert torch.equal(inputs, before), "the caller's batch stays as it is"


@pytest.mark.parametrize(
    "between, message",
    [
        (assigned, r"assigns a new tensor to the buffer average; change it in place, .* self\.average\.copy_"),
        (in_another_type, r"uses torch\.autocast; convert the values instead"),
        (as_output, r"changes values by aten\.add\.out; write it in place on one tensor"),
        (of_a_list, r"changes values by aten\._foreach_add_\.Scalar"),
        (selected, r"a shape or a branch depends on values: aten\.nonzero"),
    ],
)
def test_what_a_stage_could_not_repeat_is_rejected(between: Any, message: str) -> None:
    model, (inputs, targets) = made(Changing, between), batch()
    with pytest.raises(UserError, match=f"the model cannot be cut: .*{message}"):
        trace_model(model, (inputs,), targets, loss=nn.functional.mse_loss)


def test_a_parameter_that_forward_changes_is_rejected() -> None:
    model = nn.Sequential(nn.Embedding(10, WIDTH, max_norm=1.0), nn.Linear(WIDTH, 1))
    with pytest.raises(UserError, match=r"the model cannot be cut: 0 changes the parameter 0\.weight in place"):
        trace_model(model, (torch.arange(4),), torch.ones(4, 1), loss=nn.functional.mse_loss)


class Masked(nn.Module):
    """Each layer makes its mask in place, from a copy of the numbers of the samples, as the suite's dropout does."""

    def __init__(self, copy: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.copy = copy

    def forward(self, inputs: Tensor, index: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            mask = self.copy(index).bitwise_xor_(number).bitwise_and_(1)
            inputs = layer(inputs) * mask[:, None]
        return inputs


@pytest.mark.parametrize("copy", [lambda x: x.to(torch.int64, copy=True), lambda x: x.to(torch.int32), Tensor.clone])
def test_a_copy_that_is_changed_keeps_no_layers_together(copy: Callable[[Tensor], Tensor]) -> None:
    inputs = torch.ones(4, WIDTH), torch.arange(4)
    traced = trace_model(Masked(copy), inputs, torch.ones(4, WIDTH), loss=nn.functional.mse_loss)
    assert not [node.name for node in traced.graph.nodes if node.changes]


class Weighted(nn.Module):
    """A second input of four numbers, the same for every micro-batch of four samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, inputs: Tensor, weights: Tensor) -> Tensor:
        return (self.layer(inputs) * weights).sum(1, keepdim=True)


def test_an_input_as_long_as_a_micro_batch_may_be_shared() -> None:
    inputs, targets, weights = torch.ones(16, WIDTH), torch.ones(16, 1), torch.arange(4.0)
    split = [True, False, True]
    traced = trace_model(Weighted(), (inputs[:4], weights), targets[:4], loss=nn.functional.mse_loss, split=split)
    assert list(traced.split.values()) == split
    made = plan(traced.graph, Request(2, 16, Device(2**40, 1e9, 1e9), ONE_HOST, 2, 4, "gpipe"))
    assert len(run(traced, made, ((inputs, weights), targets)).losses) == 4


def test_a_value_with_a_lazy_conjugate_travels() -> None:
    from suite.comm.partition.torch.links import pack_values, unpack_values
    from suite.comm.partition.torch.rehearsal import read_form

    value = torch.fft.rfft(torch.randn(4, 8, generator=torch.Generator().manual_seed(0))).conj()
    [received] = unpack_values(pack_values([value], [read_form(value)]), [read_form(value)])
    assert torch.equal(received, value.resolve_conj())
