"""Part of a classifier around its network, in torch."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.stream.torch import Key, uniform
from suite.tasks._nn.torch import draw_labels

Tree = dict[str, Tensor]


class Classifier(nn.Module, ABC):
    """Images to class logits; a subclass defines `logits`.

    Args:
        classes: number of labels.
        smoothing: label smoothing ε.
    """

    def __init__(self, classes: int, *, smoothing: float = 0.0):
        super().__init__()
        self.classes, self.smoothing = classes, smoothing

    @abstractmethod
    def logits(self, x: Tensor, *, key: tuple[int, int] | None, index: Tensor) -> Tensor:
        """(N, 3, S, S) images to (N, classes) logits; `key` and `index` are the randomness of the step's samples."""

    def forward(self, batch: Tree, carry: Tree | None = None, key: tuple[int, int] | None = None) -> tuple[Tree, Tree]:
        """Logits (N, classes), and in training the target probabilities (N, classes) of the loss.

        With running mixup (`mix` in the batch), image and target are mixed with the previous step's mix, which is the
        carry: x̃ᵗ = λ xᵗ + (1 - λ) x̃ᵗ⁻¹ (SP-NGD, Osawa et al. 2020, eq. 18-19).
        """
        x, outputs, carry = batch["image"], {}, carry or {}
        if self.training:
            target = functional.one_hot(batch["label"].long(), self.classes).to(x.dtype)
            target = (1.0 - self.smoothing) * target + self.smoothing / self.classes
            if "mix" in batch:
                mix = batch["mix"]
                x = torch.lerp(carry["image"], x, mix[:, None, None, None])
                target = torch.lerp(carry["target"], target, mix[:, None])
                carry = {"image": x, "target": target}
            outputs["target"] = target
        else:
            outputs |= {"label": batch["label"], "weight": batch["weight"]}  # inputs of the score
        outputs["logits"] = self.logits(x, key=key, index=batch["index"])
        return outputs, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Weighted sum of cross-entropies, and the summed weight."""
        losses = functional.cross_entropy(outputs["logits"], outputs["target"], reduction="none")
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with targets drawn from the model's own distribution."""
        label = draw_labels(outputs["logits"], uniform(key, "label", batch["index"]))
        return outputs | {"target": functional.one_hot(label, self.classes).to(outputs["target"].dtype)}
