"""An optax transformation of another package."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array, eval_shape
from jax.numpy import float32, ones
from optax import GradientTransformation, MaskedNode
from optax.contrib import ScheduleFreeState, schedule_free_eval_params

from suite.contract import UserError
from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, validate_settings
from suite.optimizers.external import Settings
from suite.optimizers.external.imports import dotted_path, imported_object, make_arguments_error

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
    scheduled = rule.settings.scheduled()
    return Optimizer(rule.init, rule.update, settings=scheduled, evaluated_params=rule.evaluated_params)


class External:
    """Functions of the optimizer that these settings name."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._build = find_optimizer(settings)
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
        except Exception as error:  # each package has errors of its own
            raise make_arguments_error("jax", dotted, error) from error
        if not isinstance(transformation, GradientTransformation):
            raise UserError(f"optimizer.jax={dotted}: returns no optax.GradientTransformation")
        tiny = {"weight": ones((2, 2))}
        try:
            eval_shape(lambda: transformation.update(tiny, transformation.init(tiny), tiny))
        except Exception as error:  # each package has errors of its own
            if isinstance(error, TypeError) and "required" in str(error):  # others may be due to the tiny tree
                raise UserError(f"optimizer.jax={dotted}: asks for more than the gradient: {error}") from error

    def init(self, params: Tree) -> State:
        """Return the transformation's state, as `rival`."""
        return {"rival": self._made(self.settings.lr).init(params)}

    def update(
        self, grads: Tree, state: State, params: Tree, *, key: tuple[int, int] | None = None
    ) -> tuple[Any, State]:
        """Return the changes of the parameters, and the next state; `key` is for torch's global generator."""
        transformation = self._made(state["hyper"]["lr"])
        changes, rival = transformation.update(grads, state["rival"], params)
        return changes, state | {"rival": rival}

    def evaluated_params(self, params: Tree, state: State) -> Tree:
        """Return the parameters to evaluate: those that a schedule-free method trains are others."""
        for part in jax.tree.leaves(state["rival"], is_leaf=lambda part: isinstance(part, ScheduleFreeState)):
            if isinstance(part, ScheduleFreeState):
                points: Any = part.z  # a dictionary, as the parameters are
                own = {name: z for name, z in points.items() if not isinstance(z, MaskedNode)}  # optax.masked
                params = params | schedule_free_eval_params(part._replace(z=own), {name: params[name] for name in own})
        return params


def find_optimizer(settings: Settings) -> Callable[..., Any]:
    """Return the function that returns a transformation.

    Raises:
        UserError: where it is not found, or takes no learning rate.
    """
    dotted = dotted_path("jax", settings)
    build = imported_object("jax", dotted, settings.path)
    if not callable(build) or "learning_rate" not in inspect.signature(build).parameters:
        raise UserError(f"optimizer.jax={dotted}: takes no learning_rate, so it cannot follow the run's schedule")
    return build


def count_state_bytes(settings: Settings, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the bytes of the optimizer's state; None if it cannot be made. Nothing is allocated.

    Raises:
        UserError: a run would reject the optimizer.
    """
    params = {name: jax.ShapeDtypeStruct(shape, float32) for name, shape in shapes.items()}
    rule = External(settings)
    try:
        state = eval_shape(rule.init, params)
    except Exception:  # each package has errors of its own; a run says what is wrong
        return None
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.shape)


make = external
