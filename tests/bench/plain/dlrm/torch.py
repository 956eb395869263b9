"""DLRM with 26 tables in one, networks 13-64-32-16 and 367-128-64-1."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..torch import filled


class Model(nn.Module):
    pairs: Tensor

    def __init__(self, rows: int):
        super().__init__()
        self.tables = nn.Embedding(rows, 16)
        relu = nn.ReLU()
        self.bottom = nn.Sequential(nn.Linear(13, 64), relu, nn.Linear(64, 32), relu, nn.Linear(32, 16), relu)
        self.top = nn.Sequential(nn.Linear(367, 128), relu, nn.Linear(128, 64), relu, nn.Linear(64, 1))
        row, column = torch.tril_indices(27, 27, -1)
        self.register_buffer("pairs", 27 * row + column)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        dense = self.bottom(batch["dense"])
        vectors = torch.cat([dense[:, None], self.tables(batch["ids"])], 1)
        products = torch.bmm(vectors, vectors.mT).flatten(1).index_select(1, self.pairs)
        logit = self.top(torch.cat([dense, products], 1))[:, 0]
        return binary_cross_entropy_with_logits(logit, batch["label"])


def make(values: dict[str, Tensor]) -> nn.Module:
    return filled(Model(len(values["tables.weight"])), values.values())
