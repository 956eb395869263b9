"""Muon of torch."""

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode


def count_flops(shapes: Sequence[tuple[int, int]]) -> int:
    """Return the FLOPs of the matrix products in one step, for parameters of these shapes without values."""
    parameters = [torch.zeros(shape, device="meta", requires_grad=True) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Muon(parameters)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    return counter.get_total_flops()
