"""A ResNet of four basic blocks, width 12, 10 classes."""

from torch import Tensor, nn

from ..resnet50.torch import Classifier, Residual, conv
from ..torch import filled


def basic(inputs: int, width: int, stride: int) -> Residual:
    body = [*conv(inputs, width, 3, stride), nn.ReLU(True), *conv(width, width, 3)]
    return Residual(body, conv(inputs, width, 1, stride) if stride > 1 else [])


def make(values: dict[str, Tensor]) -> nn.Module:
    blocks = [basic(12, 12, 1), basic(12, 24, 2), basic(24, 48, 2), basic(48, 96, 2)]
    stem = [*conv(3, 12, 3), nn.ReLU(True)]
    model = Classifier(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    return filled(model, values.values())
