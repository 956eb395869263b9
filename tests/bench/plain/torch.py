"""A training step of a hand-written torch model."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

asarray = torch.asarray


def parameters(model: nn.Module) -> int:
    """Return the number of trained values."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def filled(model: nn.Module, values: Iterable[Tensor]) -> nn.Module:
    """Return the model with its parameters set, in their order."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            assert parameter.shape == value.shape
            parameter.copy_(value)
    return model


def step(model: nn.Module, lr: float) -> Callable[[dict[str, np.ndarray]], float]:
    """Forward, backward, torch's own SGD, loss to the host; the model returns a batch's mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def call(batch: dict[str, np.ndarray]) -> float:
        loss = model({name: torch.from_numpy(value) for name, value in batch.items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return call
