"""Level 1: atomic components, each an operation with what only it uses.

A component has one operation on a micro-batch. Constant nodes belong to every component that uses them. An operation
without the batch's axis, such as a transposed weight, joins its only user, so that no cut sends it.
"""

from suite.comm.partition.graph import Graph


def find_components(graph: Graph) -> list[tuple[int, ...]]:
    """Find the components of a graph in program order, as indices of nodes; constant nodes are in none."""
    host: dict[int, int] = {}  # by node: the node whose component it joins
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        readers = {reader for name in node.outputs for reader in graph.users[name]} - graph.constants
        batched = any(graph.values[name].batched for name in node.outputs)
        leaves = set(node.outputs) & set(graph.outputs)
        alone = batched or leaves or len(readers) != 1
        host[index] = index if alone else host[readers.pop()]
    members: dict[int, list[int]] = {}
    for index in range(len(graph.nodes)):
        if index not in graph.constants:
            members.setdefault(host[index], []).append(index)
    return [tuple(indices) for _, indices in sorted(members.items())]
