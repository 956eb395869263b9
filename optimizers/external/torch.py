"""A torch.optim class from elsewhere."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from suite.contract import UserError
from suite.optimizers.external import DEFAULTS, chosen, found, refused


def external(
    parameters: Iterable[tuple[str, Tensor]],
    *,
    torch: str = DEFAULTS["torch"],
    jax: str = DEFAULTS["jax"],
    lr: float = 0.1,
    arguments: Mapping[str, Any] | None = None,
    path: str | None = None,
    matrices: str | None = None,
) -> Optimizer:
    """The rival, its parameters named.

    Args:
        parameters: `model.named_parameters()`.
        torch: dotted path of its class.
        jax: the other backend's.
        lr: learning rate; a run sets that of every group at each step.
        arguments: what else it is called with.
        path: folder to import it from.
        matrices: name of a group's option that is true for matrices and filters and false for vectors, such as
            `use_muon`; None: one group.

    Raises:
        UserError: where it is not there, takes other arguments, or needs more than a gradient.
    """
    torch = chosen("torch", torch=torch, jax=jax)
    kind: Any = found("torch", torch, path)
    if Optimizer not in getattr(kind, "__mro__", ()):
        raise UserError(f"optimizer.torch={torch}: is no class of torch.optim.Optimizer")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise UserError(f"optimizer.torch={torch}: asks for a closure that computes the loss again; not served here")
    named = list(parameters)
    groups: list[dict[str, Any]] = [{"params": [parameter for _, parameter in named]}]
    if matrices:
        split = {large: [p for _, p in named if (p.ndim > 1) is large] for large in (True, False)}
        groups = [{"params": found, matrices: large} for large, found in split.items() if found]
    try:
        made = kind(groups, lr=lr, **(arguments or {}))
    except (TypeError, ValueError, RuntimeError) as error:
        raise refused("torch", torch, error) from error
    names = {parameter: name for name, parameter in named}
    for group in made.param_groups:  # named afterwards: not every class takes pairs
        group["param_names"] = [names[parameter] for parameter in group["params"]]
    return made


make = external
