"""ResNets in torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.tasks._images.resnet import Architecture, Block, Convolution
from suite.tasks._images.torch import Classifier
from suite.tasks._nn.torch import BatchNorm2d


def _convolution(conv: Convolution) -> nn.Conv2d:
    return nn.Conv2d(conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.padding, bias=False)


class Residual(nn.Module):
    """A block's convolutions around its shortcut."""

    def __init__(self, block: Block, group: int):
        super().__init__()
        self.depth = len(block.body)
        for place, conv in enumerate(block.body, 1):
            self.add_module(f"conv{place}", _convolution(conv))
            self.add_module(f"bn{place}", BatchNorm2d(conv.outputs, group=group))
        self.downsample = nn.Sequential()
        if block.shortcut:
            self.downsample = nn.Sequential(
                _convolution(block.shortcut), BatchNorm2d(block.shortcut.outputs, group=group)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H / stride, W / stride)."""
        y = x
        for place in range(1, self.depth + 1):
            y = self.get_submodule(f"bn{place}")(self.get_submodule(f"conv{place}")(y))
            y = torch.relu_(y if place < self.depth else y + self.downsample(x))
        return y


class ResNet(Classifier):
    """Images to class logits.

    Args:
        architecture: the network's sizes.
        smoothing: label smoothing ε.
    """

    def __init__(self, architecture: Architecture, *, smoothing: float = 0.0):
        super().__init__(architecture.classes, smoothing=smoothing)
        self.depth, self.small = len(architecture.blocks), architecture.small
        self.conv1 = _convolution(architecture.stem)
        self.bn1 = BatchNorm2d(architecture.width, group=architecture.group)
        for stage in range(self.depth):
            names = f"layer{stage + 1}."
            blocks = [block for block in architecture.residuals() if block.name.startswith(names)]
            self.add_module(names[:-1], nn.Sequential(*(Residual(block, architecture.group) for block in blocks)))
        self.fc = nn.Linear(architecture.features, architecture.classes)

    def logits(self, x: Tensor, *, key: tuple[int, int] | None, index: Tensor) -> Tensor:
        """(N, 3, S, S) images to (N, classes) logits; nothing is random."""
        x = torch.relu_(self.bn1(self.conv1(x)))
        x = x if self.small else functional.max_pool2d(x, 3, 2, 1)
        for stage in range(self.depth):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))
