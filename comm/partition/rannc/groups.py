"""Groups of operations that are merged in pairs, with what they exchange, in an order in which they can run."""

from collections.abc import Sequence

from suite.comm.partition.device import Device
from suite.comm.partition.graph import Graph

HOLE = -1  # a place in the order whose group was merged into another


class Groups:
    """Groups of a graph's operations, by number.

    Args:
        graph: of the model.
        parts: the first groups, as indices of nodes, in an order that runs.
        device: whose times count.
        samples: of one micro-batch.

    Attributes:
        seconds: of one micro-batch, forward and backward, by group.
        place: of each group in an order in which the groups can run.
    """

    def __init__(self, graph: Graph, parts: Sequence[tuple[int, ...]], device: Device, samples: int):
        self.graph, self.scale = graph, samples / graph.samples
        self.nodes = {number: list(part) for number, part in enumerate(parts)}
        self.seconds = {
            number: sum(sum(device.seconds(graph, graph.nodes[node], samples)) for node in part)
            for number, part in enumerate(parts)
        }
        self.saved = {
            number: sum(graph.nodes[node].saved for node in part) * self.scale for number, part in enumerate(parts)
        }
        self.parameters = {
            number: {name for node in graph.with_constants(part) for name in graph.nodes[node].parameters}
            for number, part in enumerate(parts)
        }
        self.place = {number: number for number in range(len(parts))}
        self.slots = list(range(len(parts)))
        self.sent: dict[int, dict[int, set[str]]] = {number: {} for number in self.nodes}  # values, by reading group
        self.makers: dict[int, set[int]] = {number: set() for number in self.nodes}
        home = {node: number for number, part in enumerate(parts) for node in part}
        for name, maker in graph.maker.items():
            for reader in graph.users[name] if maker in home else ():
                if reader in home and home[reader] != home[maker]:
                    self.sent[home[maker]].setdefault(home[reader], set()).add(name)
                    self.makers[home[reader]].add(home[maker])

    def __len__(self) -> int:
        return len(self.nodes)

    def order(self) -> list[int]:
        """Return the groups in an order in which they can run."""
        return [group for group in self.slots if group != HOLE]

    def blocks(self) -> list[tuple[int, ...]]:
        """Return the nodes of each group, in an order in which the groups can run."""
        return [tuple(sorted(self.nodes[group])) for group in self.order()]

    def readers(self, group: int) -> list[int]:
        """Return the groups that read a group's values, in the order in which they run."""
        return sorted(self.sent[group], key=self.place.__getitem__)

    def exchanged(self, first: int, second: int) -> float:
        """Bytes of one micro-batch that the first group sends to the second."""
        values = (self.graph.values[name] for name in self.sent[first].get(second, ()))
        return sum(value.nbytes * (self.scale if value.batched else 1.0) for value in values)

    def memory(self, first: int, second: int, state: float) -> float:
        """Bytes that two groups need together for one micro-batch, without messages.

        Args:
            first: a group.
            second: another.
            state: bytes of optimizer state for a byte of trainable parameters.
        """
        parameters = [self.graph.parameters[name] for name in self.parameters[first] | self.parameters[second]]
        arrays = sum(parameter.nbytes * (2 + state if parameter.trainable else 1) for parameter in parameters)
        return arrays + self.saved[first] + self.saved[second]

    def convex(self, first: int, second: int) -> bool:
        """Return whether no path from the first group to the second runs through a third."""
        return second not in self._between(first, second)

    def merge(self, first: int, second: int) -> None:
        """Merge the second group into the first, which stands before it in the order.

        What lies between them and needs the first group then runs after both.
        """
        start, end = self.place[first], self.place[second]
        later = self._between(first, second)
        between = [group for group in self.slots[start + 1 : end] if group != HOLE]
        moved = [group for group in between if group not in later] + [first]
        moved += [group for group in between if group in later]
        moved += [HOLE] * (end - start + 1 - len(moved))
        self.slots[start : end + 1] = moved
        self.place |= {group: start + offset for offset, group in enumerate(moved) if group != HOLE}
        self._join(first, second)

    def _between(self, first: int, second: int) -> set[int]:
        """Find the groups up to the second that need the first, without what the first itself sends to the second."""
        last, reached = self.place[second], set[int]()
        waiting = [reader for reader in self.sent[first] if reader != second]
        while waiting:
            group = waiting.pop()
            if group not in reached and self.place[group] <= last:
                reached.add(group)
                waiting += self.sent[group]
        return reached

    def _join(self, first: int, second: int) -> None:
        """Give the first group all that the second has."""
        self.nodes[first] += self.nodes.pop(second)
        self.seconds[first] += self.seconds.pop(second)
        self.saved[first] += self.saved.pop(second)
        self.parameters[first] |= self.parameters.pop(second)
        self.sent[first].pop(second, None)
        for reader, names in self.sent.pop(second).items():
            self.sent[first].setdefault(reader, set()).update(names)
            self.makers[reader] -= {second}
            self.makers[reader] |= {first}
        for maker in self.makers.pop(second) - {first}:
            self.sent[maker].setdefault(first, set()).update(self.sent[maker].pop(second))
            self.makers[first] |= {maker}
        del self.place[second]
