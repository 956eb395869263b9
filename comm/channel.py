"""The channels of a run: one for each kind of gradient, and one for what optimizers exchange.

This file uses no framework; `suite.comm.setup` fills the class with one backend's members. `Channels.buckets` says
which gradients are sent together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from suite.comm.codecs._codec import Codec
from suite.comm.contract import Channel

REST = "other"  # kind of every parameter that is no layer's weight: biases, scales and shifts


@dataclass(frozen=True)
class Channels:
    """All channels of one run.

    Attributes:
        default: of gradients whose kind has no separate channel.
        schedule: when gradients are sent; the framework file of a `suite.comm.contract.Schedule`.
        symmetric: whether symmetric matrices among the factors are sent as triangles.
        kinds: channels of gradients by kind of layer: of the weights of `linear`, `conv2d`, `embedding` or `batchnorm`
            layers, and `other` for all other parameters.
        factors: of what optimizers exchange: statistics sent to their owners, roots and inverses gathered from them.
        kind_of: each parameter's kind, in the model's order.
        bucket_bytes: gradients are sent in buckets of at least this size, in backward order; 0: one bucket each.
        locals: ranks of one host; None with one level.
        overlaps: whether the schedule sends during the backward pass.
        delays: whether it keeps gradients from step to step.
    """

    default: Channel
    factors: Channel
    schedule: ModuleType
    symmetric: bool = True
    kinds: Mapping[str, Channel] = field(default_factory=dict)
    kind_of: Mapping[str, str] = field(default_factory=dict)
    bucket_bytes: float = float("inf")
    locals: int | None = None
    overlaps: bool = False
    delays: bool = False

    @property
    def codecs(self) -> set[Codec]:
        """All codecs of the run."""
        channels = (self.default, self.factors, *self.kinds.values())
        return {codec for channel in channels for codec in (channel.codec, channel.inner)}

    def of(self, name: str) -> Channel:
        """Return the channel of a parameter's gradient."""
        return self.kinds.get(self.kind_of.get(name, REST), self.default)

    def buckets(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Channel, list[str]]]:
        """Which gradients are sent together: (name of the bucket, its channel, parameters in backward order).

        Backward reaches the last layer first. A bucket ends with the tensor that fills it, as in torch's
        DistributedDataParallel (Li et al. 2020, section 3.2.3), or before a tensor of another channel.

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
