"""A ResNet of four bottleneck blocks, width 16, 10 classes."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..torch import filled


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    def __init__(self, body: list[nn.Module], shortcut: list[nn.Module]):
        super().__init__()
        self.body, self.shortcut = nn.Sequential(*body), nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    body = [*conv(inputs, width, 1), nn.ReLU(True), *conv(width, width, 3, stride), nn.ReLU(True)]
    return Residual([*body, *conv(width, 4 * width, 1)], conv(inputs, 4 * width, 1, stride))


class Classifier(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropy(self.layers(batch["image"]), batch["label"].long())


def make(values: dict[str, Tensor]) -> nn.Module:
    blocks = [bottleneck(16, 16, 1), bottleneck(64, 32, 2), bottleneck(128, 64, 2), bottleneck(256, 128, 2)]
    stem = [*conv(3, 16, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    model = Classifier(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return filled(model, values.values())
