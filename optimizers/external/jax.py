"""An optax transformation of another package."""

import inspect
from collections.abc import Callable
from typing import Any

from jax import Array, eval_shape
from jax.numpy import ones
from optax import GradientTransformation

from suite.contract import UserError
from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, validate_settings
from suite.optimizers.external.imports import dotted_path, imported_object, make_arguments_error
from suite.optimizers.external.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def external(**settings: Any) -> Optimizer:
    """Return the optimizer that `jax` names.

    It is made anew with the step's learning rate in each trace, as `optax.inject_hyperparams` does.

    Args:
        settings: by name, as listed below.

    Raises:
        UserError: where it is not found, does not accept the arguments, takes no learning rate, or needs more than the
            gradient.
    """
    rule = External(validate_settings(Settings, "external", settings))
    return Optimizer(rule.init, rule.update, settings=rule.settings.scheduled())


class External:
    """Functions of the optimizer that these settings name."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._build = _imported(dotted_path("jax", settings), settings.path)
        self._check()

    def _made(self, lr: Any) -> GradientTransformation:
        """Return the transformation with this learning rate."""
        return self._build(learning_rate=lr, **(self.settings.arguments or {}))

    def _check(self) -> None:
        """Reject arguments that the function does not accept, and a transformation that needs more than the gradient.

        Raises:
            UserError: with what it said.
        """
        dotted = self.settings.jax
        try:
            transformation = self._made(self.settings.lr)
        except (TypeError, ValueError) as error:
            raise make_arguments_error("jax", dotted, error) from error
        if not isinstance(transformation, GradientTransformation):
            raise UserError(f"optimizer.jax={dotted}: returns no optax.GradientTransformation")
        tiny = {"weight": ones((2, 2))}
        try:
            eval_shape(lambda: transformation.update(tiny, transformation.init(tiny), tiny))
        except TypeError as error:
            if "required" in str(error):  # other errors may be due to the tiny tree
                raise UserError(f"optimizer.jax={dotted}: asks for more than the gradient: {error}") from error

    def init(self, params: Tree) -> State:
        """Return the transformation's state, as `rival`."""
        return {"rival": self._made(self.settings.lr).init(params)}

    def update(self, grads: Tree, state: State, params: Tree) -> tuple[Any, State]:
        """Return the changes of the parameters, and the next state."""
        transformation = self._made(state["hyper"]["lr"])
        changes, rival = transformation.update(grads, state["rival"], params)
        return changes, state | {"rival": rival}


def _imported(dotted: str, path: str | None) -> Callable[..., Any]:
    """Return the function that returns a transformation.

    Raises:
        UserError: where it is not found, or takes no learning rate.
    """
    build = imported_object("jax", dotted, path)
    if not inspect.isroutine(build) or "learning_rate" not in inspect.signature(build).parameters:
        raise UserError(f"optimizer.jax={dotted}: takes no learning_rate, so it cannot follow the run's schedule")
    return build


make = external
