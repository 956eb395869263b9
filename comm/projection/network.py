"""Projection's model of a network: two levels, each with a latency and a bandwidth, and the speed of codecs."""

from dataclasses import dataclass

from suite.comm.settings import NetworkSettings


@dataclass(frozen=True)
class Level:
    """One kind of link, Hockney's model: a message of n bytes takes latency + n / bandwidth.

    Attributes:
        latency: seconds for each message, α.
        bandwidth: bytes a second in each direction, 1 / β.
        shared: whether all ranks of one host share the bandwidth; otherwise each rank has this bandwidth.
    """

    latency: float
    bandwidth: float
    shared: bool = False


@dataclass(frozen=True)
class Network:
    """Network of a projection.

    Attributes:
        name: the preset's name.
        inner: links between the ranks of one host.
        outer: links between hosts.
        ranks_per_host: None if all ranks are on one host.
        all_reduce: the algorithm of the native all-reduce, `ring` or `tree`.
        codec: payload bytes that one rank encodes or decodes in a second, γ. Codecs that only copy cost nothing.
        all_gather: the algorithm of the native all-gather: `ring`, or `pairs` (every rank sends its bytes to every
            other rank).
        contention: seconds that a step loses for each second in which it computes and sends at the same time. Above 1,
            overlap costs more than it saves.
    """

    name: str
    inner: Level
    outer: Level
    ranks_per_host: int | None
    all_reduce: str
    codec: float
    all_gather: str = "ring"
    contention: float = 0.0


@dataclass(frozen=True)
class Place:
    """Placement of `world` ranks, `locals` on each host: rank h · locals + l is the l-th on host h."""

    world: int
    locals: int

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.world // self.locals


def make_network(settings: NetworkSettings) -> Network:
    """Make a network from its settings, a preset of `conf/network` with overrides."""
    levels = (Level(link.latency, link.bandwidth, link.shared) for link in (settings.inner, settings.outer))
    return Network(
        settings.name,
        *levels,
        ranks_per_host=settings.ranks_per_host,
        all_reduce=settings.all_reduce,
        codec=settings.codec,
        all_gather=settings.all_gather,
        contention=settings.contention,
    )
