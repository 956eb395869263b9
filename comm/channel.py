"""How values travel: a codec, an algorithm, a topology and whether what is lost is remembered.

Framework-free: `suite.communication` fills these with one backend's halves. A run has a channel for each kind of
gradient and one for what optimizers exchange; `bucketed` decides which values go together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from suite.comm.codecs._codec import Codec
from suite.comm.layout import pieces

GRADIENTS = "gradients"
REST = "other"  # kind of what is no layer's weight: biases, scales and shifts


@dataclass(frozen=True)
class Channel:
    """One way to travel.

    Attributes:
        codec: of the values; between hosts, where there are two levels.
        inner: of the values inside a host; unused with one level.
        algorithm: how a mean is taken with it.
        topology: among which ranks.
        feedback: remember what the codec lost, and add it to the next values of the same name.
        piece_bytes: payload bytes that one rank sends another at a time, about; what is longer goes in pieces, but not
            inside a host.
    """

    codec: Codec
    inner: Codec
    algorithm: ModuleType
    topology: ModuleType
    feedback: bool = False
    piece_bytes: float = float("inf")

    def payloads(self, count: int, itemsize: int) -> list[int]:
        """Payload bytes of `count` values of `itemsize` bytes, piece by piece."""
        return [self.codec.nbytes(length, itemsize) for length in pieces(self.codec, count, itemsize, self.piece_bytes)]


@dataclass(frozen=True)
class Channels:
    """All ways of one run.

    Attributes:
        default: of gradients that no other channel claims.
        schedule: when gradients travel.
        symmetric: whether symmetric matrices among the factors travel as triangles.
        kinds: channels of gradients by kind of layer: of the weights of `linear`, `conv2d`, `embedding` or `batchnorm`
            layers, and `other` for everything else, biases among it.
        factors: of what optimizers exchange: statistics on the way to their owners, roots and inverses back.
        kind_of: each parameter's kind, in the model's order.
        bucket_bytes: gradients are sent in buckets of at least this size, as backward yields them; 0 for one each.
        locals: ranks of one host; None where no topology tells hosts apart.
    """

    default: Channel
    factors: Channel
    schedule: ModuleType
    symmetric: bool = True
    kinds: Mapping[str, Channel] = field(default_factory=dict)
    kind_of: Mapping[str, str] = field(default_factory=dict)
    bucket_bytes: float = float("inf")
    locals: int | None = None

    @property
    def codecs(self) -> set[Codec]:
        """All that encode anything."""
        return {codec for one in (self.default, self.factors, *self.kinds.values()) for codec in (one.codec, one.inner)}

    def of(self, name: str) -> Channel:
        """The channel of the gradient of a parameter."""
        return self.kinds.get(self.kind_of.get(name, REST), self.default)

    def buckets(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Channel, list[str]]]:
        """Which gradients are sent together: (a name, their channel, parameters in the order that backward yields).

        Backward reaches the last layer first. A bucket is closed by the tensor that fills it, as torch's
        DistributedDataParallel does (Li et al. 2020, section 3.2.3), or by one that travels otherwise.

        Args:
            sizes: bytes of each gradient, by name of the parameter.
        """
        waiting: list[str] = []
        total, number = 0, 0
        for name in reversed([name for name in self.kind_of if name in sizes]):
            if waiting and (total >= self.bucket_bytes or self.of(name) != self.of(waiting[0])):
                yield str(number), self.of(waiting[0]), waiting
                waiting, total, number = [], 0, number + 1
            waiting.append(name)
            total += sizes[name]
        if waiting:
            yield str(number), self.of(waiting[0]), waiting
