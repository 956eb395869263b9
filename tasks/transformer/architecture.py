"""Encoder-decoder as a list of sub-layers: one description that gives the shapes, the layers and both models.

Vaswani et al. 2017, figure 1. Every projection has a bias, except the one to words; each sub-layer has one LayerNorm.
Post-LN stacks end with their last sub-layer's LayerNorm, pre-LN stacks have one more at their end. By this convention
the body of base (6 + 6 layers, width 512, feed-forward 2,048) counts 44,138,496 parameters, and that of big with
feed-forward 8,192 counts 277,069,824.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from suite.contract import Layer, Spec, UserError

PAD, BOS, EOS, UNKNOWN = range(4)  # the first words of every vocabulary
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
# The matrices that embed the source, embed the target, and project to words, by how they are shared.
TYING = {
    "none": ("source_embedding", "target_embedding", "output"),
    "decoder": ("source_embedding", "target_embedding", "target_embedding"),
    "all": ("embedding", "embedding", "embedding"),  # Vaswani et al. 2017, §3.4; Press and Wolf 2017
}
EPSILON = 1e-6  # of every LayerNorm, T2T's
SUBLAYERS = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("attention", "source_attention", "feed_forward"),
}


@dataclass(frozen=True)
class Architecture:
    """Network's sizes.

    Attributes:
        vocabulary: words of both languages together, special ones included.
        depth: number of layers of the encoder, and of the decoder.
        width: of the residual stream, d_model.
        heads: of each attention; must divide the width.
        feed_forward: width of the hidden layer, d_ff.
        tying: a key of TYING.
        norm: `post`, LayerNorm(x + f(x)), or `pre`, x + f(LayerNorm(x)) with a LayerNorm at the end of each stack.
        dropout: probability, wherever T2T's base_v3 has it: embeddings, attention probabilities, after ReLU, and each
            sub-layer's output.

    Raises:
        UserError: for sizes that do not fit together.
    """

    vocabulary: int
    depth: int
    width: int
    heads: int
    feed_forward: int
    tying: str = "none"
    norm: str = "post"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 2:
            raise UserError(f"task.width={self.width}: must be even and a multiple of task.heads={self.heads}")

    @property
    def tables(self) -> tuple[str, str, str]:
        """Names of the matrices that embed the source, embed the target, and project to words."""
        return TYING[self.tying]

    def stack(self, name: str) -> list[list[str]]:
        """Return the layers of the encoder or the decoder, a layer being the names of its sub-layers."""
        return [[f"{name}.{layer}.{part}" for part in SUBLAYERS[name]] for layer in range(self.depth)]

    def projections(self, sublayer: str) -> dict[str, tuple[int, int]]:
        """Return the (out, in) sizes of a sub-layer's linear layers, by name."""
        if sublayer.endswith("attention"):
            parts = ("query", "key", "value", "output")
            return {f"{sublayer}.{part}": (self.width, self.width) for part in parts}
        return {
            f"{sublayer}.inner": (self.feed_forward, self.width),
            f"{sublayer}.outer": (self.width, self.feed_forward),
        }

    def shapes(self) -> dict[str, Spec]:
        """Every parameter, in the order in which torch registers the modules; initial values as in T2T."""
        deviation = f"normal({self.width**-0.5})"  # the embeddings are multiplied by √width when read
        specs = {
            f"{name}.weight": Spec((self.vocabulary, self.width), deviation, table=self.tables.count(name) > 1)
            for name in dict.fromkeys(self.tables)
        }
        for stack in SUBLAYERS:
            for sublayer in itertools.chain(*self.stack(stack)):
                for name, (outputs, inputs) in self.projections(sublayer).items():
                    specs[f"{name}.weight"] = Spec((outputs, inputs), "glorot_uniform")
                    specs[f"{name}.bias"] = Spec((outputs,), "zeros")
                specs |= self._norm(f"{sublayer}.norm")
            if self.norm == "pre":
                specs |= self._norm(f"{stack}_norm")
        return specs

    def _norm(self, name: str) -> dict[str, Spec]:
        return {f"{name}.weight": Spec((self.width,), "ones"), f"{name}.bias": Spec((self.width,), "zeros")}

    def layers(self) -> dict[str, Layer]:
        """Linear layers and embeddings; a matrix that several layers share is left out."""
        source, target, output = self.tables
        kinds = {name: "embedding" for name in (source, target)} | ({output: "linear"} if output == "output" else {})
        layers = {
            name: Layer(kind, (f"{name}.weight",)) for name, kind in kinds.items() if self.tables.count(name) == 1
        }
        for sublayer in itertools.chain(*self.stack("encoder"), *self.stack("decoder")):
            for name in self.projections(sublayer):
                layers[name] = Layer("linear", (f"{name}.weight", f"{name}.bias"))
        if "output" in layers:  # last, as in the network: Muon leaves out the last linear layer
            layers["output"] = layers.pop("output")
        return layers

    def count_kept_bytes(self, value: int, source: int, target: int) -> float:
        """Bytes that a pair leaves for the backward pass; see `suite.contract.Keeps`.

        Args:
            value: bytes of a number in the model's precision.
            source: words of the source, padding included.
            target: words of the translation, likewise.
        """
        wide = max(value, 4)  # of the inputs of normalisations, of softmax and of the loss
        copies = 2 if value < wide else 0  # queries, keys and values each round their input
        feed = value * self.feed_forward
        encoder = value * (6 + copies) * self.width + wide * 2 * self.width + feed
        decoder = value * (9 + copies) * self.width + wide * 3 * self.width + feed
        memory = value * (2 + copies) * self.width  # keys and values of the source, of each layer of the decoder
        start, end = 0 if copies else value * self.width, value * self.width
        if self.dropout:  # masks and what they leave; and attention's probabilities, before and after dropout
            probability = self.heads * (wide + value + 1)
            encoder += 2 * self.width + self.feed_forward + feed + probability * source
            decoder += 3 * self.width + self.feed_forward + feed + probability * (source + target)
            start, end = start + self.width, end + self.width
        pairs = source * (self.depth * (encoder + memory) + start) + target * (self.depth * decoder + end)
        return float(pairs + target * wide * self.vocabulary)


def encode_positions(length: int, width: int) -> np.ndarray:
    """Sines and cosines of each position, (length, width) float64 (Vaswani et al. 2017, §3.5)."""
    angle = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, width)
    return waves
