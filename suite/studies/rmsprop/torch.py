"""RMSprop of torch."""

import numpy as np
import torch


def moved(gradients: np.ndarray, decay: float | None) -> np.ndarray:
    """Where parameters that start at 0 are after one step for each row of gradients."""
    parameter = torch.zeros(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    if decay is None:
        optimizer = torch.optim.RMSprop([parameter], lr=0.01)
    else:
        optimizer = torch.optim.RMSprop([parameter], lr=0.01, alpha=decay)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy()
