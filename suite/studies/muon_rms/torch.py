"""Muon of torch."""

import numpy as np
import torch


def make_update(gradient: np.ndarray) -> np.ndarray:
    """Return the first step of Muon with the learning rate 1."""
    parameter = torch.zeros(gradient.shape, requires_grad=True)
    optimizer = torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    parameter.grad = torch.from_numpy(gradient).float()
    optimizer.step()
    return parameter.detach().double().numpy()
