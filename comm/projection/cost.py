"""Closed forms of the time of a collective, from the ledger's entry for it.

W ranks are on h hosts, l on each; n is the bytes of one rank's operand; α is the latency of a message, β the time of a
byte. On one level:

    all_reduce, ring     2 (W - 1) α + 2 (W - 1) / W n β    Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002
    all_reduce, tree     2 log2 W α + 2 n β                 Sanders et al. 2009, doi:10.1016/j.parco.2009.09.001
    all_to_all           (W - 1) α + (W - 1) / W n β        one message for each pair
    all_gather           (W - 1) α + (W - 1) n β            a ring, or pairs (gloo's in torch)
    shift                α + n β                            one hop of a ring
    broadcast, to_first  (W - 1) (α + n β)                  one message after another on the first rank's link

A ring over all ranks of several hosts visits one host after another. It crosses between hosts h times in W hops, so
that a share h / W of its messages has the outer latency (as in NCCL's own model: nccl, src/graph/tuning.cc), and one
rank of each host uses the host's outer link. A tree is a chain in the host and a tree between hosts (the same file). In
an all-to-all, and in an all-gather by pairs, every rank sends l - 1 messages inside its host and W - l to other hosts,
so that the host's outer link carries the bytes of l ranks. NCCL, gloo and XLA send the rows of each pair unchanged; the
kernel's counters of test hosts confirm this (tests/testbed/test_crossing.py). The topology `two_level` adds the rows up
in the host first. The two levels send at the same time; the slower one determines the time. Between the first ranks of
hosts (after `to_first`), the outer link serves one group, otherwise as many groups as a host has ranks.

Encoded values are sent in pieces. In torch, each piece is sent while the next is encoded or the last decoded; XLA runs
these operations one after another. p pieces take the latency of one message, plus the longer of sending and coding,
plus 1 / p of the shorter. One piece takes the sum.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from suite.comm.projection.network import Network, Place
from suite.comm.transport import Entry


@dataclass(frozen=True)
class Cost:
    """Messages and bytes of one collective on each of the two levels.

    Attributes:
        messages: number of messages one after another, (inner, outer).
        bytes: bytes through the busiest link, (inner, outer).
        coded: payload bytes that one rank encodes and decodes.
    """

    messages: tuple[float, float] = (0.0, 0.0)
    bytes: tuple[float, float] = (0.0, 0.0)
    coded: float = 0.0

    def seconds(self, network: Network) -> float:
        """Return the collective's time on a network, in seconds."""
        return sum(self.parts(network))

    def parts(self, network: Network) -> tuple[float, float, float]:
        """Seconds of latency, of sending bytes, and of encoding and decoding."""
        levels = (network.inner, network.outer)
        latency = sum(count * level.latency for count, level in zip(self.messages, levels, strict=True))
        sending = max(count / level.bandwidth for count, level in zip(self.bytes, levels, strict=True))
        return latency, sending, self.coded / network.codec


def compute_cost(
    item: Entry, place: Place, network: Network, *, coded: bool = False, talking: int | None = None
) -> Cost:
    """Messages and bytes of one collective.

    Args:
        item: an entry of `traffic` or of the ledger; its level determines which ranks take part.
        place: all ranks.
        network: the network. Its bandwidths are not used, but `shared`, `all_reduce` and `all_gather` are.
        coded: whether the payload is encoded and decoded.
        talking: number of groups of an outer collective that use a host's link at once; by default one for each rank
            of a host.

    Returns:
        The cost; zero for a group of one rank.
    """
    local, hosts, groups = {
        "inner": (place.locals, 1, 1),
        "outer": (1, place.hosts, place.locals if talking is None else talking),
        "flat": (place.locals, place.hosts, 1),
    }[item.level]
    group = _Group(local, hosts, groups, network)
    if group.world == 1:
        return Cost()
    operation, size = item.operation, item.payload
    if operation == "all_reduce":
        ring = network.all_reduce == "ring"
        result = group.ring(2 * (group.world - 1), size / group.world) if ring else group.tree(size)
    elif operation == "all_to_all":
        result = group.pairs(size / group.world)
    elif operation == "all_gather":
        result = group.pairs(size) if network.all_gather == "pairs" else group.ring(group.world - 1, size)
    elif operation == "shift":
        result = group.ring(1, size)
    else:
        result = group.first(size)
    received = group.world if operation in ("all_gather", "to_first") else 1
    return replace(result, coded=(1 + received) * size if coded else 0.0)


