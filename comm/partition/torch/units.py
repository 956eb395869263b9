"""Custom `torch.autograd.Function`s and hooks on tensors, each as one operator with its own backward pass.

`torch.export` records the operators inside of a function's `forward`, and nothing of a hook: their gradients would be
lost. While a model is traced here, both leave one operator each.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, _get_dispatch_mode_pre_dispatch
from torch.autograd import Function
from torch.autograd.function import _is_setup_context_defined
from torch.fx.experimental.proxy_tensor import track_tensor_tree
from torch.utils import _pytree as pytree

from suite.contract import UserError

Hook = Callable[[Tensor], Tensor | None]


class Recorded(HigherOrderOperator):
    """Stands for a unit in the exported program: (number of the unit, tensors)."""

    def __init__(self) -> None:
        super().__init__("suite_partition_unit")

    def __call__(self, number: int, *tensors: Tensor) -> Any:
        """Never runs: `insert_units` replaces it."""
        return super().__call__(number, *tensors)


RECORDED = Recorded()
TENSOR = object()  # stands for a tensor among a function's arguments


@dataclass(eq=False)
class Unit:
    """One call of a custom function: takes the call's tensors, in order.

    Attributes:
        function: its class.
        arguments: of `apply`, with `TENSOR` in place of tensors.
    """

    function: type[Function]
    arguments: Sequence[Any]

    def __post_init__(self) -> None:
        self.__name__ = self.function.__name__  # for the code that fx writes

    def __call__(self, *tensors: Tensor) -> Any:
        """Apply the function."""
        given = iter(tensors)
        return self.function.apply(*(next(given) if one is TENSOR else one for one in self.arguments))

    def __str__(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


@dataclass(eq=False)
class HookUnit:
    """One call of `value.register_hook(hook)`: takes the value, and returns one with the hook on its gradient."""

    hook: Hook
    __name__ = "register_hook"

    def __call__(self, value: Tensor) -> Tensor:
        """Return a view of the value."""
        value = torch.ops.aten.alias.default(value)
        if value.requires_grad:
            value.register_hook(self.hook)
        return value

    def __str__(self) -> str:
        return "register_hook"


class Recorder:
    """Units of a model, while it is traced.

    Attributes:
        units: in the order of their calls.
    """

    def __init__(self) -> None:
        self.units: list[Unit | HookUnit] = []
        self._inside = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record calls of functions and hooks inside of the context, where a model is exported."""
        register = Tensor.register_hook
        Tensor.register_hook = self._hook(register)  # type: ignore[method-assign]
        kinds = [kind for kind in _subclasses(Function) if not _has_operator(kind)]
        own = {kind: kind.__dict__.get("forward") for kind in kinds}
        replacements = {kind: staticmethod(self._forward(kind, kind.forward)) for kind in kinds}
        for kind, forward in replacements.items():
            kind.forward = forward
        try:
            yield
        finally:
            Tensor.register_hook = register
            for kind, forward in own.items():
                if forward is None:
                    del kind.forward
                else:
                    kind.forward = forward

    def check(self, loss: Tensor) -> None:
        """Check that every custom function on the way to the loss was recorded.

        Raises:
            UserError: for one that was not, because `forward` defined its class.
        """
        recorded = {unit.function for unit in self.units if isinstance(unit, Unit)}
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            kind = getattr(node, "_forward_cls", None)
            if kind is not None and kind not in recorded and not _has_operator(kind):
                raise UserError(f"forward defines the autograd function {kind.__qualname__}; define it outside forward")
            waiting += [following for following, _ in node.next_functions]

    def _forward(self, kind: type[Function], forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function's `forward` that leaves one operator in the program."""

        def recorded(*arguments: Any) -> Any:
            mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
            if mode is None or self._inside:
                return forward(*arguments)
            if kind.__module__.startswith("torch."):
                words = "torch.utils.checkpoint with use_reentrant=True; set use_reentrant=False"
                raise UserError(f"uses {words if 'checkpoint' in kind.__module__ else f'{kind.__module__}'}")
            given = arguments if _is_setup_context_defined(kind.setup_context) else arguments[1:]
            tensors = [value for value in given if isinstance(value, Tensor)]
            if len(tensors) != sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(given)):
                raise UserError(
                    f"the autograd function {kind.__qualname__} takes tensors in a container; pass them alone"
                )
            versions = [value._version for value in tensors]
            result = self._unrecorded(forward, arguments)
            if versions != [value._version for value in tensors]:
                raise UserError(
                    f"the autograd function {kind.__qualname__} changes an input; let it return a new tensor"
                )
            result = self._unrecorded(lambda: pytree.tree_map(lambda one: _apart(one, tensors), result), ())
            unit = Unit(kind, [TENSOR if isinstance(value, Tensor) else value for value in given])
            self._record(mode, unit, tensors, result)
            return result

        return recorded

    def _hook(self, register: Callable[[Tensor, Hook], Any]) -> Callable[[Tensor, Hook], Any]:
        """Return `Tensor.register_hook` that leaves one operator in the program."""

        def recorded(value: Tensor, hook: Hook) -> Any:
            mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
            if mode is None or self._inside:
                return register(value, hook)
            self._record(mode, HookUnit(hook), [value], value)
            return self._unrecorded(register, (value, hook))

        return recorded

    def _record(self, mode: Any, unit: Unit | HookUnit, tensors: Sequence[Tensor], result: Any) -> None:
        """Add an operator to the program: `result` is what it returns."""
        proxies = [mode.tracer.unwrap_proxy(value) for value in tensors]
        proxy = mode.tracer.create_proxy("call_function", RECORDED, (len(self.units), *proxies), {})
        track_tensor_tree(result, proxy, constant=None, tracer=mode.tracer)
        self.units.append(unit)

    def _unrecorded(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call a function without recording its operators."""
        pre_dispatch = torch._C.DispatchKey.PreDispatch
        included = torch._C._dispatch_tls_local_include_set().remove(pre_dispatch)
        excluded = torch._C._dispatch_tls_local_exclude_set() | torch._C.DispatchKeySet(pre_dispatch)
        self._inside = True
        try:
            with torch._C._ForceDispatchKeyGuard(included, excluded):
                return function(*arguments)
        finally:
            self._inside = False


def insert_units(module: fx.GraphModule, units: Sequence[Unit | HookUnit]) -> None:
    """Let the program call its units. A hook comes before its value's readers, because it gets the sum of gradients."""
    for node in list(module.graph.nodes):
        if node.target is not RECORDED:
            continue
        number, *tensors = node.args
        assert isinstance(number, int)
        unit = units[number]
        node.target, node.args = unit, tuple(tensors)
        if isinstance(unit, HookUnit):
            _insert_hook(node)
    module.recompile()


def _insert_hook(node: fx.Node) -> None:
    """Move a hook to its value, before the value's readers and other hooks.

    Raises:
        UserError: if the value is a parameter, which gets one more hook in every forward pass.
    """
    [value] = node.all_input_nodes
    if value.op == "get_attr":
        raise UserError(f"register_hook on {value.target} in forward; change its gradient after step() instead")
    node.replace_all_uses_with(value)
    while isinstance(value.target, HookUnit):
        [value] = value.all_input_nodes
    node.args = (value,)
    value.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)
    value.append(node)


def _subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _has_operator(kind: type) -> bool:
    """Return whether torch uses the function for an operator that the program has."""
    return kind.__module__.startswith(("torch._library", "torch._higher_order_ops"))


def _apart(value: Any, inputs: Sequence[Tensor]) -> Any:
    """A function that returns its input returns a view of it, for autograd."""
    return value.view_as(value) if any(value is one for one in inputs) else value
