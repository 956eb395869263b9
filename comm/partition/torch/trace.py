"""Reads the graph of an unmodified `nn.Module` from `torch.export`.

The exported program calls the same operators in the same order as the module, so its results have the same bits
(torch 2.13). Everything here runs on fake tensors: no memory of the model's size is needed.
"""

import contextlib
import io
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from suite.comm.partition.draws import reject_draws
from suite.comm.partition.graph import Graph
from suite.comm.partition.torch.inplace import replace_changes
from suite.comm.partition.torch.places import find_error
from suite.comm.partition.torch.regions import inline_regions
from suite.comm.partition.torch.rejected import reject_hooks, reject_operations
from suite.comm.partition.torch.tape import Tape, get_attribute
from suite.comm.partition.torch.units import Recorder, insert_units
from suite.contract import UserError

Inputs = tuple[Any, ...] | dict[str, Any]  # positional arguments, or keyword arguments
Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]


@contextlib.contextmanager
def _tell(told: Sequence[str]) -> Iterator[None]:
    """Let `torch.compiler.is_compiling()` and `is_exporting()` be true only where `told` says."""
    before = {name: getattr(torch.compiler, f"_is_{name}_flag") for name in ("compiling", "exporting")}
    try:
        for name in before:
            setattr(torch.compiler, f"_is_{name}_flag", name in told)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, f"_is_{name}_flag", value)


class WithLoss(nn.Module):
    """A model and its loss as one module: (inputs, targets) to (loss, weight, outputs).

    Args:
        model: takes `inputs` as positional arguments, or by keyword if they are a dictionary.
        loss: (outputs, targets) to a scalar, or to the losses' sum and weight; None if the model returns it.
        outputs: whether to return the model's outputs.

    Attributes:
        told: what the model is told of torch, `compiling` and `exporting`; models may take other branches then.
    """

    told: tuple[str, ...] = ()

    def __init__(self, model: nn.Module, loss: Loss | None, outputs: bool):
        super().__init__()
        self.model, self.loss, self.outputs = model, loss, outputs
        self.training = model.training

    def forward(self, inputs: Inputs, targets: Any) -> tuple[Tensor, Tensor | None, Any]:
        """Return the loss, its weight if there is one, and the outputs if asked for.

        Raises:
            UserError: if the model assigns a new tensor to a buffer, which `torch.export` would not notice, or the loss
                is no number that depends on the parameters.
        """
        before = dict(self.model.named_buffers())
        with _tell(self.told):
            outputs = self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)
            result = outputs if self.loss is None else self.loss(outputs, targets)
        assigned = [name for name, buffer in self.model.named_buffers() if buffer is not before.get(name)]
        if assigned:
            raise UserError(
                f"forward assigns a new tensor to the buffer {assigned[0]}; change it in place, for example with "
                f"self.{assigned[0].rpartition('.')[2]}.copy_(...)"
            )
        loss, weight = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
            raise UserError("the loss must be one floating-point number, the mean over samples, or (sum, weight)")
        if not loss.requires_grad:
            raise UserError("the loss does not depend on a parameter with requires_grad")
        if weight is not None:
            weight = torch.zeros_like(loss).detach() + weight  # of the last stage, also if it is a constant
            if weight.ndim or weight.requires_grad:
                raise UserError("the weight of the loss must be one number that depends on no parameter")
        return loss, weight, outputs if self.outputs and self.loss is not None else ()


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
        weighted: whether the loss is a sum with a weight; otherwise it is a mean.
    """

    graph: Graph
    module: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    fakes: Mapping[str, Tensor]
    names: Mapping[str, str]
    split: Mapping[str, bool]
    outputs: Any
    weighted: bool


def trace_model(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    outputs: bool = False,
    split: Sequence[bool] | None = None,
) -> Traced:
    """Trace a model with one micro-batch.

    Args:
        model: in the mode in which it will run (`train()` or `eval()`).
        inputs: positional arguments of the model, or keyword arguments as a dictionary: tensors, or containers of
            them, with the samples along axis 0.
        targets: second argument of `loss`.
        loss: (outputs, targets) to a scalar, or to the losses' sum and weight; None if the model returns it.
        outputs: keep the model's outputs; the stages then pass them on to the last stage.
        split: of each tensor of inputs and targets, whether its axis 0 has the samples; None: those as long as the
            first tensor have.

    Raises:
        UserError: if torch cannot export the model, with the reason that it gives; or if a stage could not repeat what
            the model does.
    """
    whole = WithLoss(model, loss, outputs)
    reject_hooks(model)
    module = _export(whole, inputs, targets)
    inline_regions(module)
    reject_operations(module)
    replace_changes(module)
    samples = next((len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim), 1)
    names = _names(whole, module)
    tape = Tape(module, names)
    graph = tape.planned(samples)
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    chosen = dict(zip(placeholders, split, strict=True)) if split is not None else {}
    divided = {
        name: chosen.get(name, tape.fakes[name].ndim > 0 and len(tape.fakes[name]) == samples) for name in graph.inputs
    }
    _, weight, results = _results(module)
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, fx.Node) and leaf.op == "get_attr":
            raise UserError(
                f"the model cannot be cut: it returns {names[str(leaf.target)]}, which belongs to a stage; leave it "
                "out of the outputs, or set outputs=False"
            )
    return Traced(graph, module, tuple(tape.calls), tape.fakes, names, divided, results, weight is not None)


def _export(whole: WithLoss, inputs: Inputs, targets: Any) -> fx.GraphModule:
    """Return the exported program, with custom functions and hooks as units.

    The model is told that it is not compiled or exported, unless it cannot be exported then.
    """
    causes: list[Exception] = []
    for whole.told in ((), ("compiling",), ("compiling", "exporting")):
        recorder = Recorder()
        checked = whole.register_forward_hook(lambda *call, one=recorder: one.check(call[-1][0]))
        try:
            with _without_messages(), recorder.recording(), reject_draws("torch.rand"):
                program = torch.export.export(whole, (inputs, targets), strict=False)
                module = program.module(check_guards=False)
            insert_units(module, recorder.units)
            return module
        except Exception as error:
            causes.append(error)
        finally:
            checked.remove()
    error = causes[0]
    place = find_error(error, whole.model)
    cause = str(error) if isinstance(error, UserError) else f"torch.export rejects it: {_first_line(error)}"
    raise UserError(f"the model cannot be cut: {place and place + ': '}{cause}") from error


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Silence warnings and messages of torch."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()


def _results(module: fx.GraphModule) -> Any:
    """Return (loss, weight, outputs) with nodes in place of tensors."""
    [result] = [node for node in module.graph.nodes if node.op == "output"]
    structure = module.graph._codegen.pytree_info.out_spec  # type: ignore[attr-defined]
    return pytree.tree_unflatten(list(result.args[0]), structure)


def _names(whole: WithLoss, module: fx.GraphModule) -> dict[str, str]:
    """By name in the exported module, the name in the model."""
    first: dict[int, str] = {}
    for name, tensor in itertools.chain(whole.model.named_parameters(), whole.model.named_buffers()):
        first.setdefault(id(tensor), name)
    return {target: first.get(id(get_attribute(module, target)), target) for target in _targets(module)}


def _targets(module: fx.GraphModule) -> dict[str, fx.Node]:
    return {str(node.target): node for node in module.graph.nodes if node.op == "get_attr"}
