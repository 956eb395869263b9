"""The encoder-decoder as a list of sub-layers: one description from which shapes, layers and both models are made.

Vaswani et al. 2017, figure 1. Every projection has a bias, except that to words; each sub-layer has one LayerNorm.
Post-LN stacks end with their last sub-layer's LayerNorm, pre-LN stacks have one more at their end. By this convention
the body of base (6 + 6 layers, width 512, feed-forward 2,048) counts 44,138,496 parameters, and that of big with
feed-forward 8,192 counts 277,069,824.
"""

import functools
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
    """The network's sizes.

    Attributes:
        vocabulary: words of both languages together, special ones included.
        depth: layers of the encoder, and as many of the decoder.
        width: of the residual stream, d_model.
        heads: of each attention; they divide the width.
        feed_forward: width of the hidden layer, d_ff.
        tying: a key of TYING.
        norm: `post`, LayerNorm(x + f(x)), or `pre`, x + f(LayerNorm(x)) with a LayerNorm at the end of each stack.
        dropout: probability, wherever T2T's base_v3 has it: embeddings, attention probabilities, after ReLU, and each
            sub-layer's output.

    Raises:
        UserError: for sizes or choices that make no network.
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
        for name, value, known in (("tying", self.tying, TYING), ("norm", self.norm, ("post", "pre"))):
            if value not in known:
                raise UserError(f"task.{name}={value}: unknown; one of {', '.join(known)}")
        if self.width % self.heads or self.width % 2:
            raise UserError(f"task.width={self.width}: must be even, and a multiple of task.heads={self.heads}")

    @property
    def tables(self) -> tuple[str, str, str]:
        """Names of the matrices that embed the source, embed the target, and project to words."""
        return TYING[self.tying]

    def stack(self, name: str) -> list[list[str]]:
        """The layers of the encoder or the decoder, a layer being the names of its sub-layers."""
        return [[f"{name}.{layer}.{part}" for part in SUBLAYERS[name]] for layer in range(self.depth)]

    def projections(self, sublayer: str) -> dict[str, tuple[int, int]]:
        """The (out, in) sizes of a sub-layer's linear layers, by name."""
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
        found = {
            f"{name}.weight": Spec((self.vocabulary, self.width), deviation, table=self.tables.count(name) > 1)
            for name in dict.fromkeys(self.tables)
        }
        for stack in SUBLAYERS:
            for sublayer in itertools.chain(*self.stack(stack)):
                for name, (outputs, inputs) in self.projections(sublayer).items():
                    found[f"{name}.weight"] = Spec((outputs, inputs), "glorot_uniform")
                    found[f"{name}.bias"] = Spec((outputs,), "zeros")
                found |= self._norm(f"{sublayer}.norm")
            if self.norm == "pre":
                found |= self._norm(f"{stack}_norm")
        return found

    def _norm(self, name: str) -> dict[str, Spec]:
        return {f"{name}.weight": Spec((self.width,), "ones"), f"{name}.bias": Spec((self.width,), "zeros")}

    def layers(self) -> dict[str, Layer]:
        """Linear layers and embeddings; a matrix that stands in several places is left out, as it is no one layer's."""
        source, target, output = self.tables
        kinds = {name: "embedding" for name in (source, target)} | ({output: "linear"} if output == "output" else {})
        found = {name: Layer(kind, (f"{name}.weight",)) for name, kind in kinds.items() if self.tables.count(name) == 1}
        for sublayer in itertools.chain(*self.stack("encoder"), *self.stack("decoder")):
            for name in self.projections(sublayer):
                found[name] = Layer("linear", (f"{name}.weight", f"{name}.bias"))
        if "output" in found:  # last, as it stands in the network: Muon leaves the last linear layer out
            found["output"] = found.pop("output")
        return found


@functools.lru_cache(maxsize=4)
def positions(length: int, width: int) -> np.ndarray:
    """Sines and cosines of each position, (length, width) float64, read-only (Vaswani et al. 2017, §3.5)."""
    angle = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    made = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, width)
    made.setflags(write=False)
    return made
