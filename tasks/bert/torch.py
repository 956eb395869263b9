"""BERT in torch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.stream.torch import Key, uniform
from suite.tasks._nn.torch import (
    attention,
    cross_entropies,
    draw_labels,
    dropout,
    merge_heads,
    split_heads,
    widen_floats,
)
from suite.tasks._sparse import Shape
from suite.tasks._sparse.torch import BlockLinear
from suite.tasks.bert import EPSILON, Bert
from suite.tasks.bert.architecture import SEGMENTS, Architecture

Tree = dict[str, Tensor]
Drop = Callable[[Tensor, str], Tensor]


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")  # as in Devlin et al.'s code


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=EPSILON)


def _matrix(sizes: Architecture, name: str, shape: Shape) -> nn.Module:
    """A fully connected layer, dense or sparse."""
    sparsity = sizes.sparsity
    if not sparsity:
        return nn.Linear(shape[1], shape[0])
    form = {"count": sparsity.count(name, shape), "block": sparsity.block, "explores": sparsity.kind == "dynamic"}
    return BlockLinear(shape, **form, execution=sparsity.execution)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward part, each in a residual branch."""

    def __init__(self, sizes: Architecture, number: int):
        super().__init__()
        width, self.heads, self.pre_norm, self.rate = sizes.hidden, sizes.heads, sizes.pre_norm, sizes.dropout
        query, key, value, out, up, down = (_matrix(sizes, *each) for each in sizes.matrices(number).items())
        self.query, self.key, self.value, self.out, self.norm1 = query, key, value, out, _norm(width)
        self.up, self.down, self.norm2 = up, down, _norm(width)

    def attend(self, x: Tensor, visible: Tensor, drop: Drop) -> Tensor:
        """Multi-head self-attention over (N, T, width); `visible` (N, 1, 1, T)."""
        query, key, value = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        seen = attention(query, key, value, visible, (lambda p: drop(p, "attention")) if self.rate else None)
        return drop(self.out(merge_heads(seen)), "out")

    def feed(self, x: Tensor, drop: Drop) -> Tensor:
        """Return the feed-forward part, position by position."""
        return drop(self.down(_gelu(self.up(x))), "down")

    def forward(self, x: Tensor, visible: Tensor, drop: Drop) -> Tensor:
        """(N, T, width) to the same shape."""
        if self.pre_norm:
            x = x + self.attend(self.norm1(x), visible, drop)
            return x + self.feed(self.norm2(x), drop)
        x = self.norm1(x + self.attend(x, visible, drop))
        return self.norm2(x + self.feed(x, drop))


class MaskedWords(nn.Module):
    """Head that predicts masked words; its decoder is the matrix of word embeddings."""

    def __init__(self, sizes: Architecture):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary))
        self.transform, self.norm = nn.Linear(sizes.hidden, sizes.hidden), _norm(sizes.hidden)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """(N, P, width) and the table (V, width) to logits (N, P, V)."""
        seen = widen_floats(_gelu(self.transform(x)))  # of bfloat16, LayerNorm on a CPU adds up gradients in bfloat16
        return functional.linear(self.norm(seen), words, self.bias)


