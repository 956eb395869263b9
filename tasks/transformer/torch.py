"""Transformer in torch."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
)
from suite.tasks.transformer import Translation
from suite.tasks.transformer.architecture import BOS, EPSILON, PAD, Architecture, encode_positions

Tree = dict[str, Tensor]
Body = Callable[[Any, Tensor], Tensor]  # a sub-layer and its input to its output


@dataclass(frozen=True)
class Drop:
    """Dropout at each place of the network, by name; off without a key."""

    rate: float
    key: Key | None
    index: Tensor | None

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """Twin of `suite.tasks._nn.torch.dropout`, of (N, …)."""
        return x if self.index is None else dropout(x, self.rate, key=self.key, name=name, index=self.index)

    def at(self, name: str) -> Callable[[Tensor], Tensor] | None:
        """Return the dropout of one place as a function, or None if it does nothing."""
        return functools.partial(self, name) if self.rate and self.key is not None else None


class Attention(nn.Module):
    """Multi-head attention with its LayerNorm (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, architecture: Architecture, name: str):
        super().__init__()
        width, self.name, self.count = architecture.width, name, architecture.heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def remember(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (N, heads, S, d) of a memory (N, S, width)."""
        return split_heads(self.key(x), self.count), split_heads(self.value(x), self.count)

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], allowed: Tensor, drop: Drop) -> Tensor:
        """Attention of (N, T, width) to a memory where `allowed`, which broadcasts to (N, heads, T, S)."""
        query = split_heads(self.query(x), self.count)
        return self.output(merge_heads(attention(query, *memory, allowed, drop.at(f"{self.name}.probabilities"))))


class FeedForward(nn.Module):
    """Two linear layers around a ReLU with their LayerNorm (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, architecture: Architecture, name: str):
        super().__init__()
        self.name = name
        self.inner = nn.Linear(architecture.width, architecture.feed_forward)
        self.outer = nn.Linear(architecture.feed_forward, architecture.width)
        self.norm = nn.LayerNorm(architecture.width, eps=EPSILON)

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        """(N, T, width) to the same shape."""
        return self.outer(drop(f"{self.name}.inner", torch.relu(self.inner(x))))


class Transformer(nn.Module):
    """Sources and the translations so far to logits of the next words.

    Args:
        architecture: the network's sizes.
        smoothing: label smoothing ε.
        positions: words of the longest source or translation that is expected; compiled code needs no more.
    """

    def __init__(self, architecture: Architecture, *, smoothing: float, positions: int):
        super().__init__()
        self.architecture, self.smoothing = architecture, smoothing
        self.positions = torch.from_numpy(encode_positions(positions, architecture.width))  # no NumPy in compiled code
        words, width = architecture.vocabulary, architecture.width
        for name in dict.fromkeys(architecture.tables):
            table = nn.Linear(width, words, bias=False) if name == "output" else nn.Embedding(words, width)
            self.add_module(name, table)
        self.encoder, self.encoder_norm = self._stack("encoder"), self._last_norm()
        self.decoder, self.decoder_norm = self._stack("decoder"), self._last_norm()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        """Move the model; its positions, too, which are no buffer because snapshots do not contain them."""
        self.positions = fn(self.positions)
        return super()._apply(fn, recurse)

    def _stack(self, name: str) -> nn.ModuleList:
        layers = nn.ModuleList()
        for sublayers in self.architecture.stack(name):
            layers.append(nn.Module())
            for sublayer in sublayers:
                kind = Attention if sublayer.endswith("attention") else FeedForward
                layers[-1].add_module(sublayer.rpartition(".")[2], kind(self.architecture, sublayer))
        return layers

    def _last_norm(self) -> nn.Module:
        return nn.LayerNorm(self.architecture.width, eps=EPSILON) if self.architecture.norm == "pre" else nn.Identity()

    def _sublayers(self, stack: str) -> Iterator[list[Any]]:
        """Yield the modules of each layer of a stack."""
        for names in self.architecture.stack(stack):
            yield [self.get_submodule(name) for name in names]

    def forward(self, batch: Tree, carry: Tree | None = None, key: Key | None = None) -> tuple[Tree, Tree]:
        """In training, logits (N, T, vocabulary) and the targets; in evaluation, each sentence's loss."""
        target = batch["target"]
        drop = Drop(self.architecture.dropout, key if self.training else None, batch["index"])
        memory, seen = self._encode(batch["source"], drop), _seen(batch["source"])
        length = target.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x = drop("target", self._embed(1, functional.pad(target[:, :-1], (1, 0), value=BOS), slice(0, length)))
        logits = self._decode(
            x,
            lambda part, y: part(y, part.remember(y), earlier, drop),
            lambda part, y: part(y, part.remember(memory), seen, drop),
            drop,
        )
        if self.training:
            smoothing = torch.full_like(batch["weight"], self.smoothing)
            return {"logits": logits, "target": target, "smoothing": smoothing}, {}
        words = target != PAD
        # a logit of -∞ may leave the loss finite
        losses = cross_entropies(logits, target).where(logits.isfinite().all(2), torch.nan) * words
        return {"loss": losses.sum(1), "words": words.sum(1), "weight": batch["weight"], "index": batch["index"]}, {}

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Smoothed cross-entropy summed over words, and the number of words."""
        each = outputs["logits"].log_softmax(-1)
        picked = each.gather(2, outputs["target"].long()[..., None])[..., 0]
        share = outputs["smoothing"][:, None]
        weight = batch["weight"][:, None] * (batch["target"] != PAD)
        return -(((1.0 - share) * picked + share * each.mean(-1)) * weight).sum(), weight.sum()

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with words drawn from the model's own distribution, and no smoothing."""
        logits = outputs["logits"]
        place = batch["index"][:, None] * logits.shape[1] + torch.arange(logits.shape[1], device=logits.device)
        drawn = draw_labels(logits, uniform(key, "words", place))
        return outputs | {"target": drawn, "smoothing": torch.zeros_like(outputs["smoothing"])}

    def encode(self, batch: Tree) -> Tree:
        """Return the search's state before its first word: keys and values of every attention of the decoder."""
        drop = Drop(0.0, None, None)
        memory, state = self._encode(batch["source"], drop), {"seen": _seen(batch["source"])}
        for own, source, _ in self._sublayers("decoder"):
            state[f"{source.name}.key"], state[f"{source.name}.value"] = source.remember(memory)
            state[f"{own.name}.key"], state[f"{own.name}.value"] = own.remember(memory[:, :0])  # no word generated yet
        return state

    def decode_step(self, state: Tree, rows: Tensor, token: Tensor, position: int) -> tuple[Tensor, Tree]:
        """Log-probabilities (R, vocabulary) of the next word after each row's token, and the new state."""
        state, drop = {name: value[rows] for name, value in state.items()}, Drop(0.0, None, None)
        everything = torch.ones(1, 1, dtype=torch.bool, device=token.device)

        def own(part: Attention, y: Tensor) -> Tensor:
            for name, value in zip(("key", "value"), part.remember(y), strict=True):
                state[f"{part.name}.{name}"] = torch.cat([state[f"{part.name}.{name}"], value], 2)
            return part(y, self._kept(state, part), everything, drop)

        def source(part: Attention, y: Tensor) -> Tensor:
            return part(y, self._kept(state, part), state["seen"], drop)

        x = self._embed(1, token[:, None], slice(position, position + 1))
        return self._decode(x, own, source, drop)[:, 0].log_softmax(-1), state

    @staticmethod
    def _kept(state: Tree, part: Attention) -> tuple[Tensor, Tensor]:
        return state[f"{part.name}.key"], state[f"{part.name}.value"]

    def _embed(self, table: int, words: Tensor, places: slice) -> Tensor:
        """Scaled embeddings plus positions (Vaswani et al. 2017, §3.4 and §3.5)."""
        x = self.get_submodule(self.architecture.tables[table])(words) * self.architecture.width**0.5
        if places.stop > len(self.positions):
            self.positions = torch.from_numpy(encode_positions(places.stop, self.architecture.width)).to(x.device)
        return x + self.positions[places].to(x, non_blocking=True)

    def _encode(self, source: Tensor, drop: Drop) -> Tensor:
        x, seen = drop("source", self._embed(0, source, slice(0, source.shape[1]))), _seen(source)
        for own, feed_forward in self._sublayers("encoder"):
            x = self._around(own, x, lambda part, y: part(y, part.remember(y), seen, drop), drop)
            x = self._around(feed_forward, x, lambda part, y: part(y, drop), drop)
        return self.encoder_norm(x)

    def _decode(self, x: Tensor, read_own: Body, read_source: Body, drop: Drop) -> Tensor:
        """Logits, from embedded words and the two ways of attending: to earlier words and to the source."""
        for own, source, feed_forward in self._sublayers("decoder"):
            x = self._around(own, x, read_own, drop)
            x = self._around(source, x, read_source, drop)
            x = self._around(feed_forward, x, lambda part, y: part(y, drop), drop)
        output: Any = self.get_submodule(self.architecture.tables[2])
        x = self.decoder_norm(x)
        return output(x) if isinstance(output, nn.Linear) else functional.linear(x, output.weight)

    def _around(self, part: Any, x: Tensor, body: Body, drop: Drop) -> Tensor:
        """Return the residual connection around one sub-layer."""
        if self.architecture.norm == "pre":
            return x + drop(part.name, body(part, part.norm(x)))
        return part.norm(x + drop(part.name, body(part, x)))


def _seen(source: Tensor) -> Tensor:
    return (source != PAD)[:, None, None, :]


def make(task: Translation) -> Transformer:
    """Make the task's model; its weights are set later."""
    lengths = (*task.pairs.lengths("train"), *task.pairs.lengths("valid"), task.longest)
    return Transformer(task.architecture, smoothing=task.smoothing, positions=max(lengths))
