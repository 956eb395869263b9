"""Reads the graph of an unmodified `nn.Module` from `torch.export`.

The exported program calls the same operators in the same order as the module, so its results have the same bits
(torch 2.13). Everything here runs on fake tensors: no memory of the model's size is needed.
"""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree

from suite.comm.partition.graph import Graph
from suite.comm.partition.torch.rejected import reject_operations
from suite.comm.partition.torch.tape import Tape, find_changed, find_root, get_attribute, is_view
from suite.contract import UserError

Loss = Callable[[Any, Any], Tensor]


class WithLoss(nn.Module):
    """A model and its loss as one module: (inputs, targets) to (loss, outputs)."""

    def __init__(self, model: nn.Module, loss: Loss | None, outputs: bool):
        super().__init__()
        self.model, self.loss, self.outputs = model, loss, outputs

    def forward(self, inputs: tuple[Any, ...], targets: Any) -> tuple[Tensor, Any]:
        """Return the loss and, if asked for, the outputs; without `loss`, the model's output is the loss.

        Raises:
            UserError: if the model assigns a new tensor to a buffer, which `torch.export` would not notice.
        """
        before = dict(self.model.named_buffers())
        outputs = self.model(*inputs)
        assigned = [name for name, buffer in self.model.named_buffers() if buffer is not before.get(name)]
        if assigned:
            raise UserError(
                f"the model cannot be cut: forward assigns a new tensor to the buffer {assigned[0]}; change it in "
                f"place, for example with self.{assigned[0].rpartition('.')[2]}.copy_(...)"
            )
        loss = outputs if self.loss is None else self.loss(outputs, targets)
        return loss, outputs if self.outputs and self.loss is not None else ()


@dataclass(frozen=True)
class Traced:
    """A model's graph, for the planner and for torch.

    Attributes:
        graph: what the planner cuts.
        module: the exported program; it shares the model's parameters.
        nodes: of the module, in the order of `graph.nodes`.
        fakes: by name of the value, a fake tensor with its shape, strides, type and `requires_grad`.
        names: of each parameter or buffer of the module, its name in the model; tied parameters share one.
        split: of each input, whether its axis 0 has the samples; other inputs are the same for all micro-batches.
        outputs: the model's outputs, with nodes of the module in place of tensors; () unless they were asked for.
    """

    graph: Graph
    module: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    fakes: Mapping[str, Tensor]
    names: Mapping[str, str]
    split: Mapping[str, bool]
    outputs: Any


def trace_model(
    model: nn.Module,
    inputs: tuple[Any, ...],
    targets: Any = None,
    loss: Loss | None = None,
    *,
    outputs: bool = False,
    split: Sequence[bool] | None = None,
) -> Traced:
    """Trace a model with one micro-batch.

    Args:
        model: in the mode in which it will run (`train()` or `eval()`).
        inputs: positional arguments of the model: tensors, or containers of them, with the samples along axis 0.
        targets: second argument of `loss`.
        loss: (outputs, targets) to a scalar; None if the model returns the loss.
        outputs: keep the model's outputs; the stages then pass them on to the last stage.
        split: of each tensor of inputs and targets, whether its axis 0 has the samples; None: those as long as the
            first tensor have.

    Raises:
        UserError: if torch cannot export the model, with the reason that it gives; or if a stage could not repeat what
            the model does.
    """
    whole = WithLoss(model, loss, outputs)
    whole.training = model.training
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(whole, (inputs, targets), strict=False)
            module = program.module(check_guards=False)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the model cannot be cut: torch.export rejects it: {_first_line(error)}") from error
    reject_operations(module)
    _functional(module)
    samples = next((len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim), 1)
    names = _names(whole, module)
    try:
        tape = Tape(module, names)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        cause = "a shape or a branch depends on values"
        raise UserError(f"the model cannot be cut: {cause}: {_first_line(error)}") from error
    graph = tape.planned(samples)
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    chosen = dict(zip(placeholders, split, strict=True)) if split is not None else {}
    divided = {
        name: chosen.get(name, tape.fakes[name].ndim > 0 and len(tape.fakes[name]) == samples) for name in graph.inputs
    }
    return Traced(graph, module, tuple(tape.calls), tape.fakes, names, divided, _outputs(module))


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()


def _outputs(module: fx.GraphModule) -> Any:
    """Return the model's outputs behind the loss, with nodes in place of tensors."""
    [result] = [node for node in module.graph.nodes if node.op == "output"]
    structure = module.graph._codegen.pytree_info.out_spec  # type: ignore[attr-defined]
    return pytree.tree_unflatten(list(result.args[0]), structure)[1]


def _names(whole: WithLoss, module: fx.GraphModule) -> dict[str, str]:
    """By name in the exported module, the name in the model."""
    first: dict[int, str] = {}
    for name, tensor in itertools.chain(whole.model.named_parameters(), whole.model.named_buffers()):
        first.setdefault(id(tensor), name)
    return {target: first.get(id(get_attribute(module, target)), target) for target in _targets(module)}


def _targets(module: fx.GraphModule) -> dict[str, fx.Node]:
    return {str(node.target): node for node in module.graph.nodes if node.op == "get_attr"}


# ------------------------------------------------------------------------------------------------- in-place operators
def _functional(module: fx.GraphModule) -> None:
    """Replace in-place operators on activations by those that return a new value, where nothing else sees the change.

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
