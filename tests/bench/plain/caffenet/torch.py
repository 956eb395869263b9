"""CaffeNet with 24 channels in its first convolution, for 64 pixels and 16 classes."""

from torch import Tensor, nn

from ..resnet50.torch import Classifier
from ..torch import filled


def make(values: dict[str, Tensor], dropout: float = 0.5) -> nn.Module:
    relu, pool, norm = nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5, 1e-4, 0.75)
    model = Classifier(
        *(nn.Conv2d(3, 24, 11, 4), relu, pool, norm),
        *(nn.Conv2d(24, 64, 5, padding=2, groups=2), relu, pool, norm),
        *(nn.Conv2d(64, 96, 3, padding=1), relu),
        *(nn.Conv2d(96, 96, 3, padding=1, groups=2), relu),
        *(nn.Conv2d(96, 64, 3, padding=1, groups=2), relu, pool, nn.Flatten()),
        *(nn.Linear(64, 256), relu, nn.Dropout(dropout)),
        *(nn.Linear(256, 256), relu, nn.Dropout(dropout), nn.Linear(256, 16)),
    )
    return filled(model, values.values())
