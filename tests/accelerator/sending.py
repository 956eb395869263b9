"""Schedules that send beside a step, on the pretend device, in the process of `conftest.py`."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from accelerator import device
from suite.comm.codecs.bfloat16.torch import make as make_codec
from suite.comm.encoder.torch import Encoder
from suite.comm.schedules._base.torch import Schedule
from suite.comm.schedules._base.torch_background import Background
from suite.comm.schedules.overlap.torch import Overlap
from suite.comm.schedules.stale.torch import DoubleBuffering


class Halves:
    """In the place of a `Reduce` over two ranks: the other rank's gradients are 0."""

    world, transport, channels, key = 2, SimpleNamespace(world=2), None, (0, 0)

    def __init__(self) -> None:
        self.early: dict[str, Tensor] = {}
        self.state: dict[str, Tensor] = {}

    def buckets(self, gradients: dict[str, Tensor]) -> list[Any]:
        return [(name, None, [name]) for name in reversed(gradients)]

    def bucket(self, name: str, channel: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {member: value / 2 for member, value in values.items()}


def send() -> dict[str, dict[str, Any]]:
    """Make two steps with each schedule.

    Returns:
        For each schedule the gradients of the second step, and whether another stream made them.
    """
    with device.Tensors():
        reduces = Halves(), Halves()
        model = nn.Linear(2, 2).to("cuda")
        named = dict(model.named_parameters())
        schedules: list[Schedule] = [Overlap(reduces[0], named), DoubleBuffering(reduces[1], named)]  # type: ignore[arg-type]
        schedules[1].delayed = reduces[1]  # type: ignore[attr-defined]
        return {type(schedule).__name__: train(schedule, model) for schedule in schedules}


def resume() -> list[float]:
    """Send in another stream with a residual that the step's stream has made, as a resumed run does; return means."""
    background, state = Background(device.CUDA), dict[str, Tensor]()

    def encode() -> dict[str, Tensor]:
        with device.Tensors():  # of the thread
            encoder = Encoder("gradient", make_codec(), state, (0, 0), 0)
            return {"mean": encoder.decode(encoder.encode("slot", rows), rows[0])}

    with device.Tensors():
        rows = torch.ones(1, 3).to("cuda")
        state["gradient/slot"] = torch.full((1, 3), 0.5).to("cuda")
        return background.collect(background.submit(encode, [rows]))["mean"][0].tolist()


def train(schedule: Schedule, model: nn.Linear) -> dict[str, Any]:
    """Make two steps whose gradients differ; the loss is linear."""
    named, means = dict(model.named_parameters()), dict[str, Tensor]()
    weight = torch.ones((), device="cuda")
    for step in (1, 2):
        schedule.begin()
        for parameter in named.values():
            parameter.grad = None
        with schedule.watch(weight, parcels={}):
            model(torch.full((3, 2), float(step), device="cuda")).sum().backward()
        sums = {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None}
        means = schedule.mean(sums, weight)
    beside = all(value.streams[0] is not device.USUAL for value in means.values() if isinstance(value, device.OnDevice))
    with torch.no_grad():
        return {"means": {name: (value * 1).tolist() for name, value in means.items()}, "beside": beside}
