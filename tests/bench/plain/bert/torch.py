"""BERT of two layers, width 128, 4 heads, 64 positions; hidden words only."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..torch import filled

gelu = partial(functional.gelu, approximate="tanh")


class Attention(nn.Module):
    """Four heads of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(128, 128) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        parts = self.query(x), self.key(memory), self.value(memory)
        query, key, value = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self.out(seen.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """One layer, each part normalised after its residual sum."""

    def __init__(self, activation: Callable[[Tensor], Tensor], eps: float):
        super().__init__()
        self.activation = activation
        self.attention, self.norm1 = Attention(), nn.LayerNorm(128, eps)
        self.up, self.down, self.norm2 = nn.Linear(128, 512), nn.Linear(512, 128), nn.LayerNorm(128, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x, mask))
        return self.norm2(x + self.down(self.activation(self.up(x))))


class Model(nn.Module):
    def __init__(self, words: int):
        super().__init__()
        self.word, self.position, self.segment = nn.Embedding(words, 128), nn.Embedding(64, 128), nn.Embedding(2, 128)
        self.norm = nn.LayerNorm(128, 1e-12)
        self.layers = nn.ModuleList(Encoder(gelu, 1e-12) for _ in range(2))
        self.transform, self.last = nn.Linear(128, 128), nn.LayerNorm(128, 1e-12)
        self.decoder = nn.Linear(128, words)
        self.decoder.weight = self.word.weight

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.norm(self.word(batch["tokens"]) + self.position.weight + self.segment(batch["segment"]))
        for layer in self.layers:
            x = layer(x, batch["visible"][:, None, None])
        x = x[torch.arange(len(x))[:, None], batch["position"]]
        logits = self.decoder(self.last(gelu(self.transform(x))))
        losses = functional.cross_entropy(logits.mT, batch["label"].long(), reduction="none")
        return (losses * batch["masked"]).sum() / batch["masked"].sum()


def make(values: dict[str, Tensor]) -> nn.Module:
    others = [value for name, value in values.items() if name != "mlm.bias"]
    return filled(Model(len(values["word.weight"])), [*others, values["mlm.bias"]])
