"""Layers that several torch models share."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class BatchNorm2d(nn.Module):
    """Batch normalisation over fixed groups of consecutive samples (Ioffe and Szegedy 2015).

    Each group of `group` samples is normalised by its own statistics and lies whole on one device, so that a run does
    not depend on the number of devices. Running statistics are the mean over groups, the variance unbiased (torch's
    convention), mixed in with weight `momentum`.

    Args:
        channels: C of inputs (N, C, H, W).
        group: samples that share statistics; N must be a multiple of it.
        eps: added to the variance.
        momentum: weight of the new running statistics, torch's 0.1 (flax calls this decay 0.9).
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, group: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.group, self.eps, self.momentum = group, eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift (N, C, H, W); updates the running statistics in training mode."""
        if not self.training:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        parts, mean, var = [], torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        groups = x.split(self.group)
        for part in groups:
            group_mean, group_var = torch.zeros_like(mean), torch.zeros_like(var)
            # momentum=1 makes torch write the group's own statistics into the two buffers
            parts.append(
                functional.batch_norm(
                    part, group_mean, group_var, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
                )
            )
            mean += group_mean / len(groups)
            var += group_var / len(groups)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def normalize(self, x: Tensor) -> Tensor:
        """The normalised input before scale and shift: what curvature methods see as this layer's x."""
        return torch.cat(
            [functional.batch_norm(part, None, None, training=True, eps=self.eps) for part in x.split(self.group)]
        )
