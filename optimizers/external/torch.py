"""A torch.optim class of another package."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from suite.contract import UserError
from suite.declared import describe_settings
from suite.optimizers.external import Settings
from suite.optimizers.external.imports import dotted_path, imported_object, make_arguments_error


@describe_settings(Settings)
def external(parameters: Iterable[tuple[str, Tensor]], *, model: Module | None = None, **settings: Any) -> Optimizer:
    """Return the optimizer that `torch` names, with named parameters.

    Args:
        parameters: `model.named_parameters()`.
        model: the module, for a class that asks for it.
        settings: by name, as listed below.

    Raises:
        UserError: where it is not found, does not accept the arguments, or needs more than a gradient.
    """
    chosen, named = Settings.given(settings), list(parameters)
    kind = find_optimizer(chosen)
    first, others = _asked(kind, chosen, named, model)
    try:
        optimizer = kind(first, lr=chosen.lr, **others, **(chosen.arguments or {}))
    except Exception as error:  # each package has errors of its own
        raise make_arguments_error("torch", chosen.torch, error) from error
    if any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for _, parameter in named):
        raise UserError(
            f"optimizer.torch={chosen.torch}: updates inside of the backward pass, before gradients are averaged and "
            "clipped; not served here"
        )
    if any("lr" not in group for group in optimizer.param_groups):
        raise UserError(
            f"optimizer.torch={chosen.torch}: its groups have no lr, so it cannot follow the run's schedule"
        )
    names = {parameter: name for name, parameter in named}
    for group in optimizer.param_groups:  # named afterwards: not every class takes pairs
        group["param_names"] = [names.get(parameter, "") for parameter in group["params"]]
        ratio = float(group["lr"]) / chosen.lr if chosen.lr else 1.0  # a class may give vectors a rate of their own
        group["lr_ratio"] = 1.0 if math.isclose(ratio, 1.0, rel_tol=1e-6) else ratio  # a tensor's is rounded
    return optimizer


def find_optimizer(settings: Settings) -> Callable[..., Optimizer]:
    """Return the class.

    Raises:
        UserError: where it is not found, is no optimizer, needs a closure, or takes no learning rate.
    """
    dotted = dotted_path("torch", settings)
    kind = imported_object("torch", dotted, settings.path)
    if not isinstance(kind, type) or not issubclass(kind, Optimizer):
        raise UserError(f"optimizer.torch={dotted}: is no class of torch.optim.Optimizer")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise UserError(f"optimizer.torch={dotted}: asks for a closure that computes the loss again; not served here")
    taken = inspect.signature(kind).parameters.values()
    if not any(one.name == "lr" or one.kind is one.VAR_KEYWORD for one in taken):
        raise UserError(f"optimizer.torch={dotted}: takes no lr, so it cannot follow the run's schedule")
    return kind


def count_state_bytes(settings: Settings, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the bytes of the optimizer's state after a step; None if it makes no step from gradients alone.

    The step is made without memory, on torch's `meta` device. If the optimizer reads a number, which is not there, it
    is made on smaller parameters, whose state is taken to grow as the parameters do.

    Raises:
        UserError: the optimizer rejects its arguments, as it would in a run.
    """
    if _asks_for_model(find_optimizer(settings)):
        return None
    errors: list[Exception] = []
    small = {name: tuple(min(side, 256) for side in shape) for name, shape in shapes.items()}
    for device, tried in (("meta", shapes), ("cpu", small)):
        named = {name: Parameter(torch.ones(shape, device=device)) for name, shape in tried.items()}
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        try:
            optimizer = external(named.items(), **settings.plain())
            optimizer.step()
        except Exception as error:  # each package has errors of its own; a run says what is wrong in a step
            errors.append(error)
            continue
        counted = 0.0
        for name, parameter in named.items():
            kept = sum(_count_bytes(value) for value in optimizer.state.get(parameter, {}).values())
            counted += kept * math.prod(shapes[name]) / max(parameter.numel(), 1)
        return int(counted)
    if all(isinstance(error, UserError) for error in errors):
        raise errors[-1]
    return None


def _count_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_count_bytes, value)) if isinstance(value, list | tuple) else 0


def _asks_for_model(kind: Callable[..., Optimizer]) -> bool:
    first, *rest = inspect.signature(kind).parameters.values()
    return "model" in (first.name, *(one.name for one in rest if one.default is one.empty))


def _asked(
    kind: Callable[..., Optimizer], settings: Settings, named: list[tuple[str, Tensor]], model: Module | None
) -> tuple[Any, dict[str, Any]]:
    """Return a class's first argument and others that it asks for: groups, named parameters, or the model.

    Raises:
        UserError: it asks for the model, and there is none, or `matrices` is set.
    """
    offers: dict[str, Any] = {"model": model, "named_parameters": named, "named_params": named}
    first, *rest = inspect.signature(kind).parameters.values()
    others = {one.name: offers[one.name] for one in rest if one.name in offers and one.default is one.empty}
    if _asks_for_model(kind) and model is None:
        raise UserError(f"optimizer.torch={settings.torch}: asks for the model; pass external(parameters, model=model)")
    if first.name not in offers:
        return _groups(named, settings.matrices), others
    if settings.matrices:
        raise UserError(
            f"optimizer.matrices={settings.matrices}: {settings.torch} takes no groups, but {first.name}; leave it out"
        )
    return offers[first.name], others


def _groups(named: list[tuple[str, Tensor]], matrices: str | None) -> list[dict[str, Any]]:
    """One group of parameters; or matrices and filters, and vectors, told apart by the option that `matrices` names."""
    if not matrices:
        return [{"params": [parameter for _, parameter in named]}]
    split = {large: [p for _, p in named if (p.ndim > 1) is large] for large in (True, False)}
    return [{"params": params, matrices: large} for large, params in split.items() if params]


make = external
