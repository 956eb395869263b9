"""CaffeNet in torch."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.tasks._images.torch import Classifier
from suite.tasks._nn.torch import dropout
from suite.tasks.caffenet import CaffeNet
from suite.tasks.caffenet.architecture import (
    DROPOUT,
    NORM_ALPHA,
    NORM_BETA,
    NORM_SIZE,
    POOL,
    POOL_STRIDE,
    Architecture,
)


class Model(Classifier):
    """Images to class logits.

    Args:
        architecture: the network's sizes.
        dropout: of fc6's and fc7's outputs.
        smoothing: label smoothing ε.
    """

    def __init__(self, architecture: Architecture, *, dropout: float = DROPOUT, smoothing: float = 0.0):
        super().__init__(architecture.classes, smoothing=smoothing)
        self.at, self.dropout = architecture, dropout
        for conv in architecture.convolutions:
            sizes = conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.padding
            self.add_module(conv.name, nn.Conv2d(*sizes, groups=conv.groups))
        for name, sizes in architecture.linears.items():
            self.add_module(name, nn.Linear(*sizes))

    def logits(self, x: Tensor, *, key: tuple[int, int] | None, index: Tensor) -> Tensor:
        """(N, 3, S, S) images to (N, classes) logits."""
        for conv in self.at.convolutions:
            x = torch.relu(self.get_submodule(conv.name)(x))
            if conv.pool:
                x = functional.max_pool2d(x, POOL, POOL_STRIDE, ceil_mode=True)
            if conv.norm:
                x = normalize_responses(x)
        x = x.flatten(1)
        drop = functools.partial(dropout, rate=self.dropout, key=key if self.training else None, index=index)
        for name in ("fc6", "fc7"):
            x = drop(torch.relu(self.get_submodule(name)(x)), name=name)
        return self.get_submodule("fc8")(x)


def normalize_responses(x: Tensor) -> Tensor:
    """Return (N, C, H, W) divided by a power of the mean square over neighbouring channels.

    `functional.local_response_norm` computes the same, but on a GPU its gradient has no deterministic kernel.
    """
    squares = functional.pad((x * x).flatten(2), (0, 0, NORM_SIZE // 2, (NORM_SIZE - 1) // 2))
    means = functional.avg_pool2d(squares, (NORM_SIZE, 1), stride=1).view_as(x)
    return x / means.mul(NORM_ALPHA).add(1.0).pow(NORM_BETA)


def make(task: CaffeNet) -> Model:
    """Make the task's model; its weights are set later."""
    return Model(task.architecture, dropout=task.dropout, smoothing=task.smoothing)
