"""Autoencoder in torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.stream.torch import Key, normal, uniform
from suite.tasks._nn.torch import widen_floats
from suite.tasks.autoencoder import Autoencoder
from suite.tasks.autoencoder.architecture import Architecture

Tree = dict[str, Tensor]


class Model(nn.Module):
    """Images to their reconstruction."""

    def __init__(self, architecture: Architecture):
        super().__init__()
        self.at = architecture
        self.relu = [relu for *_, relu in architecture.sequence]
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for _, inputs, outputs, _ in architecture.sequence)

    def forward(self, batch: Tree, carry: Tree | None = None, key: object = None) -> tuple[Tree, Tree]:
        """`output` (N, pixels): logits, or pixels if the loss is squared; in evaluation each image's losses."""
        x = batch["image"]
        for layer, relu in zip(self.layers, self.relu, strict=True):
            x = torch.relu(layer(x)) if relu else layer(x)
        penalty = 0.5 * self.at.penalty * torch.stack([value.square().sum() for value in self.parameters()]).sum()
        if self.training:
            return {"output": x, "image": batch["image"], "penalty": penalty}, carry or {}
        x = widen_floats(x)
        pixels = x.sigmoid() if self.at.loss == "bernoulli" else x
        error = (pixels - batch["image"]).square().mean(1)
        outputs = {"loss": self._losses(x, batch["image"]), "error": error, "penalty": penalty.expand(len(x))}
        return outputs | {"weight": batch["weight"]}, carry or {}

    def _losses(self, output: Tensor, image: Tensor) -> Tensor:
        """Summed over the pixels of each image, (N,)."""
        if self.at.loss == "bernoulli":
            return functional.binary_cross_entropy_with_logits(output, image, reduction="none").sum(1)
        return 0.5 * (output - image).square().sum(1)

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Weighted sum of the images' losses, each with the penalty, and the summed weight."""
        weight = batch["weight"].sum()
        total = (self._losses(outputs["output"], outputs["image"]) * batch["weight"]).sum()
        return total + outputs["penalty"] * weight, weight

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with images drawn from the model: Bernoulli pixels, or normal pixels of deviation 1."""
        output = outputs["output"]
        size = output.shape[1]
        place = batch["index"][:, None] * size + torch.arange(size, device=output.device)
        if self.at.loss == "bernoulli":
            image = (uniform(key, "image", place).to(output) < output.sigmoid()).to(output)
        else:
            image = output.detach() + normal(key, "image", place).to(output)
        return outputs | {"image": image}


def make(task: Autoencoder) -> Model:
    """Make the task's model; its weights are set later."""
    return Model(task.architecture)
