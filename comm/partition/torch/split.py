"""Cuts an exported program into the stages of a plan.

Stage s is a module `(inputs, received) -> sent`. It gets the model's inputs that it reads, and the values in
`plan.stages[s].receives`; it returns the values that stage s + 1 receives. The last stage returns the loss and the
outputs. A value that a later stage needs is passed on by every stage between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from suite.comm.partition.plan import Plan
from suite.comm.partition.torch.tape import find_results, get_attribute
from suite.comm.partition.torch.trace import Traced


@dataclass(frozen=True)
class Part:
    """One stage as a torch module.

    Attributes:
        module: takes the values of `inputs`, then those of `receives`, as positional arguments; returns a tuple.
        inputs: names of the model's inputs that it reads.
        receives: names of the values that it receives.
        sends: names of the values that it returns.
        parameters: by name in the model, those that it reads and that have gradients.
        buffers: by name in the model, what it reads and that has no gradient.
        changes: by name in the module, the buffers that it changes.
        random: whether it draws random numbers.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    changes: dict[str, Tensor]
    random: bool

    def __call__(self, *values: Tensor, changing: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Run the stage with `changing` in place of the buffers that it changes."""
        return torch.func.functional_call(self.module, dict(changing), values)


def split_graph(traced: Traced, plan: Plan) -> list[Part]:
    """Return the stages of a plan, in order. They share the model's parameters."""
    receives = [stage.receives for stage in plan.stages]
    ends = [*receives[1:], traced.graph.outputs]
    return [
        _part(traced, traced.graph.with_results(stage.nodes, sent), received, sent)
        for stage, received, sent in zip(plan.stages, receives, ends, strict=True)
    ]


def _part(traced: Traced, nodes: Sequence[int], receives: tuple[str, ...], sends: tuple[str, ...]) -> Part:
    graph = fx.Graph()
    calls = [traced.nodes[index] for index in nodes]
    needed = {name for index in nodes for name in traced.graph.nodes[index].inputs} | set(sends)
    inputs = tuple(name for name in traced.graph.inputs if name in needed)
    copies: dict[str, fx.Node] = {name: graph.placeholder(name) for name in (*inputs, *receives)}
    targets: dict[str, str] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node.name not in copies:
            copies[node.name] = graph.get_attr(str(node.target))
            targets[str(node.target)] = traced.names.get(str(node.target), str(node.target))
        return copies[node.name]

    for call in calls:
        copies[call.name] = graph.node_copy(call, copied)
        for item in find_results(call):
            if item is not call:
                copies[item.name] = graph.node_copy(item, copied)
    graph.output(tuple(copies[name] for name in sends))
    module = fx.GraphModule(traced.module, graph)
    tensors = {name: get_attribute(module, target) for target, name in targets.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    changes = {name for index in nodes for name in traced.graph.nodes[index].changes}
    return Part(
        module=module,
        inputs=inputs,
        receives=receives,
        sends=sends,
        parameters={name: t for name, t in tensors.items() if isinstance(t, nn.Parameter) and t.requires_grad},
        buffers={name: tensor for name, tensor in tensors.items() if not tensor.requires_grad},
        changes={target: tensors[name] for target, name in targets.items() if name in changes},
        random=any(traced.graph.nodes[index].random for index in nodes),
    )
