"""Inputs and outputs of a model: keyword arguments, containers, values that no stage makes; and empty messages."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.partition.torch.alone import run
from suite.comm.partition.torch.trace import Traced, trace_model
from suite.contract import UserError

WIDTH, BATCH, COUNT = 8, 8, 4
FREE = Device(2**40, 1e9, 1e9)


def planned(model: nn.Module, inputs: Any, targets: Any, loss: Any, stages: int) -> tuple[Traced, Plan]:
    first = pytree.tree_map(lambda leaf: leaf[: BATCH // COUNT], (inputs, targets))
    traced = trace_model(model, *first, loss=loss, outputs=True)
    made = plan(traced.graph, Request(stages, BATCH, FREE, ONE_HOST, stages, COUNT, "1f1b"))
    assert len(made.stages) == stages
    return traced, made


class Nested(nn.Module):
    """Takes keyword arguments; returns containers, an input, constants, no tensors, and maybe a parameter."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor, *, mask: Tensor, factor: float = 1.0) -> dict[str, Any]:
        hidden = (self.first(values) * mask).tanh()
        result = self.last(hidden) * factor
        more = {"input": mask, "constant": torch.arange(3.0), **({"weight": self.last.weight} if self.whole else {})}
        return {"logits": result, "all": [hidden, (result, None, 3, "word")], "twice": hidden, **more}


@pytest.mark.parametrize("stages", [1, 2])
def test_nested_outputs_are_those_of_the_model(stages: int) -> None:
    torch.manual_seed(0)
    model, targets = Nested(), torch.randn(BATCH, WIDTH)
    inputs = {"values": torch.randn(BATCH, WIDTH), "mask": torch.rand(BATCH, 1)}

    def loss(outputs: Any, wanted: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs["logits"], wanted)

    step = run(*planned(model, inputs, targets, loss, stages), (inputs, targets))
    for number, found in enumerate(step.outputs):
        part = slice(2 * number, 2 * number + 2)
        expected = model(**{name: value[part] for name, value in inputs.items()})
        assert pytree.tree_structure(found) == pytree.tree_structure(expected)
        for mine, whole in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert torch.equal(mine, whole) if isinstance(whole, Tensor) else mine == whole


def test_a_parameter_is_no_output() -> None:
    inputs, loss = (
        {"values": torch.ones(2, WIDTH), "mask": torch.ones(2, 1)},
        lambda outputs, _: outputs["logits"].sum(),
    )
    trace_model(Nested(whole=True), inputs, loss=loss)
    with pytest.raises(UserError, match=r"it returns last\.weight, which belongs to a stage"):
        trace_model(Nested(whole=True), inputs, loss=loss, outputs=True)


class Unused(nn.Module):
    """Begins with a layer whose result is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.first, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        self.unused(values)
        return self.last(self.first(values).tanh())


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_stage_may_send_nothing(stages: int) -> None:
    torch.manual_seed(0)
    model, inputs, targets = Unused(), (torch.randn(BATCH, WIDTH),), torch.randn(BATCH, WIDTH)
    traced, made = planned(model, inputs, targets, nn.functional.mse_loss, stages)
    first = next(node for node in traced.graph.nodes if node.layer == "unused")
    if stages == 2:  # the planner would balance them
        own = (traced.graph.nodes.index(first),)
        made = _cut(made, own)
    step = run(traced, made, (inputs, targets))
    for number in range(COUNT):
        part = slice(2 * number, 2 * number + 2)
        nn.functional.mse_loss(model(inputs[0][part]), targets[part]).backward()
    grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert step.sums.keys() == grads.keys() and all(torch.equal(grad, grads[name]) for name, grad in step.sums.items())


def _cut(made: Plan, first: tuple[int, ...]) -> Plan:
    """Return a plan whose first stage has these operations, and sends nothing."""
    nodes = sorted({node for stage in made.stages for node in stage.nodes} - set(first))
    last = replace(made.stages[1], nodes=tuple(nodes), receives=())
    return replace(made, stages=(replace(made.stages[0], nodes=first), last))
