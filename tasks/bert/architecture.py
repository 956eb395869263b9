"""BERT's encoder as a list of shapes, from which initial values, layers and both models are made.

Devlin et al. 2019, §3; the masked-word decoder shares the word embeddings' matrix. With both heads and 30,522 word
pieces: base 110,106,428 parameters, large 336,226,108, and 1920 × 54 (Tanaka et al. 2021) 2,457,142,844.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from suite.contract import Layer, Spec, UserError
from suite.tasks._sparse import Sparsity

DEVIATION = 0.02  # of every matrix at the start, cut at two deviations (Devlin et al.'s code, initializer_range)
SEGMENTS = 2


@dataclass(frozen=True)
class Architecture:
    """Network's sizes.

    Attributes:
        vocabulary: word pieces, special ones included.
        layers: of the encoder.
        hidden: width of a position.
        heads: of the attention; a divisor of `hidden`.
        intermediate: width between the two matrices of the feed-forward part.
        positions: rows of the position table; the longest sequence.
        pre_norm: normalise the input of each sublayer, and the encoder's output, instead of each sum and the
            embeddings (Xiong et al. 2020). The number of parameters is the same.
        deep_init: initialise the two matrices that write into the residual stream with σ / √(2 · layers), for deep
            networks (Shoeybi et al. 2019, §4.1: Megatron-LM).
        next_sentence: add the pooler and the next-sentence head.
        dropout: probability at embeddings, attention probabilities and both sublayers' outputs.
        sparsity: of the encoder's matrices; None if they are dense.
    """

    vocabulary: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    positions: int
    pre_norm: bool = False
    deep_init: bool = False
    next_sentence: bool = True
    dropout: float = 0.0
    sparsity: Sparsity | None = None

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise UserError(f"task.heads={self.heads}: must divide task.hidden={self.hidden}")

    def matrices(self, layer: int) -> dict[str, tuple[int, int]]:
        """List one encoder layer's fully connected weights (outputs, inputs), by module name; these may be sparse."""
        square, up = (self.hidden, self.hidden), (self.intermediate, self.hidden)
        names = {"query": square, "key": square, "value": square, "out": square, "up": up, "down": up[::-1]}
        return {f"encoder.{layer}.{name}": shape for name, shape in names.items()}

    def linear(self) -> dict[str, tuple[int, int]]:
        """Every fully connected layer, (outputs, inputs), in the order of the forward pass."""
        layers = {name: shape for layer in range(self.layers) for name, shape in self.matrices(layer).items()}
        layers["mlm.transform"] = (self.hidden, self.hidden)
        if self.next_sentence:
            layers |= {"pooler": (self.hidden, self.hidden), "next_sentence": (2, self.hidden)}
        return layers

    def sparse(self) -> dict[str, tuple[int, int]]:
        """Return the matrices that are stored as blocks: all of the encoder, or none."""
        if not self.sparsity:
            return {}
        return {name: shape for layer in range(self.layers) for name, shape in self.matrices(layer).items()}

    def flops(self, tokens: int) -> float:
        """Operations of the encoder on one sequence, forward and backward, as Dietrich et al. 2021 count them.

        Each stored weight takes part in one multiplication and one addition per token, three times (for the result and
        its gradients by input and by weight); attention has two such products of (tokens, tokens) per layer. Heads,
        embeddings and normalisation are not counted. This gives the figures of table 1.
        """
        shapes = self.shapes()
        weights = sum(
            math.prod(shapes[f"{name}.weight"].shape) for at in range(self.layers) for name in self.matrices(at)
        )
        return 3.0 * 2.0 * tokens * (weights + self.layers * 2 * tokens * self.hidden)

    def shapes(self) -> dict[str, Spec]:
        """Every parameter, in torch's order, and the patterns of sparse matrices."""
        return dict(self._specs())

    def _specs(self) -> Iterator[tuple[str, Spec]]:
        linear, sparsity, sparse = self.linear(), self.sparsity, self.sparse()

        def dense(name: str, deviation: float = DEVIATION) -> Iterator[tuple[str, Spec]]:
            shape: tuple[int, ...] = linear[name]
            if sparsity and name in sparse:
                shape = sparsity.count(name, sparse[name]), sparsity.block, sparsity.block
            yield f"{name}.weight", Spec(shape, f"truncated_normal({deviation!r})")
            yield f"{name}.bias", Spec(linear[name][:1], "zeros")
            if sparsity and name in sparse:
                yield f"{name}.pattern", Spec(shape[:1], "pattern", kind="pattern")
                if sparsity.kind == "dynamic":
                    yield f"{name}.visited", Spec((math.prod(sparsity.grid(name, sparse[name])),), "pattern", "pattern")

        def norm(name: str) -> Iterator[tuple[str, Spec]]:
            yield f"{name}.weight", Spec((self.hidden,), "ones")
            yield f"{name}.bias", Spec((self.hidden,), "zeros")

        for name, rows in (("word", self.vocabulary), ("position", self.positions), ("segment", SEGMENTS)):
            spec = Spec((rows, self.hidden), f"truncated_normal({DEVIATION!r})", table=name == "word")
            yield f"{name}.weight", spec
        yield from norm("norm")
        residual = DEVIATION / math.sqrt(2 * self.layers) if self.deep_init else DEVIATION
        for layer in range(self.layers):
            at = f"encoder.{layer}"
            for name in ("query", "key", "value"):
                yield from dense(f"{at}.{name}")
            yield from dense(f"{at}.out", residual)
            yield from norm(f"{at}.norm1")
            yield from dense(f"{at}.up")
            yield from dense(f"{at}.down", residual)
            yield from norm(f"{at}.norm2")
        yield "mlm.bias", Spec((self.vocabulary,), "zeros")
        yield from dense("mlm.transform")
        yield from norm("mlm.norm")
        if self.next_sentence:
            yield from dense("pooler")
            yield from dense("next_sentence")

    def curvature(self) -> dict[str, Layer]:
        """Every dense fully connected layer, and the two tables that are only looked up.

        The word table is left out, because its gradient is the sum of the embedding's and the decoder's, which no
        single pair of factors describes.
        """
        layers = {table: Layer("embedding", (f"{table}.weight",)) for table in ("position", "segment")}
        return layers | {
            name: Layer("linear", (f"{name}.weight", f"{name}.bias"))
            for name in self.linear()
            if name not in self.sparse()
        }

    def count_kept_bytes(self, value: int, sequence: int, predictions: int) -> float:
        """Bytes that a sequence leaves for the backward pass; see `suite.contract.Keeps`.

        Args:
            value: bytes of a number in the model's precision.
            sequence: positions of a sequence.
            predictions: masked words of a sequence.
        """
        wide = max(value, 4)  # of the inputs of normalisations, of softmax and of the loss
        copies = 2 if value < wide else 0  # queries, keys and values each round their input
        layer = value * ((6 + copies) * self.hidden + 2 * self.intermediate) + wide * 2 * self.hidden
        ends = wide * 2 * self.hidden
        if self.dropout:  # masks; and attention's probabilities, before and after dropout
            layer += 2 * self.hidden + self.heads * sequence * (wide + value + 1)
            ends += self.hidden
        words = predictions * (wide * (self.vocabulary + self.hidden) + value * 3 * self.hidden)
        return float(sequence * (self.layers * layer + ends) + words)
