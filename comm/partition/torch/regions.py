"""Inlines `torch.no_grad()` in `forward`: its operators run on detached values."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from suite.comm.partition.torch.places import find_place
from suite.comm.partition.torch.tape import get_attribute
from suite.contract import UserError

GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled  # (enabled, operators, *values)
AUTOCAST = torch.ops.higher_order.wrap_with_autocast  # (device, type, enabled, cache, operators, *values)


def inline_regions(module: fx.GraphModule, *, recorded: bool = True) -> None:
    """Replace what `torch.export` makes of contexts in `forward` by the operators inside.

    Args:
        module: the exported program.
        recorded: whether gradients are recorded around it.

    Raises:
        UserError: for `torch.enable_grad()` inside of `torch.no_grad()`.
    """
    for node in list(module.graph.nodes):
        if node.target is GRADIENTS:
            enabled, body, *values = node.args
            if enabled and not recorded:
                raise UserError(
                    f"the model cannot be cut: {find_place(node)} uses torch.enable_grad() inside of torch.no_grad(); "
                    "leave it after the region"
                )
            _inline(module, node, body, values, recorded=recorded, recording=bool(enabled))
        elif node.target is AUTOCAST and not node.args[2]:  # nothing is cast
            _inline(module, node, node.args[4], node.args[5:], recorded=recorded, recording=recorded)
    module.recompile()


def _inline(
    module: fx.GraphModule, call: fx.Node, body: fx.Node, values: Sequence[Any], *, recorded: bool, recording: bool
) -> None:
    """Replace the call of a region by its operators; `recording`: whether gradients are recorded inside."""
    graph, inner = module.graph, get_attribute(module, str(body.target))
    inline_regions(inner, recorded=recording)
    given = iter(values)
    copies: dict[fx.Node, Any] = {}
    [results] = next(node.args for node in inner.graph.nodes if node.op == "output")
    with graph.inserting_before(call):
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                copies[node] = _detach(module, value) if recorded and not recording else value
            elif node.op == "get_attr":
                name = f"{body.target}_{str(node.target).replace('.', '_')}"
                setattr(module, name, get_attribute(inner, str(node.target)))
                copies[node] = graph.get_attr(name)
            elif node.op != "output":
                copies[node] = graph.node_copy(node, copies.__getitem__)
    for item in list(call.users):
        item.replace_all_uses_with(copies[results[item.args[1]]])
        graph.erase_node(item)
    graph.erase_node(call)
    if not body.users:
        graph.erase_node(body)


def _detach(module: fx.GraphModule, value: Any) -> Any:
    """Detach a parameter, or a value that may require a gradient."""
    if not isinstance(value, fx.Node) or value.op == "placeholder":
        return value
    like = get_attribute(module, str(value.target)) if value.op == "get_attr" else value.meta.get("val")
    if not isinstance(like, Tensor) or not (like.is_floating_point() or like.is_complex()):
        return value
    if value.op == "get_attr" and not like.requires_grad:
        return value
    detached = module.graph.call_function(torch.ops.aten.detach.default, (value,))
    detached.meta = dict(value.meta, val=like.detach())
    return detached
