"""Runs an exported program on fake tensors, and writes down what each operator costs."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from suite.comm.partition.graph import Graph, Node, Parameter, Value
from suite.comm.partition.torch.places import find_layer, find_place
from suite.comm.partition.torch.units import HookUnit, Unit
from suite.contract import UserError


class Tape(fx.Interpreter):
    """One run of an exported program on fake tensors.

    Args:
        module: the exported program.
        names: of its parameters and buffers, the names in the model.

    Attributes:
        calls: the operators that a stage runs, in program order.
        fakes: the values by name.
    """

    def __init__(self, module: fx.GraphModule, names: dict[str, str]):
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False
        self.program, self.names = module, names
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.calls: list[fx.Node] = []
        self.fakes: dict[str, Tensor] = {}
        self.outputs: tuple[str, ...] = ()
        self._parameters: dict[str, Tensor] = {}
        self._flops: dict[str, float] = {}
        self._saved: dict[str, int] = {}
        self._kept: set[int] = set()
        with self.mode, torch.enable_grad():
            arguments = [self._fake(node.meta["val"]) for node in module.graph.nodes if node.op == "placeholder"]
            with FlopCounterMode(display=False) as self._counter:
                super().run(*arguments, enable_io_processing=False)
        self._with_gradient = self._reached()

    def _fake(self, value: Any) -> Any:
        """A fake tensor of this run's mode like one of the export's; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        return fake.requires_grad_(value.requires_grad)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and note its cost."""
        if n.op == "get_attr" and isinstance(get_attribute(self.program, str(n.target)), Tensor):
            return self._parameter(str(n.target))
        if n.op != "call_function":
            return self._noted(n, super().run_node(n))
        before = self._counter.get_total_flops()
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda x: x):
            try:
                result = super().run_node(n)
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                cause = f"a shape or a branch depends on values: {error.func}"
                raise UserError(f"the model cannot be cut: {find_place(n)}: {cause}") from error
        self._flops[n.name] = self._counter.get_total_flops() - before
        self._saved[n.name] = sum(map(self._newly_kept, kept))
        if n.target is not operator.getitem and result is not None:
            self.calls.append(n)
        return self._noted(n, result)

    def _noted(self, node: fx.Node, result: Any) -> Any:
        if isinstance(result, Tensor):
            self.fakes[node.name] = result
        return result

    def _parameter(self, target: str) -> Tensor:
        """Return the fake of a parameter or buffer; tied ones are one tensor."""
        name = self.names[target]
        if name not in self._parameters:
            real = get_attribute(self.program, target)
            self._parameters[name] = self._fake(real)
            self._kept.add(_storage(self._parameters[name]))
        return self._parameters[name]

    def _newly_kept(self, tensor: Tensor) -> int:
        """Bytes of a tensor that is kept for the backward pass, unless it is a parameter or kept already."""
        storage = _storage(tensor)
        if storage in self._kept:
            return 0
        self._kept.add(storage)
        return tensor.untyped_storage().nbytes()

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Note the outputs' names, the loss first."""
        [result] = [node for node in self.program.graph.nodes if node.op == "output"]
        self.outputs = tuple(node.name for node in result.all_input_nodes)
        return super().output(target, args, kwargs)

    def _reached(self) -> set[str]:
        """Names of the values that a gradient of the loss reaches."""
        loss = self.fakes.get(self.outputs[0]) if self.outputs else None
        if loss is None or not loss.requires_grad:
            return set()
        names = [name for name, fake in self.fakes.items() if fake.requires_grad]
        with self.mode:
            grads = torch.autograd.grad(loss.sum(), [self.fakes[name] for name in names], allow_unused=True)
        return {name for name, grad in zip(names, grads, strict=True) if grad is not None}

    # ------------------------------------------------------------------------------------------------------ the graph
    def planned(self, samples: int) -> Graph:
        """Return the planner's graph of a program that was traced with `samples` samples."""
        inputs = tuple(node.name for node in self.program.graph.nodes if node.op == "placeholder")
        values = {name: Value(_nbytes(self.fakes[name])) for name in inputs if name in self.fakes}
        batched = set(values)
        roots = self._roots()
        moved = {roots[changed_node] for node in self.calls if (changed_node := find_changed(node)) is not None}
        parameters = {name: Parameter(_nbytes(p), p.requires_grad) for name, p in self._parameters.items()}
        parameters |= {_tie(root): Parameter(0, False) for root in moved if root.op != "get_attr"}
        nodes = []
        for call in self.calls:
            node = self._node(call, roots, moved)
            nodes.append(node)
            if batched.intersection(node.inputs):
                batched |= set(node.outputs)
            for name in node.outputs:
                differentiable = name in self._with_gradient
                values[name] = Value(_nbytes(self.fakes[name]), name in batched, differentiable)
        outputs = tuple(dict.fromkeys(name for name in self.outputs if name in values))
        return Graph(samples, tuple(nodes), values, tuple(n for n in inputs if n in values), outputs, parameters)

    def _roots(self) -> dict[fx.Node, fx.Node]:
        """By node: the node whose memory its result shares."""
        roots: dict[fx.Node, fx.Node] = {}
        for node in self.program.graph.nodes:
            first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            shares = first is not None and node.op == "call_function" and is_view(node)
            roots[node] = roots[first] if shares and first is not None else node
        return roots

    def _node(self, call: fx.Node, roots: dict[fx.Node, fx.Node], moved: set[fx.Node]) -> Node:
        """One operator as the planner sees it."""
        reads = list(dict.fromkeys(call.all_input_nodes))
        inputs = [node.name for node in reads if node.op != "get_attr" and node.name in self.fakes]
        parameters = [self.names[str(node.target)] for node in reads if node.op == "get_attr"]
        ties = [self._buffer(roots[node]) for node in (call, *reads) if roots[node] in moved]
        target = find_changed(call)
        statistics = [self.names[str(node.target)] for node in _running(call) if node.op == "get_attr"]
        outputs = [node.name for node in find_results(call) if node.name in self.fakes]
        view = is_view(call) and target is None
        values = [*inputs, *outputs]
        return Node(
            name=call.name,
            operation=str(call.target),
            layer=find_layer(call),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            parameters=tuple(dict.fromkeys([*parameters, *ties])),
            flops=self._flops[call.name],
            traffic=0.0 if view else float(sum(_nbytes(self.fakes[name]) for name in values)),
            saved=self._saved[call.name],
            random=_draws(call),
            changes=tuple(statistics) if target is None else (self._buffer(roots[target]),),
        )

    def _buffer(self, root: fx.Node) -> str:
        """Return the name under which all operators on a changing tensor are kept in one stage."""
        return self.names[str(root.target)] if root.op == "get_attr" else _tie(root)


