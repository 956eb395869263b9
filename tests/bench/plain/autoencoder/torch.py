"""An autoencoder of strokes, 784-400-200-100-50-25-6 and back."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..torch import filled

WIDTHS = (784, 400, 200, 100, 50, 25, 6, 25, 50, 100, 200, 400, 784)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for pair in pairwise(WIDTHS) for layer in (nn.Linear(*pair), nn.ReLU())]
        del layers[-1], layers[11]  # the output and the code are linear
        self.layers = nn.Sequential(*layers)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        image = batch["image"]
        loss = binary_cross_entropy_with_logits(self.layers(image), image, reduction="sum") / len(image)
        return loss + 0.5e-5 * sum(value.square().sum() for value in self.parameters())


def make(values: dict[str, Tensor]) -> nn.Module:
    return filled(Model(), values.values())
