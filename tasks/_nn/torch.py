"""Layers that several torch models share."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite import stream
from suite.stream.torch import Key, is_compiling, keep


class BatchNorm2d(nn.Module):
    """Batch normalisation over fixed groups of consecutive samples (Ioffe and Szegedy 2015).

    Each group of `group` samples is normalised by its own statistics and is on one device, so that a run does not
    depend on the number of devices. Running statistics are updated with the mean over groups, with unbiased variance
    (torch's convention) and weight `momentum`.

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
        groups = x.split(self.group) if len(x) > self.group else (x,)
        if len(groups) > 1 and is_compiling():
            return self._normalize_groups(x)
        share, parts = self.momentum / len(groups), []
        for left, part in zip(reversed(range(len(groups))), groups, strict=True):
            # one after another, with weights such that every group contributes its share to the running statistics
            weight = share / (1.0 - share * left)
            statistics = self.running_mean, self.running_var
            parts.append(
                functional.batch_norm(
                    part, *statistics, self.weight, self.bias, training=True, momentum=weight, eps=self.eps
                )
            )
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _normalize_groups(self, x: Tensor) -> Tensor:
        """Do the same for all groups at once; the compiler makes as many kernels of it as for one group."""
        parts = widen_floats(x).unflatten(0, (-1, self.group))  # (groups, samples, C, H, W)
        variance, mean = torch.var_mean(parts, (1, 3, 4), correction=0, keepdim=True)
        count = parts[0, :, 0].numel()
        with torch.no_grad():
            self.running_mean.lerp_(mean.mean(0).flatten(), self.momentum)
            self.running_var.lerp_(variance.mean(0).flatten() * (count / (count - 1)), self.momentum)
        weight, bias = self.weight[:, None, None], self.bias[:, None, None]
        return ((parts - mean) * ((variance + self.eps).rsqrt() * weight) + bias).flatten(0, 1).to(x.dtype)

    def normalize(self, x: Tensor) -> Tensor:
        """Return the normalised input before scale and shift: which curvature methods use as this layer's input."""
        return torch.cat(
            [functional.batch_norm(part, None, None, training=True, eps=self.eps) for part in x.split(self.group)]
        )


def widen_floats(x: Tensor) -> Tensor:
    """Return x in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each label of sequences (N, T), from logits (N, T, C), in at least float32.

    `functional.cross_entropy` computes the same, but on a GPU it has no deterministic kernel for several positions.
    """
    each = widen_floats(logits).transpose(1, 2).log_softmax(1)
    return -each.gather(1, labels.long()[:, None])[:, 0]


def draw_labels(logits: Tensor, draws: Tensor) -> Tensor:
    """Return a class (…) of each distribution, from logits (…, C) and uniform draws (…); int64.

    Probabilities are summed as multiples of 2⁻³⁰, because a GPU has no deterministic sum of floats up to each class.
    """
    shares = widen_floats(logits).softmax(-1).mul(2.0**30).round().int()
    below = shares.cumsum(-1, dtype=torch.int32) < draws.mul(2.0**30).int()[..., None]
    return below.sum(-1).clamp(max=logits.shape[-1] - 1)


def dropout(x: Tensor, rate: float, *, key: Key | None, name: str, index: Tensor) -> Tensor:
    """Set each element of (N, …) to 0 with probability `rate`, and divide the others by 1 - rate.

    The draw is a function of (seed, step, name, sample, element), and the rate is rounded: see `suite.stream`.
    `index` (N,) numbers the samples.
    """
    if not rate or key is None:
        return x
    kept = keep(key, name, index, math.prod(x.shape[1:]), rate).view(x.shape)
    return torch.where(kept, x / stream.share_kept(rate), 0.0)


def attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, drop: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Softmax(Q Kᵀ / √d) V (Vaswani et al. 2017, eq. 1).

    Args:
        query: (N, heads, T, d).
        key: (N, heads, S, d).
        value: (N, heads, S, d).
        allowed: booleans that broadcast to (N, heads, T, S): the positions that a query may attend to; at least one.
        drop: dropout on the attention's probabilities; None uses torch's fused kernel.

    Returns:
        (N, heads, T, d).
    """
    if drop is None:
        return functional.scaled_dot_product_attention(query, key, value, allowed)
    scores = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return drop(scores.softmax(-1)) @ value


def split_heads(x: Tensor, count: int) -> Tensor:
    """(N, T, count · d) as (N, count, T, d)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(N, count, T, d) as (N, T, count · d)."""
    return x.transpose(1, 2).flatten(2)