def find_results(call: fx.Node) -> list[fx.Node]:
    """Return the nodes that hold an operator's results: itself, or what is taken from its tuple."""
    items = [user for user in call.users if user.target is operator.getitem]
    return items or [call]


def get_attribute(module: nn.Module, target: str) -> Any:
    """Return the parameter or buffer at a dotted path."""
    path, _, leaf = target.rpartition(".")
    return getattr(module.get_submodule(path), leaf)


def find_changed(node: fx.Node) -> fx.Node | None:
    """Return the node whose value an operator changes in place, if it is the first argument."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable or not node.args:
        return None
    alias = schema.arguments[0].alias_info
    first = node.args[0]
    return first if alias is not None and alias.is_write and isinstance(first, fx.Node) else None


def is_view(node: fx.Node) -> bool:
    """Return whether a node's result shares memory with its first argument, or belongs to the caller."""
    schema = getattr(node.target, "_schema", None)
    shares = schema is not None and any(result.alias_info is not None for result in schema.returns)
    return node.op == "placeholder" or isinstance(node.target, Unit | HookUnit) or (shares and not _copies(node))


def _copies(node: fx.Node) -> bool:
    """Return whether `x.to(…)`, which returns x or a copy, makes a copy: it was asked to, or the type changes."""
    if getattr(node.target, "overloadpacket", None) is not torch.ops.aten.to:
        return False
    before, after = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    changed = isinstance(before, Tensor) and isinstance(after, Tensor) and before.dtype != after.dtype
    return changed or get_arguments(node).get("copy") is True


def find_root(node: fx.Node) -> fx.Node:
    """Return the node whose memory a chain of views shares."""
    while node.op == "call_function" and is_view(node) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _draws(call: fx.Node) -> bool:
    """Return whether an operator draws random numbers."""
    if isinstance(call.target, Unit):
        return True  # it may
    if torch.Tag.nondeterministic_seeded not in getattr(call.target, "tags", ()):
        return False
    arguments = get_arguments(call)
    skips = "dropout" in str(call.target)  # others draw even with p=0
    probability = arguments.get("p", arguments.get("dropout_p", 1.0)) if skips else 1.0
    return bool(probability) and bool(arguments.get("train", True))


def get_arguments(call: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name, with defaults."""
    schema = call.target._schema  # type: ignore[union-attr]
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    given = dict(zip((argument.name for argument in schema.arguments), call.args, strict=False))
    return {**defaults, **given, **call.kwargs}


def _running(call: fx.Node) -> list[fx.Node]:
    """Return the running statistics that a normalization changes, which its schema does not say."""
    if not hasattr(call.target, "_schema"):
        return []
    arguments = get_arguments(call)
    training = arguments.get("training", False) or arguments.get("use_input_stats", False)
    statistics = (arguments.get("running_mean"), arguments.get("running_var")) if training else ()
    return [node for node in statistics if isinstance(node, fx.Node)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tie(root: fx.Node) -> str:
    return f"changes of {root.name}"