def sum_seconds(
    entries: Iterable[Entry],
    place: Place,
    network: Network,
    *,
    coded: Callable[[Entry], bool] = lambda item: False,
) -> float:
    """Time of collectives one after another.

    Args:
        entries: as a topology's `traffic` lists them; the pieces of one collective follow each other.
        place: all ranks.
        network: the network.
        coded: whether an entry's payload is encoded and decoded.

    Returns:
        Seconds.
    """
    total = 0.0
    for costs in _collectives(entries, place, network, coded):
        latencies, sending, coding = zip(*(piece.parts(network) for piece in costs), strict=True)
        shorter, longer = sorted((sum(sending), sum(coding)))
        total += latencies[0] + longer + shorter / len(costs)
    return total


def count_crossing(entries: Iterable[Entry], place: Place, network: Network) -> float:
    """Bytes that all ranks of one host send to other hosts; the host is in the middle of a ring or tree."""
    together = replace(network, outer=replace(network.outer, shared=True))
    collectives = _collectives(entries, place, together, lambda item: False)
    return sum(piece.bytes[1] for costs in collectives for piece in costs)


def _collectives(
    entries: Iterable[Entry], place: Place, network: Network, coded: Callable[[Entry], bool]
) -> Iterator[list[Cost]]:
    """Yield the costs of each collective's pieces."""
    talking = place.locals
    for (operation, _, _), items in itertools.groupby(entries, lambda item: (item.operation, item.name, item.level)):
        if operation in ("to_first", "broadcast"):
            talking = 1 if operation == "to_first" else place.locals
        yield [compute_cost(item, place, network, coded=coded(item), talking=talking) for item in items]


@dataclass(frozen=True)
class _Group:
    """Ranks of one collective: `local` on each of `hosts`; `groups` such groups share a host's outer link."""

    local: int
    hosts: int
    groups: int
    network: Network

    @property
    def world(self) -> int:
        return self.local * self.hosts

    def _loads(self, inside: float, senders: int, outside: float, crossing: int) -> tuple[float, float]:
        """Bytes through the busiest link of each level.

        `senders` ranks of a host send `inside` bytes each within it, `crossing` ranks send `outside` bytes each to
        other hosts.
        """
        inner, outer = self.network.inner.shared, self.network.outer.shared
        return inside * (senders if inner else 1), outside * (crossing * self.groups if outer else 1)

    def ring(self, hops: int, size: float) -> Cost:
        """Every rank sends `size` bytes at each hop; one rank of each host sends them to the next host."""
        outer = hops / self.local if self.hosts > 1 else 0.0
        inside, outside = hops * size * (self.local > 1), hops * size * (self.hosts > 1)
        senders = self.local - (self.hosts > 1)
        return Cost((hops - outer, outer), self._loads(inside, senders, outside, 1))

    def tree(self, size: float) -> Cost:
        """A reduction to the root and a broadcast from it, in chunks, so that links are always busy."""
        inside, outside = 2 * size * (self.local > 1), 2 * size * (self.hosts > 1)
        messages = 2.0 * (self.local - 1), 2.0 * math.ceil(math.log2(self.hosts))
        return Cost(messages, self._loads(inside, self.local, outside, 1))

    def pairs(self, size: float) -> Cost:
        """Every rank sends `size` bytes to every other rank."""
        inside, outside = self.local - 1, self.world - self.local
        return Cost((inside, outside), self._loads(inside * size, self.local, outside * size, self.local))

    def first(self, size: float) -> Cost:
        """Let the first rank send `size` bytes to every other rank in turn, or receive them from it."""
        inside, outside = self.local - 1, self.world - self.local
        return Cost((inside, outside), self._loads(inside * size, 1, outside * size, 1))
