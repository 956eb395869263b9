"""Rejects exported programs with operators that a stage could not repeat."""

import torch
from torch import Tensor, fx

from suite.comm.partition.torch.tape import find_changed, find_layer, find_root, get_attribute
from suite.contract import UserError

# what torch.export makes of contexts in `forward`; a stage has no operators inside of operators
CONTEXTS = {
    "wrap_with_set_grad_enabled": "torch.no_grad() or torch.enable_grad(); use detach() instead",
    "wrap_with_autocast": "torch.autocast; convert the values instead",
}


def reject_operations(module: fx.GraphModule) -> None:
    """Check that all operators can be cut.

    Args:
        module: the exported program.

    Raises:
        UserError: naming the first layer that has another one.
    """
    for node in module.graph.nodes:
        cause = _cause(module, node) if node.op == "call_function" else None
        if cause:
            raise UserError(f"the model cannot be cut: {find_layer(node)} {cause}")


def _cause(module: fx.GraphModule, node: fx.Node) -> str | None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        context = CONTEXTS.get(node.target.name())
        return context and f"uses {context}"
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    written = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    target = find_changed(node)
    given = [name for name in written if name in node.kwargs]
    if target is None or len(written) > 1 or given:
        return f"changes values by {node.target}; write it in place on one tensor, such as value.add_(...)"
    owner = find_root(target)
    if owner.op == "get_attr":
        value = get_attribute(module, str(owner.target))
        if isinstance(value, Tensor) and value.requires_grad:
            return f"changes the parameter {str(owner.target).removeprefix('model.')} in place, as max_norm does"
    return None
