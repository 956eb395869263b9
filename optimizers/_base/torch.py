"""Base class of the torch optimizers, and functions that several of them use."""

import contextlib
import copy
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from suite.contract import Layer, UserError
from suite.declared import Declared
from suite.optimizers._base import torch_checks
from suite.optimizers._base.torch_shards import gather_whole, is_sharded, split_like

Chosen = TypeVar("Chosen", bound=Declared)
Count = TypeVar("Count", int, Tensor)
SHARED = "shared"  # state of no single parameter: `state_dict` has it below the first parameter
NARROW = (torch.bfloat16, torch.float16)  # parameters of these types have state in float32


class Optimizer(torch.optim.Optimizer, Generic[Chosen]):
    """Base class, with the interface of `torch.optim`.

    A subclass defines `_begin`, which initialises the state of a group's parameters, and `_update`, which computes one
    update. The state of a parameter in bfloat16 or float16 is in float32.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either. A group may set what may change while
            training, and `fixed`.
        settings: of the optimizer.
        fixed: names of further settings that a group may set.

    Raises:
        UserError: for a group's setting that is unknown, out of range, or the same for all groups; for parameters of a
            kind that the optimizer cannot update.
    """

    compiles = True  # whether torch.compile may trace `step`
    state: dict[Any, Any]  # by parameter; state of no single parameter is under the optimizer's name

    def __init__(self, parameters: Iterable[Any], settings: Chosen, fixed: Collection[str] = ()):
        self.settings, self.values = settings, dict(settings)
        super().__init__(parameters, settings.scheduled() | settings.model_dump(include=set(fixed)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; the group may have its own settings."""
        kind = type(self).__name__
        torch_checks.check_group(kind, self.settings, param_group, self.defaults)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        torch_checks.check_parameters(kind, group["params"])
        self._begin(group)
        self.places = torch_checks.find_places(self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None, **inputs: Any) -> Any:
        """Update the parameters from their gradients. A parameter whose gradient is None is left as it is.

        Args:
            closure: computes the loss and its gradients again, before the update; as in `torch.optim`.
            inputs: the inputs that the optimizer lists in NEEDS; only the suite's engine passes them.

        Returns:
            The result of the closure; None without a closure.
        """
        if self.compiles or inputs or "torch._dynamo" not in sys.modules:  # without it, nothing is compiled
            return self._step(closure, **inputs)
        if torch.compiler.is_compiling():  # torch then calls `step` without compiling it
            raise UserError(f"{type(self).__name__}: step() cannot be compiled; compile the model alone")
        run: Any = torch.compiler.disable(self._step)
        return run(closure)

    def _step(self, closure: Callable[[], Any] | None = None, **inputs: Any) -> Any:
        """Do what `step` describes."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._updating():
            self._update(**inputs)
        return loss

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        """A context without gradients, in which tensors among the groups' settings are numbers."""
        torch_checks.check_places(type(self).__name__, self.places, torch_checks.find_places(self.param_groups))
        groups = self.param_groups
        tensors = [(group, key, held) for group in groups for key, held in group.items() if isinstance(held, Tensor)]
        for group, key, held in tensors:
            group[key] = held.item()
        try:
            with torch.no_grad():
                yield
        finally:
            for group, key, held in tensors:
                group[key] = held

    def read_group(self, group: Mapping[str, Any]) -> Chosen:
        """Return the settings that hold now for a group of parameters."""
        held = {name: group.get(name, value) for name, value in self.values.items()}
        return cast(Chosen, _Held(held))

    def _begin(self, group: dict[str, Any]) -> None:
        """Initialise the state of a new group's parameters; called for the first groups and for later ones."""
        raise NotImplementedError

    def _update(self) -> None:
        """Update the parameters from their gradients."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state by the parameters' numbers, as torch's distributed checkpoints require it."""
        whole = super().state_dict()
        shared, state = _split_shared(whole)
        if shared:
            first = whole["param_groups"][0]["params"][0]
            state[first] = {**state.get(first, {}), SHARED: shared}
        return whole | {"state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a copy of a `state_dict`. Both optimizers must have been made with equal arguments.

        Raises:
            UserError: the state is that of other shapes.
        """
        shared, state = _split_shared(state_dict)
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        own = {key: self.state.get(parameter, {}) for key, parameter in zip(keys, params, strict=False)}
        torch_checks.check_state(type(self).__name__, {**self.state, **own}, shared | state)
        if missing := [key for key in self.state if isinstance(key, str) and key not in shared]:
            raise UserError(
                f"{type(self).__name__}.load_state_dict: the state lacks {', '.join(missing)}; with "
                "torch.distributed.checkpoint, set flatten_optimizer_state_dict=False"
            )
        super().load_state_dict(state_dict | {"state": state})
        # torch casts a parameter's state to the parameter's type, and does not copy other state
        for key, parameter in zip(keys, params, strict=True):
            if key in state and parameter.dtype in NARROW:
                self.state[parameter] = _placed(copy.deepcopy(state[key]), params[0].device)
        self.state.update(_placed(copy.deepcopy(shared), params[0].device))

    def __getstate__(self) -> dict[str, Any]:
        # not callables: a learning-rate schedule replaces `step` by a function
        fields = {
            name: value for name, value in self.__dict__.items() if not name.startswith("_") and not callable(value)
        }
        return super().__getstate__() | fields


class _Held:
    """Settings of a group as attributes. torch.compile traces it, and no copy of a pydantic object."""

    def __init__(self, values: Mapping[str, Any]):
        for name, value in values.items():
            setattr(self, name, value)


def _split_shared(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return the state of no single parameter, and that of each; states before November 2026 had the former beside."""
    keys = {key for group in state_dict["param_groups"] for key in group["params"]}
    shared = {key: value for key, value in state_dict["state"].items() if key not in keys}
    by_parameter = {key: dict(value) for key, value in state_dict["state"].items() if key in keys}
    for value in by_parameter.values():
        shared |= value.pop(SHARED, {})
    return shared, by_parameter


def _placed(value: Any, device: torch.device) -> Any:
    """Move the tensors of nested state to a device."""
    if isinstance(value, dict):
        return {key: _placed(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, device) for item in value]
    return value.to(device) if isinstance(value, Tensor) else value


# ------------------------------------------------------------------------------- parameters and their gradients
def select_with_gradient(parameters: list[Tensor]) -> list[Tensor]:
    """Return the parameters that have a gradient."""
    return [parameter for parameter in parameters if parameter.grad is not None]


def make_zero_state(parameter: Tensor, *, whole: bool = False) -> Tensor:
    """Return zeros of a parameter's shape, in the type of its state, split as the parameter is unless `whole`."""
    kind = widen_type(parameter.dtype)
    if whole and is_sharded(parameter):
        return torch.zeros(parameter.shape, dtype=kind, device=parameter.device)
    return torch.zeros_like(parameter, dtype=kind)


def widen_type(kind: torch.dtype) -> torch.dtype:
    """Return the type of the state and of the update of a parameter of type `kind`."""
    return torch.float32 if kind in NARROW else kind


def widen_floats(value: Tensor) -> Tensor:
    """Return bfloat16 and float16 values as float32, and all others unchanged."""
    return value.to(widen_type(value.dtype))


@contextlib.contextmanager
def edit_weights(parameters: list[Tensor], *, whole: bool = False) -> Iterator[list[Tensor]]:
    """Yield values of the parameters to change in place.

    Parameters in bfloat16 and float16 are replaced by float32 copies, which are rounded into them at the end.

    Args:
        parameters: to change.
        whole: replace those that `fully_shard` has split by whole copies, too.
    """
    values = [parameter.to(widen_type(parameter.dtype)) for parameter in parameters]  # no copies of wide parameters
    values = [gather_whole(value) for value in values] if whole else values
    yield values
    for parameter, value in zip(parameters, values, strict=True):
        if value is not parameter:
            parameter.copy_(split_like(value, parameter) if whole else value)


def densify_gradients(parameters: list[Tensor], *, whole: bool = False) -> list[Tensor]:
    """Return the gradients that exist, dense, in float32 if they are narrower; split ones are gathered if `whole`."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
            gradients.append(parameter.grad.to(widen_type(parameter.grad.dtype)))
    return [gather_whole(gradient) for gradient in gradients] if whole else gradients


def read_rows(table: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the rows that a sparse gradient names, each once, and their values; None if all rows must be updated.

    That is the case for a dense gradient, for one that is sparse in several axes, and for a parameter in half
    precision, whose update is computed in float32.
    """
    if table.grad is None or not table.grad.is_sparse or table.grad.sparse_dim() != 1 or table.dtype in NARROW:
        return None
    grad = table.grad.coalesce()
    return grad.indices()[0], grad.values()


def add_weight_decay(gradients: list[Tensor], parameters: list[Tensor], weight_decay: float) -> list[Tensor]:
    """Gradients with L2 decay added to matrices and filters; vectors (biases, normalisation) have none.

    Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients. The given tensors are not changed.
    """
    if not weight_decay:
        return gradients
    decayed = []
    for gradient, parameter in zip(gradients, parameters, strict=True):
        if parameter.ndim > 1:
            value = parameter if is_sharded(gradient) else gather_whole(parameter)
            gradient = torch.add(gradient, value, alpha=weight_decay)
        decayed.append(gradient)
    return decayed


def turn_weights(layers: Mapping[str, Layer], tree: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a tree in which the weights (in, out) of transposed layers are (out, in), or the other way round."""
    weights = (layer.parameters[0] for layer in layers.values() if layer.transposed)
    return tree | {name: tree[name].T for name in weights if name in tree}


def name_parameters(optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    """Return the name of each parameter: the given name, or its index among all parameters."""
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    given = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    return dict(zip(params, given or map(str, range(len(params))), strict=True))


def by_name(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the parameters by name.

    Raises:
        UserError: if they were given without names.
    """
    groups = optimizer.param_groups
    if any("param_names" not in group for group in groups):
        kind = type(optimizer).__name__
        raise UserError(f"{kind} must know its parameters' names; use {kind}(model.named_parameters(), …)")
    return {name: p for group in groups for name, p in zip(group["param_names"], group["params"], strict=True)}


def one_rank(optimizer: torch.optim.Optimizer, world: int) -> None:
    """Check that an optimizer without an engine was made for one rank.

    Raises:
        UserError: if `world` is not 1.
    """
    if world != 1:
        raise UserError(
            f"{type(optimizer).__name__}(world={world}): only the suite's engine shares work among ranks; leave world "
            "out, and each process does all of it"
        )


# ------------------------------------------------------------------------------------------------ counted updates
def ensure_step_counter(optimizer: Optimizer, name: str) -> Tensor:
    """Return the number of updates so far, `state[name]["steps"]`, a float64 scalar."""
    if name not in optimizer.state:
        device = optimizer.param_groups[0]["params"][0].device
        optimizer.state[name] = {"steps": torch.zeros((), dtype=torch.float64, device=device)}
    return optimizer.state[name]["steps"]


def record_missed_updates(optimizer: Optimizer, name: str, parameters: list[Tensor]) -> None:
    """Store the number of updates before new parameters were added; their averages do not include these updates."""
    if before := int(ensure_step_counter(optimizer, name)):
        for parameter in parameters:
            optimizer.state[parameter]["missed"] = before


def by_updates(optimizer: Optimizer, parameters: list[Tensor], steps: Count) -> list[tuple[list[Tensor], Count]]:
    """Group the parameters that have a gradient by their number of updates, this update included.

    Averages that start at zero are corrected by the number of gradients in them. `torch.optim` counts these for each
    parameter. Here the state of a parameter counts only the updates in which it had no gradient, as `missed`.

    Args:
        optimizer: the optimizer.
        parameters: the parameters of this update.
        steps: the optimizer's number of updates, this one included.

    Returns:
        Pairs of parameters and their number of updates.
    """
    equal: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        missed = optimizer.state[parameter].get("missed", 0)
        if parameter.grad is None:
            optimizer.state[parameter]["missed"] = missed + 1
        else:
            equal.setdefault(missed, []).append(parameter)
    return [(members, steps - missed if missed else steps) for missed, members in equal.items()]


# ----------------------------------------------------------------------------------------------- further helpers
def place_numbers(numbers: Sequence[float] | float, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers as a tensor on the device of `like`; the host does not wait for a GPU, as for other copies to it.

    Args:
        numbers: the values; a single number makes a scalar.
        like: a tensor on that device.
        dtype: the result's type; None: that of `like`.
    """
    return torch.tensor(numbers, dtype=dtype or like.dtype).to(like.device, non_blocking=True)


@torch.no_grad()
def reset_blocks(optimizer: torch.optim.Optimizer, moved: Mapping[Tensor, Tensor], **starts: float) -> None:
    """Set state to its start for blocks of parameters that have moved.

    Args:
        optimizer: the optimizer.
        moved: {parameter (n, …): (n,) booleans}.
        starts: what kinds of state start at that do not start at 0.
    """
    for parameter, mask in moved.items():
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):  # the number of missed updates is of the whole parameter
                value[mask] = starts.get(name, 0.0)


def ensure_velocities(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], momentum: float, *, whole: bool = False
) -> list[Tensor]:
    """Return the velocity of each parameter, initially zeros; [] while the momentum is 0, without using memory."""
    if not momentum:
        return []
    states = [optimizer.state[parameter] for parameter in parameters]
    for parameter, state in zip(parameters, states, strict=True):
        if "velocity" not in state:
            state["velocity"] = make_zero_state(parameter, whole=whole)
    return [state["velocity"] for state in states]
