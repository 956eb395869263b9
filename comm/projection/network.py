"""The projection's model of a network: two levels, each with a latency and a bandwidth, and the speed of codecs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suite.contract import UserError

ALL_REDUCES = ("ring", "tree")
ALL_GATHERS = ("ring", "pairs")


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
    """The network of a projection.

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
    """The placement of `world` ranks, `locals` on each host: rank h · locals + l is the l-th on host h."""

    world: int
    locals: int

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.world // self.locals


def make(node: Mapping[str, Any]) -> Network:
    """Make a network from its configuration, a preset of `conf/network` with overrides.

    Raises:
        UserError: if a number is out of its range, or `all_reduce` or `all_gather` is unknown.
    """
    node = {"all_gather": "ring", "contention": 0.0, **node}  # users' presets may be older than these keys
    for key, choices in (("all_reduce", ALL_REDUCES), ("all_gather", ALL_GATHERS)):
        if node[key] not in choices:
            raise UserError(f"network.{key}={node[key]}: type one of {', '.join(choices)}")
    for key in ("inner", "outer"):
        if node[key]["latency"] < 0 or node[key]["bandwidth"] <= 0:
            raise UserError(f"network.{key}: latency must be at least 0 seconds, bandwidth more than 0 bytes a second")
    if node["codec"] <= 0:
        raise UserError(f"network.codec={node['codec']}: must be more than 0 bytes a second")
    if node["contention"] < 0:
        raise UserError(f"network.contention={node['contention']}: must be at least 0 seconds a second")
    return Network(
        name=node["name"],
        inner=Level(**node["inner"]),
        outer=Level(**node["outer"]),
        ranks_per_host=node["ranks_per_host"],
        all_reduce=node["all_reduce"],
        codec=node["codec"],
        all_gather=node["all_gather"],
        contention=node["contention"],
    )
