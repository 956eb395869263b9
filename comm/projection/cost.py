"""Closed forms: what a collective takes, from the entry that the ledger would count for it.

W ranks on h hosts, l of them on each; n bytes are one rank's operand; α a message, β a byte. On one level:

    all_reduce, ring     2 (W - 1) α + 2 (W - 1) / W n β    Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002
    all_reduce, tree     2 log2 W α + 2 n β                 Sanders et al. 2009, doi:10.1016/j.parco.2009.09.001
    all_to_all           (W - 1) α + (W - 1) / W n β        every pair has a message of its own
    all_gather           (W - 1) α + (W - 1) n β            a ring
    shift                α + n β                            one hop of a ring
    broadcast, to_first  (W - 1) (α + n β)                  the first rank's link serves one after another

Over all ranks of several hosts, a ring that visits host after host crosses between them h times in W hops, so of its
messages a share h / W has the outer latency (as in NCCL's own model: nccl, src/graph/tuning.cc), and one rank of each
host uses the host's outer link. A tree is a chain in the host and a tree between hosts (the same file). In an
all-to-all every rank has l - 1 messages inside and W - l outside. The two levels move bytes at the same time: the
slower one counts. Between the first ranks of hosts (after `to_first`) the outer link serves one group, and else as many
groups as a host has ranks.

Encoded values go in pieces, each sent while the next is encoded or the last decoded (in torch; XLA does one after
another): p of them take a message's latency once, and of moving and of coding the longer with a p-th of the shorter,
where one piece would take the sum.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from suite.comm.projection.network import Network, Place
from suite.comm.transport import Entry


@dataclass(frozen=True)
class Cost:
    """What one collective asks of the two levels.

    Attributes:
        messages: one after another, (inner, outer).
        bytes: through the busiest link, (inner, outer).
        coded: payload bytes that one rank encodes and decodes.
    """

    messages: tuple[float, float] = (0.0, 0.0)
    bytes: tuple[float, float] = (0.0, 0.0)
    coded: float = 0.0

    def seconds(self, network: Network) -> float:
        """Its time on a network."""
        return sum(self.parts(network))

    def parts(self, network: Network) -> tuple[float, float, float]:
        """Seconds of waiting for messages, of moving bytes and of coding."""
        levels = (network.inner, network.outer)
        waiting = sum(count * level.latency for count, level in zip(self.messages, levels, strict=True))
        moving = max(count / level.bandwidth for count, level in zip(self.bytes, levels, strict=True))
        return waiting, moving, self.coded / network.codec


def cost(item: Entry, place: Place, network: Network, *, coded: bool = False, talking: int | None = None) -> Cost:
    """What a collective asks of the network.

    Args:
        item: as `traffic` or the ledger has it; its level says which ranks take part.
        place: all ranks.
        network: where; its bandwidths are not used, but what shares a link and how it reduces are.
        coded: whether the payload has to be encoded and decoded.
        talking: how many groups of an outer collective a host's link serves; all of its ranks where not given.
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
        found = group.ring(2 * (group.world - 1), size / group.world) if ring else group.tree(size)
    elif operation == "all_to_all":
        found = group.pairs(size / group.world)
    elif operation == "all_gather":
        found = group.ring(group.world - 1, size)
    elif operation == "shift":
        found = group.ring(1, size)
    else:
        found = group.first(size)
    received = group.world if operation in ("all_gather", "to_first") else 1
    return replace(found, coded=(1 + received) * size if coded else 0.0)


def seconds(
    entries: Iterable[Entry],
    place: Place,
    network: Network,
    *,
    coded: Callable[[Entry], bool] = lambda item: False,
) -> float:
    """Time of one collective after another, as a topology's `traffic` lists them; pieces of one stand together."""
    total, talking = 0.0, place.locals
    for (operation, _, _), items in itertools.groupby(entries, lambda item: (item.operation, item.name, item.level)):
        if operation in ("to_first", "broadcast"):
            talking = 1 if operation == "to_first" else place.locals
        costs = [cost(item, place, network, coded=coded(item), talking=talking) for item in items]
        waiting, moving, coding = zip(*(one.parts(network) for one in costs), strict=True)
        shorter, longer = sorted((sum(moving), sum(coding)))
        total += waiting[0] + longer + shorter / len(costs)
    return total


@dataclass(frozen=True)
class _Group:
    """Ranks that take part: `local` on each of `hosts`; a host's outer link serves `groups` such."""

    local: int
    hosts: int
    groups: int
    network: Network

    @property
    def world(self) -> int:
        return self.local * self.hosts

    def _loads(self, inside: float, senders: int, outside: float, crossing: int) -> tuple[float, float]:
        """Bytes through the busiest link of each level, of which this many ranks of a host send this much each."""
        inner, outer = self.network.inner.shared, self.network.outer.shared
        return inside * (senders if inner else 1), outside * (crossing * self.groups if outer else 1)

    def ring(self, hops: int, size: float) -> Cost:
        """Every rank sends `size` bytes at each hop, host after host: one rank of each to another host."""
        outer = hops / self.local if self.hosts > 1 else 0.0
        inside, outside = hops * size * (self.local > 1), hops * size * (self.hosts > 1)
        senders = self.local - (self.hosts > 1)
        return Cost((hops - outer, outer), self._loads(inside, senders, outside, 1))

    def tree(self, size: float) -> Cost:
        """Up and down again, in chunks, so that bytes flow all the time."""
        inside, outside = 2 * size * (self.local > 1), 2 * size * (self.hosts > 1)
        messages = 2.0 * (self.local - 1), 2.0 * math.ceil(math.log2(self.hosts))
        return Cost(messages, self._loads(inside, self.local, outside, 1))

    def pairs(self, size: float) -> Cost:
        """Every rank sends `size` bytes to every other."""
        inside, outside = self.local - 1, self.world - self.local
        return Cost((inside, outside), self._loads(inside * size, self.local, outside * size, self.local))

    def first(self, size: float) -> Cost:
        """The first rank sends `size` bytes to every other in turn, or gets as much from it."""
        inside, outside = self.local - 1, self.world - self.local
        return Cost((inside, outside), self._loads(inside * size, 1, outside * size, 1))
