"""Gradients are summed in the arrays in which they are sent."""

import functools
from typing import Any

import pytest
import torch
from reducing import LOCALS, WORLD, channels
from simulated_torch import simulate
from torch import Tensor, nn

from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule
from suite.comm.schedules.overlap.torch import Overlap
from suite.comm.schedules.stale.torch import DoubleBuffering
from suite.engine.torch_step import Maths

pytestmark = pytest.mark.quick
SHAPES = {"first.weight": (3, 3), "first.bias": (3,), "last.weight": (2, 3)}
FLOAT32, TWO_LEVEL = {}, {"topology": "two_level", "codec": "float21", "algorithm": "ring", "feedback": True}


class Net(nn.Module):
    """Two layers, one of them without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2, bias=False)

    def forward(self, batch: Tree, carry: Tree, key: tuple[int, int]) -> tuple[Tree, Tree]:
        return {"outputs": self.last(self.first(batch["x"]))}, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        return (outputs["outputs"].square().sum(1) * batch["weight"]).sum(), batch["weight"].sum()


def step(transport: Any, kind: type[Schedule], changes: dict[str, Any], *, joined: bool) -> list[Tree]:
    """Return a rank's means in two steps; `joined`: the gradients are summed where they will be sent."""
    reduce, net = Reduce(transport, channels("torch", shapes=SHAPES, **changes)), Net()
    for number, parameter in enumerate(net.parameters()):
        nn.init.uniform_(parameter, -1, 1, torch.Generator().manual_seed(number))
    named, means = dict(net.named_parameters()), []
    schedule = kind(reduce, named)
    maths = Maths(net, net, named, {}, (), reduce, 0.0, False, torch.device("cpu"))
    if not joined:
        reduce.make_sums = lambda like: {}  # type: ignore[method-assign]
    for number in range(2):
        reduce.key = 0, number
        drawn = torch.Generator().manual_seed(10 * number + transport.rank)
        micro = [{"x": torch.rand(4, 3, generator=drawn), "weight": torch.ones(4)} for _ in range(2)]
        schedule.begin()
        watch = lambda weight: schedule.watch(weight, parcels={})  # noqa: E731
        share = maths.evaluate(
            micro, [{}, {}], (0, number), observe=None, observed=schedule.observed, watch=watch, known=True
        )
        one = {value.untyped_storage().data_ptr() for value in share.sums.values()}
        assert len(one) == 1 if joined else len(one) == len(SHAPES)
        with torch.no_grad():
            means.append({name: value.clone() for name, value in schedule.mean(share.sums, share.weight).items()})
        assert kind is DoubleBuffering or not reduce.sums, "an array of sums was copied, not sent"
    return means


@pytest.mark.parametrize("kind", [Schedule, Overlap, DoubleBuffering])
@pytest.mark.parametrize("changes", [FLOAT32, TWO_LEVEL])
def test_joined_sums_have_the_means_of_separate_ones(kind: type[Schedule], changes: dict[str, Any]) -> None:
    joined, apart = (
        simulate(functools.partial(step, kind=kind, changes=changes, joined=joined), WORLD, LOCALS if changes else 0)
        for joined in (True, False)
    )
    for one, other in zip(joined, apart, strict=True):
        for means, others in zip(one, other, strict=True):
            assert all(torch.equal(means[name], others[name]) for name in SHAPES)


def test_only_sums_are_overwritten() -> None:
    """Other values of the same names are copied before they are sent, also parts of one array."""

    def body(transport: Any) -> None:
        reduce = Reduce(transport, channels("torch", shapes=SHAPES))
        like = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        flat = torch.arange(18.0)
        parts = dict(zip(SHAPES, (flat[:9].view(3, 3), flat[9:12], flat[12:].view(2, 3)), strict=True))
        sums = reduce.make_sums(like)
        mean = reduce.mean("gradients", parts, gradients=True)
        assert all(torch.equal(mean[name], parts[name]) for name in SHAPES) and reduce.sums
        mean["first.weight"].zero_()
        assert torch.equal(flat, torch.arange(18.0))
        sent = reduce.mean("gradients", sums, gradients=True)
        assert all(sent[name].data_ptr() == sums[name].data_ptr() for name in SHAPES) and not reduce.sums

    simulate(body, WORLD)
