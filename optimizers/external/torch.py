"""A torch.optim class of another package."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from suite.contract import UserError
from suite.declared import describe_settings
from suite.optimizers.external.imports import dotted_path, imported_object, make_arguments_error
from suite.optimizers.external.settings import Settings


@describe_settings(Settings)
def external(parameters: Iterable[tuple[str, Tensor]], **settings: Any) -> Optimizer:
    """Return the optimizer that `torch` names, with named parameters.

    Args:
        parameters: `model.named_parameters()`.
        settings: by name, as listed below.

    Raises:
        UserError: where it is not found, does not accept the arguments, or needs more than a gradient.
    """
    chosen, named = Settings.given(settings), list(parameters)
    kind = _imported(chosen)
    try:
        optimizer = kind(_groups(named, chosen.matrices), lr=chosen.lr, **(chosen.arguments or {}))
    except (TypeError, ValueError, RuntimeError) as error:
        raise make_arguments_error("torch", chosen.torch, error) from error
    names = {parameter: name for name, parameter in named}
    for group in optimizer.param_groups:  # named afterwards: not every class takes pairs
        group["param_names"] = [names[parameter] for parameter in group["params"]]
    return optimizer


def _imported(settings: Settings) -> Callable[..., Optimizer]:
    """Return the class.

    Raises:
        UserError: where it is not found, is no optimizer, or needs a closure.
    """
    dotted = dotted_path("torch", settings)
    kind = imported_object("torch", dotted, settings.path)
    if not isinstance(kind, type) or not issubclass(kind, Optimizer):
        raise UserError(f"optimizer.torch={dotted}: is no class of torch.optim.Optimizer")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise UserError(f"optimizer.torch={dotted}: asks for a closure that computes the loss again; not served here")
    return kind


def _groups(named: list[tuple[str, Tensor]], matrices: str | None) -> list[dict[str, Any]]:
    """One group of parameters; or matrices and filters, and vectors, told apart by the option that `matrices` names."""
    if not matrices:
        return [{"params": [parameter for _, parameter in named]}]
    split = {large: [p for _, p in named if (p.ndim > 1) is large] for large in (True, False)}
    return [{"params": params, matrices: large} for large, params in split.items() if params]


make = external
