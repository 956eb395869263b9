"""Adafactor of torch, with its defaults."""

import numpy as np
import torch


def iterates(start: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """The parameter before the first step and after each step; float64 copies of torch's float32 values."""
    parameter = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adafactor([parameter])
    values = [start.astype(np.float64)]
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        values.append(parameter.detach().numpy().astype(np.float64))
    return np.stack(values)
