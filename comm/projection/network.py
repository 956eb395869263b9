"""A network as the projection sees it: two levels, each with a latency and a bandwidth, and how fast codecs are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suite.contract import UserError

ALL_REDUCES = ("ring", "tree")


@dataclass(frozen=True)
class Level:
    """One kind of link, Hockney's model: a message of n bytes takes latency + n / bandwidth.

    Attributes:
        latency: seconds for each message, α.
        bandwidth: bytes a second in each direction, 1 / β.
        shared: whether that is what all ranks of one host have together, and not each of them.
    """

    latency: float
    bandwidth: float
    shared: bool = False


@dataclass(frozen=True)
class Network:
    """Hosts with some ranks each.

    Attributes:
        name: of the preset.
        inner: links between the ranks of one host.
        outer: links between hosts.
        ranks_per_host: None where all ranks are on one host.
        all_reduce: how the network's own all-reduce goes, `ring` or `tree`.
        codec: payload bytes that one rank encodes or decodes in a second, γ; nothing is paid where a codec only
            copies.
    """

    name: str
    inner: Level
    outer: Level
    ranks_per_host: int | None
    all_reduce: str
    codec: float


@dataclass(frozen=True)
class Place:
    """Where the ranks are: rank h · locals + l is the l-th on host h."""

    world: int
    locals: int

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.world // self.locals


def make(node: Mapping[str, Any]) -> Network:
    """A network from its configuration.

    Raises:
        UserError: for a number that is not positive, or an all-reduce that is not known.
    """
    if node["all_reduce"] not in ALL_REDUCES:
        raise UserError(f"network.all_reduce={node['all_reduce']}: type one of {', '.join(ALL_REDUCES)}")
    for key in ("inner", "outer"):
        if node[key]["latency"] < 0 or node[key]["bandwidth"] <= 0:
            raise UserError(f"network.{key}: latency must be at least 0 seconds, bandwidth more than 0 bytes a second")
    if node["codec"] <= 0:
        raise UserError(f"network.codec={node['codec']}: must be more than 0 bytes a second")
    return Network(
        name=node["name"],
        inner=Level(**node["inner"]),
        outer=Level(**node["outer"]),
        ranks_per_host=node["ranks_per_host"],
        all_reduce=node["all_reduce"],
        codec=node["codec"],
    )