class Network(nn.Module):
    """Corrupted sequences to logits of masked words and of the second segment's origin.

    Args:
        sizes: the network's sizes.
        next_weight: weight of a next-sentence loss relative to that of one masked word; see `Bert`.
    """

    def __init__(self, sizes: Architecture, *, next_weight: float):
        super().__init__()
        self.next_weight, self.pre_norm, self.rate = next_weight, sizes.pre_norm, sizes.dropout
        self.word = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.position = nn.Embedding(sizes.positions, sizes.hidden)
        self.segment = nn.Embedding(SEGMENTS, sizes.hidden)
        self.norm = _norm(sizes.hidden)
        self.encoder = nn.ModuleList(EncoderLayer(sizes, number) for number in range(sizes.layers))
        self.mlm = MaskedWords(sizes)
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden) if sizes.next_sentence else None
        self.next_sentence = nn.Linear(sizes.hidden, 2) if sizes.next_sentence else None

    def encode(self, batch: Tree, key: Key | None) -> Tensor:
        """Contextual vectors (N, T, width)."""

        def drop(x: Tensor, name: str) -> Tensor:
            return dropout(x, self.rate, key=key, name=name, index=batch["index"]) if self.training else x

        tokens, visible = batch["tokens"], batch["visible"][:, None, None]
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.word(tokens) + self.position(places) + self.segment(batch["segment"])
        x = drop(x if self.pre_norm else self.norm(x), "embeddings")
        for number, layer in enumerate(self.encoder):
            x = layer(x, visible, lambda y, name, at=f"encoder.{number}": drop(y, f"{at}.{name}"))
        return self.norm(x) if self.pre_norm else x

    def forward(self, batch: Tree, carry: Tree | None = None, key: Key | None = None) -> tuple[Tree, Tree]:
        """In training logits (N, P, V) and labels (N, P), and (N, 2), (N,) for pairs; in evaluation sums (N,)."""
        x = self.encode(batch, key)
        place = batch["position"].long()[..., None].expand(-1, -1, x.shape[2])
        outputs = {"logits": self.mlm(x.gather(1, place), self.word.weight), "label": batch["label"].long()}
        if self.pooler is not None and self.next_sentence is not None:
            outputs["next_logits"] = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
            outputs["next_label"] = batch["random_next"].long()
        return outputs if self.training else self._sums(outputs, batch), carry or {}

    def _losses(self, outputs: Tree) -> Tree:
        """Cross-entropies: `mlm` (N, P), and `nsp` (N,) for pairs."""
        losses = {"mlm": cross_entropies(outputs["logits"], outputs["label"])}
        if "next_logits" in outputs:
            losses["nsp"] = functional.cross_entropy(
                widen_floats(outputs["next_logits"]), outputs["next_label"], reduction="none"
            )
        return losses

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Weighted sum of the losses, and the number of masked words; the quotient is BERT's loss."""
        losses, weight = self._losses(outputs), batch["weight"]
        hidden = batch["masked"] * weight[:, None]
        total = (losses["mlm"] * hidden).sum()
        if "nsp" in losses:
            total = total + self.next_weight * (losses["nsp"] * weight).sum()
        return total, hidden.sum()

    def _sums(self, outputs: Tree, batch: Tree) -> Tree:
        """Return the inputs of the score for each sample, (N,) each."""
        losses, masked = self._losses(outputs), batch["masked"]
        hits = (outputs["logits"].argmax(2) == outputs["label"]) * masked
        sums = {"weight": batch["weight"], "masks": masked.sum(1)}
        mlm = losses["mlm"].where(outputs["logits"].isfinite().all(2), torch.nan)  # a logit of -∞ may leave it finite
        sums |= {"mlm_loss": (mlm * masked).sum(1), "mlm_hits": hits.sum(1)}
        if "nsp" in losses:
            sums["nsp_loss"] = losses["nsp"].where(outputs["next_logits"].isfinite().all(1), torch.nan)
            sums["nsp_hits"] = (outputs["next_logits"].argmax(1) == outputs["next_label"]).to(masked.dtype)
        return sums

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with both labels drawn from the model's own distributions."""
        count = outputs["label"].shape[1]
        index = batch["index"][:, None] * count + torch.arange(count, device=outputs["label"].device)
        drawn = outputs | {"label": draw_labels(outputs["logits"], uniform(key, "label", index))}
        if "next_logits" in outputs:
            drawn["next_label"] = draw_labels(outputs["next_logits"], uniform(key, "next_label", batch["index"]))
        return drawn


def make(task: Bert) -> Network:
    """Make the task's model; its weights are set later."""
    return Network(task.architecture, next_weight=task.hidden_each)
