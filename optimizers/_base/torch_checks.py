"""Checks of what a torch optimizer is given: parameters, groups of them, and a state to load."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suite.contract import UserError, suggest_names
from suite.declared import Declared

Place = tuple[torch.dtype, torch.device]
OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")  # torch's schedules write them
OF_TORCH = ("params", "param_names", "name", *OF_SCHEDULES)


def check_parameters(kind: str, parameters: Sequence[Tensor]) -> None:
    """Check that an optimizer can update parameters of these types.

    Args:
        kind: the optimizer's name.
        parameters: of one group.

    Raises:
        UserError: for complex or flattened parameters.
    """
    for parameter in parameters:
        if parameter.is_complex():
            raise UserError(
                f"{kind}: a parameter of shape {tuple(parameter.shape)} is complex; store its real and imaginary parts "
                "in a real parameter, and use torch.view_as_complex(parameter) in the model"
            )
        if hasattr(parameter, "_fsdp_flattened"):
            raise UserError(
                f"{kind}: FullyShardedDataParallel flattens parameters, so that their shapes are lost; use "
                "torch.distributed.fsdp.fully_shard"
            )


def check_group(kind: str, settings: Declared, group: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    """Check the settings of one group of parameters.

    Args:
        kind: the optimizer's name.
        settings: of the optimizer.
        group: its parameters, and settings that differ from the optimizer's.
        allowed: what a group may set.

    Raises:
        UserError: for a name that is unknown or the same for all groups, a wrong type or a value out of range.
    """
    for name in group:
        if name in allowed or name in OF_TORCH:
            continue
        if name in type(settings).model_fields:
            raise UserError(
                f"{kind}: a parameter group sets {name}, which is the same for all groups; set {kind}(…, {name}=…)"
            )
        raise UserError(f"{kind}: a parameter group sets {name}: unknown; {suggest_names(name, allowed)}")
    given = {name: value for name, value in group.items() if name in allowed}
    numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in given.items()}
    settings.given(dict(settings) | numbers, f"{kind}: ")


def find_places(groups: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Return type and device of every parameter."""
    return [(parameter.dtype, parameter.device) for group in groups for parameter in group["params"]]


def check_places(kind: str, made: Sequence[Place], found: Sequence[Place]) -> None:
    """Check that the parameters are where they were when the optimizer was made, and of that type.

    Raises:
        UserError: if one has changed.
    """
    for before, now in zip(made, found, strict=True):
        if before != now:
            old, new = (f"{dtype} on {device}" for dtype, device in (before, now))
            raise UserError(
                f"{kind}: a parameter was {old} when the optimizer was made, and is {new} now; make the optimizer "
                "after model.to(…)"
            )


def check_state(kind: str, own: Mapping[Any, Any], given: Mapping[Any, Any], path: str = "") -> None:
    """Check that a loaded state fits the optimizer's; parts that only one of them has are no error.

    Args:
        kind: the optimizer's name.
        own: the optimizer's state.
        given: the state to load.
        path: of both in the whole state, for messages.

    Raises:
        UserError: if a tensor has another shape, nested tensors have other names, or a parameter has other averages.
    """
    for key in own.keys() & given.keys():
        one, other, place = own[key], given[key], f"{path}/{key}" if path else str(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one and other and one.keys().isdisjoint(other):
                raise UserError(_differs(kind, place, f"{', '.join(map(str, other))} instead of {', '.join(one)}"))
            if path and (different := sorted(map(str, one.keys() ^ other.keys()))):
                raise UserError(_differs(kind, place, f"only one of them has {', '.join(different)}"))
            check_state(kind, one, other, place)
        elif isinstance(one, list) and isinstance(other, list):
            check_state(kind, dict(enumerate(one)), dict(enumerate(other)), place)
        elif isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape != other.shape:
            raise UserError(_differs(kind, place, f"shape {tuple(other.shape)} instead of {tuple(one.shape)}"))


def _differs(kind: str, place: str, how: str) -> str:
    return f"{kind}.load_state_dict: the state {place} belongs to other parameters or settings: {how}"
