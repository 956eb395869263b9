"""SGD of torch."""

import numpy as np
import torch


def move(gradients: np.ndarray, rates: np.ndarray, momentum: float, dampening: float) -> np.ndarray:
    """Return how far SGD moves parameters from 0, by one step for each row of gradients and each learning rate."""
    parameter = torch.zeros(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum, dampening=dampening)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy()
