"""Replaces operators that change a value in place by those that return a new one, where nothing else sees it."""

from typing import Any

import torch
from torch import fx

from suite.comm.partition.torch.tape import find_changed, find_root, is_view


def replace_changes(module: fx.GraphModule) -> None:
    """Replace the operators of a program that change activations in place.

    A received value may be a leaf that requires a gradient, which torch does not let a stage change in place. Inputs
    that the model changes are copied first, because the micro-batches are views of one batch.
    """
    for node in list(module.graph.nodes):
        target = find_changed(node)
        if target is not None and find_root(target).op == "placeholder":
            _copy(module.graph, find_root(target))
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    for node in list(module.graph.nodes):
        target = find_changed(node)
        if target is None or target.op == "get_attr" or _aliased(target, node):
            continue
        replacement = _without_change(node.target)
        if replacement is None:
            continue
        node.target = replacement
        for user in list(target.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(target, node)
    module.recompile()


def _copy(graph: fx.Graph, placeholder: fx.Node) -> None:
    """Use a copy of an input in its place."""
    with graph.inserting_before(min(placeholder.users)):
        copy = graph.call_function(torch.ops.aten.clone.default, (placeholder,))
    copy.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _aliased(target: fx.Node, change: fx.Node) -> bool:
    """Return whether the value is a view, or another operator than the change makes a view of it."""
    return is_view(target) or any(is_view(user) for user in target.users if user is not change)


def _without_change(operator: Any) -> Any:
    """Return the operator without in-place effect: `aten.relu_.default` to `aten.relu.default`; None if none."""
    if operator is torch.ops.aten.copy_.default:
        return None  # aten.copy has no derivative
    space, _, name = operator._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, operator._overloadname, None)
