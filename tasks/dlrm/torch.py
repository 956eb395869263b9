"""DLRM in torch."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.stream.torch import Key, uniform
from suite.tasks.dlrm import DLRM
from suite.tasks.dlrm.architecture import Architecture

Tree = dict[str, Tensor]


class Network(nn.ModuleList):
    """Linear layers with ReLU between them.

    Args:
        widths: of the input, each hidden layer and the output.
        last: whether ReLU follows the last layer, as in the bottom network of facebookresearch/dlrm.
    """

    def __init__(self, widths: tuple[int, ...], *, last: bool):
        super().__init__(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) to (N, outputs)."""
        for number, layer in enumerate(self):
            x = layer(x)
            x = torch.relu(x) if self.last or number + 1 < len(self) else x
        return x


class Cross(nn.Module):
    """One layer of DCNv2 with a matrix of low rank (Wang et al. 2021, eq. 1 and 2)."""

    def __init__(self, size: int, rank: int):
        super().__init__()
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, size)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """x₀ ⊙ (U V x + b) + x, all (N, size)."""
        return first * self.up(self.down(x)) + x


class Model(nn.Module):
    """Features to the logit of a click."""

    places: Tensor

    def __init__(self, architecture: Architecture):
        super().__init__()
        self.at = architecture
        self.tables = nn.Embedding(sum(architecture.rows), architecture.width)
        self.bottom = Network(architecture.networks["bottom"], last=True)
        if architecture.interaction == "cross":
            layers = range(architecture.cross_layers)
            self.cross = nn.ModuleList(Cross(architecture.crossed, architecture.cross_rank) for _ in layers)
        self.top = Network(architecture.networks["top"], last=False)

    def lookups(self, batch: Tree) -> Tree:
        """Return the rows of the tables that a batch needs."""
        return {"tables.weight": batch["ids"]}

    def forward(self, batch: Tree, carry: Tree | None = None, key: object = None) -> tuple[Tree, Tree]:
        """Logits (N,) of a click."""
        rows = batch["tables.weight.rows"] if "tables.weight.rows" in batch else self.tables(batch["ids"])
        if max(self.at.hots) > 1:
            rows = torch.stack([part.sum(1) for part in rows.split(self.at.hots, 1)], 1)
        dense = self.bottom(batch["dense"])
        vectors = torch.cat([dense[:, None], rows], 1)  # (N, 27, width)
        if self.at.interaction == "cross":
            first = joined = vectors.flatten(1)
            for layer in self.cross:
                joined = layer(first, joined)
        else:
            pairs = torch.from_numpy(self.at.pairs).to(dense.device, non_blocking=True)
            products = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)
            joined = torch.cat([dense, products], 1)
        outputs = {"logit": self.top(joined)[:, 0], "label": batch["label"]}
        return outputs if self.training else outputs | {"weight": batch["weight"]}, carry or {}

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Weighted sum of log-losses, and the summed weight."""
        losses = functional.binary_cross_entropy_with_logits(outputs["logit"], outputs["label"], reduction="none")
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with clicks drawn from the model's own probabilities."""
        draws = uniform(key, "label", batch["index"]).to(outputs["logit"])
        return outputs | {"label": (draws < outputs["logit"].sigmoid()).to(outputs["label"])}


def make(task: DLRM) -> Model:
    """Make the task's model; its weights are set later."""
    return Model(task.architecture)
