"""A first-order rule in torch: an optimizer with groups, sparse and missing gradients, narrow and sharded weights."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.contract import Rows, UserError
from suite.declared import describe_settings, take_settings
from suite.optimizers._base.reference import Fallback
from suite.optimizers._base.torch import (
    Chosen,
    Optimizer,
    by_updates,
    densify_gradients,
    edit_weights,
    ensure_step_counter,
    ensure_velocities,
    read_rows,
    record_missed_updates,
    reset_blocks,
    select_with_gradient,
    widen_type,
)
from suite.optimizers._rules import Rule
from suite.optimizers._rules.fallback import step_adamw
from suite.optimizers._rules.torch_ops import OPS

ARGUMENTS = """Args:
    parameters: tensors, `model.named_parameters()`, or groups of either.
    lr: learning rate.
    settings: by name, as listed below."""


class FirstOrder(Optimizer[Chosen]):
    """An optimizer that follows a rule: `class NAME(FirstOrder[Settings], rule=RULE)`.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as the rule's class of settings declares them.
    """

    rule: ClassVar[Rule[Any]]

    def __init_subclass__(cls, *, rule: Rule[Any] | None = None) -> None:
        """Take the rule, and write its settings into signature and docstring; a subclass of NAME inherits them."""
        super().__init_subclass__()
        if rule is not None:
            cls.rule, cls.__doc__ = rule, f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{ARGUMENTS}"
            describe_settings(rule.settings)(cls)

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(self.rule.settings, lr, settings), self.rule.grouped)

    def _begin(self, group: dict[str, Any]) -> None:
        if self.rule.counted:
            record_missed_updates(self, self.rule.name, group["params"])
        for name, start in self._starts().items():
            for parameter in group["params"]:
                self.state[parameter][name] = self._fill(parameter, start)
        if self.rule.velocity:
            ensure_velocities(self, group["params"], group["momentum"], whole=self.rule.shapes is not None)

    def _starts(self) -> dict[str, float]:
        """Return what each kind of state starts at."""
        return {name: start for name, start in self.rule.start(self.settings).items() if start is not None}

    def _fill(self, parameter: Tensor, start: float) -> Tensor | list[Tensor]:
        """Return the first state of a parameter."""
        kind = widen_type(parameter.dtype)
        if self.rule.shapes is None:
            return torch.full_like(parameter, start, dtype=kind)
        shapes = self.rule.shapes(parameter.shape)
        return [torch.full(shape, start, dtype=kind, device=parameter.device) for shape in shapes]

    def _update(self) -> None:
        steps = ensure_step_counter(self, self.rule.name).add_(1.0) if self.rule.counted else None
        for group in self.param_groups:
            hyper = self.read_group(group)
            if steps is not None:
                for params, updates in by_updates(self, group["params"], steps):
                    self._move(params, group, hyper, updates)
            elif params := self._update_rows(select_with_gradient(group["params"]), group, hyper):
                self._move(params, group, hyper, torch.nan)

    def _update_rows(self, params: list[Tensor], group: dict[str, Any], hyper: Chosen) -> list[Tensor]:
        """Update the rows that sparse gradients name; return the parameters with other gradients."""
        update = self.rule.update_rows
        if update is None or group["momentum"] or group["weight_decay"]:  # these two change every row of a table
            return params
        others = []
        for parameter in params:
            if (rows := read_rows(parameter)) is None:
                others.append(parameter)
            else:
                update(OPS, parameter, Rows(*rows), self.state[parameter], hyper)
        return others

    def _move(self, params: list[Tensor], group: dict[str, Any], hyper: Chosen, steps: Any) -> None:
        """Update parameters that have been updated equally often."""
        whole = self.rule.shapes is not None
        grads = densify_gradients(params, whole=whole)
        kinds = self.rule.start(self.settings)
        state = {
            name: [] if start is None else [self.state[parameter][name] for parameter in params]
            for name, start in kinds.items()
        }
        if self.rule.velocity:
            state["velocity"] = ensure_velocities(self, params, group["momentum"], whole=whole)
        with edit_weights(params, whole=whole) as weights:
            self.rule.update(OPS, weights, grads, state, hyper, steps)

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}.

        Raises:
            UserError: blocks share state.
        """
        if self.rule.shapes is not None:
            raise UserError(f"{type(self).__name__}.reset: blocks of a parameter share state; make a new optimizer")
        reset_blocks(self, moved, **self._starts())


def step_by_adamw(
    optimizer: Optimizer[Any], params: list[Tensor], weights: list[Tensor], hyper: Fallback, steps: Tensor
) -> None:
    """Update parameters that another method leaves to AdamW, and their moments `first` and `second`.

    Args:
        optimizer: whose parameters they are.
        params: parameters that have been updated equally often.
        weights: theirs, from `edit_weights`; changed.
        hyper: the settings that hold now.
        steps: how often, this update included, in float64.
    """
    moments = {kind: [optimizer.state[parameter][kind] for parameter in params] for kind in ("first", "second")}
    step_adamw(OPS, weights, densify_gradients(params), moments, hyper, steps)
