"""Rejects models and exported programs with what a stage could not repeat."""

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as modules

from suite.comm.partition.torch.places import find_place
from suite.comm.partition.torch.tape import find_changed, find_root, get_arguments, get_attribute
from suite.contract import UserError

# what torch.export makes of control flow and contexts in `forward`; a stage has no operators inside of operators
WORDS = {
    "wrap_with_autocast": "torch.autocast; convert the values instead",
    "cond": "torch.cond; compute both branches, and choose with torch.where",
}


def reject_hooks(model: nn.Module) -> None:
    """Check that no hook of a layer or parameter has to run in the backward pass.

    Raises:
        UserError: naming the first layer or parameter that has one.
    """
    advice = "leave it out, or call register_hook on the layer's output in forward"
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise UserError(f"the model cannot be cut: {name or 'the model'} has a backward hook; {advice}")
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        raise UserError(f"the model cannot be cut: there is a global backward hook of modules; {advice}")
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks or parameter._backward_hooks:
            raise UserError(
                f"the model cannot be cut: the parameter {name} has a hook; change the gradients after step() instead"
            )


def reject_operations(module: fx.GraphModule) -> None:
    """Check that all operators can be cut.

    Args:
        module: the exported program.

    Raises:
        UserError: naming the first layer that has another one, with file and line.
    """
    for node in module.graph.nodes:
        cause = _cause(module, node) if node.op == "call_function" else None
        if cause:
            raise UserError(f"the model cannot be cut: {find_place(node)} {cause}")


def _cause(module: fx.GraphModule, node: fx.Node) -> str | None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        name = node.target.name()
        return f"uses {WORDS.get(name, f'the operator {name}, which has operators inside')}"
    if "functorch" in getattr(node.target, "__module__", ""):
        return "uses a transform of torch.func, such as vmap or grad; write it without"
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if get_arguments(node).get("sparse"):
        return "has sparse gradients; set sparse=False"
    schema = node.target._schema
    if not schema.is_mutable:
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
