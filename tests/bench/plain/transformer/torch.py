"""Transformer of two and two layers, width 128, 4 heads, one matrix for all words."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..bert.torch import Attention, Encoder
from ..torch import filled

PAD, BOS, LONGEST, EPSILON = 0, 1, 18, 1e-6


class Decoder(nn.Module):
    """One layer, each part normalised after its residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.norm1 = Attention(), nn.LayerNorm(128, EPSILON)
        self.source, self.norm2 = Attention(), nn.LayerNorm(128, EPSILON)
        self.up, self.down, self.norm3 = nn.Linear(128, 512), nn.Linear(512, 128), nn.LayerNorm(128, EPSILON)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.own(x, x, None, causal=True))
        x = self.norm2(x + self.source(x, memory, mask))
        return self.norm3(x + self.down(torch.relu(self.up(x))))


class Model(nn.Module):
    places: Tensor

    def __init__(self, words: int):
        super().__init__()
        self.word = nn.Embedding(words, 128)
        self.encoder = nn.ModuleList(Encoder(torch.relu, EPSILON) for _ in range(2))
        self.decoder = nn.ModuleList(Decoder() for _ in range(2))
        angle = torch.arange(LONGEST)[:, None] / 10_000 ** (torch.arange(0, 128, 2) / 128)
        self.register_buffer("places", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def embed(self, words: Tensor) -> Tensor:
        return self.word(words) * 128**0.5 + self.places[: words.shape[1]]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        source, target = batch["source"], batch["target"]
        mask, memory = (source != PAD)[:, None, None], self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, mask)
        x = self.embed(functional.pad(target[:, :-1], (1, 0), value=BOS))
        for layer in self.decoder:
            x = layer(x, memory, mask)
        logits = functional.linear(x, self.word.weight)
        return functional.cross_entropy(
            logits.flatten(0, 1), target.long().flatten(), ignore_index=PAD, label_smoothing=0.1
        )


def make(values: dict[str, Tensor]) -> nn.Module:
    return filled(Model(len(values["embedding.weight"])), values.values())
